"""A whole cluster in processes of its own: ``python -m bramley.deploy`` in a temporary folder.

Every wait is bounded and ends with the logs of all processes in its message.
"""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc
import msgspec
import psutil

from bramley.common.rpc import open_channel
from bramley.deploy.state import NodeFile
from bramley.deploy.sweep import children_of
from bramley.protos.v1 import node_pb2
from bramley.protos.v1.node_pb2_grpc import NodeServiceStub

if TYPE_CHECKING:
    from bramley.protos.v1.node_pb2_grpc import NodeServiceAsyncStub

PATIENCE_S = 30.0
SUPERVISOR = ("-P", "-m", "bramley.deploy")
DUMMY_CHILD = Path(__file__).with_name("dummy_child.py")

T = TypeVar("T")
Processes = list[node_pb2.Process]


class Cluster:
    """One state folder, and the supervisor that runs in it now.

    Attributes:
        folder: holds all that follows; a test's own.
        state_dir: the state folder.
    """

    def __init__(
        self, folder: Path, toml: str = "", supervisor: Sequence[str] = SUPERVISOR
    ) -> None:
        """Write the settings.

        Args:
            folder: is made.
            toml: what the supervisor reads.
            supervisor: what Python runs as such.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._command = supervisor
        self.state_dir = folder / "state"
        self._toml = folder / "cluster.toml"
        self._toml.write_text(toml)
        self._supervisors: list[asyncio.subprocess.Process] = []
        self._node: NodeFile | None = None

    @property
    def supervisor(self) -> asyncio.subprocess.Process:
        """The last supervisor that was not refused."""
        return self._supervisors[-1]

    def forget(self, refused: asyncio.subprocess.Process) -> None:
        """Go on with the supervisor before ``refused``."""
        self._supervisors.remove(refused)

    @property
    def node(self) -> NodeFile:
        """Read ``node.json``; what it said last, once it is gone."""
        file = self.state_dir / "node.json"
        if file.exists():
            self._node = msgspec.json.decode(file.read_bytes(), type=NodeFile)
        assert self._node is not None, f"never up\n{self.logs()}"
        return self._node

    def rewrite(self, toml: str) -> None:
        """Change the settings of the next supervisor."""
        self._toml.write_text(toml)

    async def spawn(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start a supervisor with free ports, and wait for nothing."""
        with (self.folder / "supervisor.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *self._command, str(self._toml)),
                *("--state-dir", str(self.state_dir)),
                *("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._supervisors.append(process)
        return process

    async def up(self, *arguments: str) -> None:
        """Start a supervisor and wait until its router runs."""
        started = await self.spawn(*arguments)

        def is_up(processes: Processes) -> bool:
            router = find(processes, "router", "router")
            owner = find(processes, "supervisor", "supervisor")
            return (
                owner is not None
                and owner.pid == started.pid
                and router is not None
                and router.state == node_pb2.PROCESS_STATE_RUNNING
            )

        await self.until(is_up)

    async def down(self) -> None:
        """Stop the supervisor in good order, and check that nothing is left."""
        assert self.node  # remembered for what follows
        self.supervisor.send_signal(signal.SIGTERM)
        code = await self.ended()
        assert code == 0, f"exit code {code}\n{self.logs()}"
        self.check_nothing_left()

    async def ended(self, process: asyncio.subprocess.Process | None = None) -> int:
        """Wait for the end of a supervisor, the last one if none is named: its exit code."""
        return await self.within((process or self.supervisor).wait())

    async def kill_supervisor(self) -> None:
        """End the supervisor with SIGKILL; its children go on."""
        assert self.node  # remembered for what follows
        self.supervisor.kill()
        await self.ended()

    def check_nothing_left(self) -> None:
        """Check that no process, socket, lease or lock of this cluster exists."""
        left = self.children()
        assert not left, f"left running: {left}\n{self.logs()}"
        assert not Path(self.node.run_dir).exists()
        kept = {"logs", "epoch", "models", "processes", "settings", "cache.noindex"}
        assert {path.name for path in self.state_dir.iterdir()} <= kept
        for folder in ("processes", "settings"):
            assert not list((self.state_dir / folder).iterdir())

    def children(self) -> dict[tuple[str, str], int]:
        """Find the living children by role and name, with or without a supervisor: their pids."""
        lease = self.state_dir.resolve() / "lease.json"
        return {(told.role, told.name): process.pid for process, told in children_of(lease)}

    @asynccontextmanager
    async def stub(self) -> "AsyncGenerator[NodeServiceAsyncStub]":
        """Open a client of the NodeService."""
        async with open_channel(self.node.node) as channel:
            yield NodeServiceStub(channel)

    async def start_worker(
        self, name: str, *, now: bool = False, pinned: bool = False
    ) -> node_pb2.Process:
        """Ask for a worker as a router would, with the settings that the router was given."""
        router = json.loads((self.state_dir / "settings" / "router-router.json").read_bytes())
        settings = json.dumps(router["models"][name]).encode()
        spec = node_pb2.WorkerSpec(name=name, settings_json=settings)
        async with self.stub() as stub:
            request = node_pb2.StartWorkerRequest(spec=spec, now=now, pinned=pinned)
            call = stub.StartWorker(request, wait_for_ready=True)
            return (await self.within(call)).process

    async def stop_worker(self, name: str) -> None:
        """Have a worker ended, and wait until it is."""
        async with self.stub() as stub:
            await self.within(stub.StopWorker(node_pb2.StopWorkerRequest(name=name)))

    async def kill_worker(self, name: str, epoch: int, reason: str) -> None:
        """Have one incarnation of a worker killed."""
        async with self.stub() as stub:
            request = node_pb2.KillWorkerRequest(name=name, epoch=epoch, reason=reason)
            await self.within(stub.KillWorker(request))

    async def reload(self, toml: str) -> list[str]:
        """Change the settings of this supervisor, and return which keys it says have changed."""
        self.rewrite(toml)
        async with self.stub() as stub:
            return list((await self.within(stub.Reload(node_pb2.ReloadRequest()))).changed)

    async def until(self, condition: Callable[[Processes], bool]) -> Processes:
        """Wait until the processes, as the supervisor tells of them, fulfil ``condition``."""
        seen: list[Processes] = []

        async def watch() -> Processes:
            while True:
                async with aclosing(self._watch()) as snapshots:
                    async for processes in snapshots:
                        seen[:] = [processes]
                        if condition(processes):
                            return processes
                await asyncio.sleep(0.02)

        return await self.within(watch(), lambda: f"last seen: {seen}")

    async def _watch(self) -> AsyncGenerator[Processes]:
        if not (self.state_dir / "node.json").exists():
            return
        async with self.stub() as stub:
            call = stub.Watch(node_pb2.WatchRequest())
            try:
                async for response in call:
                    yield list(response.processes)
            except grpc.aio.AioRpcError:  # no supervisor now; the caller's time is bounded
                return
            finally:
                call.cancel()

    async def running(self, role: str, name: str, *, after: int = 0) -> node_pb2.Process:
        """Wait until a process runs, in an incarnation later than the epoch ``after``."""

        def runs(one: node_pb2.Process | None) -> bool:
            running = node_pb2.PROCESS_STATE_RUNNING
            return one is not None and one.state == running and one.epoch > after

        processes = await self.until(lambda processes: runs(find(processes, role, name)))
        found = find(processes, role, name)
        assert found is not None
        return found

    async def kill(
        self, role: str, name: str, number: signal.Signals = signal.SIGKILL
    ) -> node_pb2.Process:
        """Signal a process that runs, and return it as it was."""
        process = await self.running(role, name)
        psutil.Process(process.pid).send_signal(number)
        return process

    async def gone(self, *pids: int) -> None:
        """Wait until processes have ended; a zombie has."""

        async def wait() -> None:
            while any(is_alive(pid) for pid in pids):  # noqa: ASYNC110 not children of ours
                await asyncio.sleep(0.02)

        await self.within(wait())

    async def within(
        self, awaitable: Awaitable[T], told: Callable[[], str] = str, timeout_s: float = PATIENCE_S
    ) -> T:
        """Wait for ``awaitable``, or fail with the logs."""
        try:
            async with asyncio.timeout(timeout_s):
                return await awaitable
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s} s; {told()}\n{self.logs()}") from None

    def logs(self) -> str:
        """Collect the last lines of all processes."""
        files = [self.folder / "supervisor.log", *sorted((self.state_dir / "logs").glob("*.log"))]
        tails = [
            f"--- {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-40:])
            for file in files
            if file.exists()
        ]
        return "\n".join(tails)

    def log(self, role: str, name: str) -> str:
        """Read all that the incarnations of a process have said."""
        return (self.state_dir / "logs" / f"{role}-{name}.log").read_text()

    async def close(self) -> None:
        """Stop in good order what still runs and check that nothing is left; sweep what died."""
        alive = [process for process in self._supervisors if process.returncode is None]
        if self._supervisors and alive == [self.supervisor]:
            await self.down()
            return
        for process in alive:
            process.kill()
            await process.wait()
        for pid in self.children().values():
            psutil.Process(pid).kill()
        if (self.state_dir / "node.json").exists():
            shutil.rmtree(self.node.run_dir, ignore_errors=True)


def find(processes: Processes, role: str, name: str) -> node_pb2.Process | None:
    """Find the newest incarnation of a process."""
    found = [one for one in processes if (one.role, one.name) == (role, name)]
    return max(found, key=lambda one: one.epoch, default=None)


def dummy_cluster(
    scripts: Path, node: str = "", models: str = "a b", *, store: bool = False
) -> str:
    """Write a ``cluster.toml`` in which every child is a dummy, scripted by files in a folder."""
    dummy = json.dumps([sys.executable, str(DUMMY_CHILD), str(scripts)])
    tables = [f'[models.{name}]\npath = "none"' for name in models.split()]
    commands = [f"{role}_command = {dummy}" for role in ("router", "worker", "store")]
    enabled = str(store).lower()
    return "\n".join([*tables, f"[store]\nenabled = {enabled}", "[node]", *commands, node, ""])


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
