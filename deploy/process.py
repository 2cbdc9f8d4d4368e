"""One incarnation of a child: spawn it, hear that it is ready, signal it, see it end."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Self

import msgspec
import psutil

from bramley.common.child import ChildContext
from bramley.common.logs import facts, words_of
from bramley.deploy.changes import guarded
from bramley.deploy.state import Record
from bramley.deploy.supervisor import Key, Level, Seen

log = logging.getLogger(__name__)

_ADOPTED_POLL_S = 0.2
_CONNECT_TIMEOUT_S = 2.0
_LAST_WORDS_BYTES = 4096
_LAST_WORDS_CHARS = 300
# What OpenMP, below MKL, keeps of a process for others to see; one that is killed leaves it.
_OPENMP_FILE = "/dev/shm/__KMP_REGISTERED_LIB_{pid}_{uid}"  # noqa: S108


class Incarnation:
    """A child as its supervisor knows it, its own or one taken over.

    Attributes:
        record: what its pidfile says.
        heard: addresses that it has told and its record does not have yet.
        exit: how it ended, in words; empty while it lives.
    """

    def __init__(
        self, record: Record, now_s: float, log_file: Path, on_change: Callable[[], None]
    ) -> None:
        self.record = record
        self.heard: dict[str, str] = {}
        self.exit = ""
        self.started_s = now_s
        self._process: psutil.Process | None = None
        self._log_file = log_file
        self._log_start = 0
        self._on_change = on_change
        self._is_usable = True
        self._fault = ""
        self._terminated_s: float | None = None
        self._is_killed = False
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def adopt(self, process: psutil.Process) -> Self:
        """Watch a process that is not our own child."""
        self._process = process
        self._run(self._poll(process))
        return self

    def own(self, spawned: "Spawned") -> Self:
        """Watch a process that ``spawn`` has just made."""
        with contextlib.suppress(psutil.NoSuchProcess):  # it may be gone already
            self._process = psutil.Process(self.record.pid)
        self._log_start = spawned.log_start
        self._run(self._wait(spawned.process))
        self._run(self._hear_ready(spawned.ready_fd))
        return self

    @property
    def key(self) -> Key:
        """Whose incarnation it is."""
        return self.record.key

    @property
    def is_ready(self) -> bool:
        """Whether it has told its addresses."""
        return bool(self.record.addresses)

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end."""
        return self._terminated_s is not None or self._is_killed

    @property
    def has_lost_its_socket(self) -> bool:
        """Whether nobody can call it any more, though it serves."""
        kind, _, path = target_of(self.record.addresses).partition(":")
        return kind == "unix" and not self.is_stopping and not Path(path).exists()

    @property
    def has_failed(self) -> bool:
        """Whether its end, or its being told to, is its own doing."""
        return bool(self._fault) or not self.is_stopping

    @property
    def seen(self) -> Seen:
        """The facts that ``plan`` asks for."""
        return Seen(
            key=self.key,
            epoch=self.record.epoch,
            spec=self.record.spec,
            started_s=self.started_s,
            is_usable=self._is_usable,
            is_ready=self.is_ready,
            is_gone=bool(self.exit),
            terminated_s=self._terminated_s,
            is_killed=self._is_killed,
        )

    def become_ready(self) -> Record:
        """Take what was heard into the record, for the pidfile."""
        self.record = msgspec.structs.replace(self.record, addresses=self.heard)
        self.heard = {}
        return self.record

    def condemn(self, fault: str = "") -> None:
        """Have it replaced; ``fault`` if it is to blame."""
        self._is_usable = False
        self._fault = fault
        self._on_change()

    def send(self, level: Level, now_s: float) -> None:
        """Signal it; SIGKILL goes to all of its session, for a command that wraps another."""
        if level is Level.TERMINATE:
            self._terminated_s = now_s
        else:
            self._is_killed = True
            if not self.is_ready and self._is_usable and self._terminated_s is None:
                self._fault = "not ready in time"
        if self._process is None or self.exit:
            return
        pid = self._process.pid
        try:
            if level is Level.TERMINATE:
                self._process.send_signal(signal.SIGTERM)  # looks that the pid is still its
            elif self._process.is_running() and os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                self._process.send_signal(signal.SIGKILL)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return
        except (psutil.Error, PermissionError) as error:
            log.error("cannot signal", extra=facts(pid=pid, error=error))  # noqa: TRY400

    def _run(self, coroutine: Coroutine[None, None, None]) -> None:
        self._tasks.append(guarded(coroutine))

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        self._end(await process.wait())

    async def _poll(self, process: psutil.Process) -> None:
        while runs(process):  # noqa: ASYNC110 nobody tells of another's child
            await asyncio.sleep(_ADOPTED_POLL_S)
        self._end(-signal.SIGKILL if self._is_killed else None)

    def _end(self, code: int | None) -> None:
        words = how_it_ended(code, last_words(self._log_file, self._log_start))
        self.exit = f"{self._fault}: {words}" if self._fault else words
        with contextlib.suppress(OSError):
            Path(_OPENMP_FILE.format(pid=self.record.pid, uid=os.getuid())).unlink()
        self._ended.set()
        self._on_change()

    async def _hear_ready(self, fd: int) -> None:
        line = await _read_line(fd)
        try:
            addresses = msgspec.json.decode(line, type=dict[str, str])
        except msgspec.DecodeError:
            addresses = {}
        if addresses:
            self.heard = addresses
            self._on_change()
            return
        try:  # most often it has just died, which tells more
            await asyncio.wait_for(self._ended.wait(), 1.0)
        except TimeoutError:
            self.condemn("ended its hand-shake without addresses")


class Spawned(msgspec.Struct, frozen=True):
    """A process just made.

    Attributes:
        ready_fd: reading end of its hand-shake; the owner closes it.
        log_start: where in the log its own words begin.
    """

    process: asyncio.subprocess.Process
    ready_fd: int
    log_start: int


async def spawn(
    command: Sequence[str], context: ChildContext, settings: Path, log_file: Path
) -> Spawned:
    """Start a child in a session of its own, with no descriptors but those meant for it.

    ``context.ready_fd`` is filled in here.

    Returns:
        The process, whose exec has succeeded.

    Raises:
        OSError: it could not be started.
    """
    ready, told = os.pipe()
    try:
        context = msgspec.structs.replace(context, ready_fd=told)
        with log_file.open("ab") as output:
            log_start = output.tell()
            process = await asyncio.create_subprocess_exec(
                *command,
                "--child",
                context.argument(),
                "--settings",
                str(settings),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(told, context.owner_fd),
            )
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(told)
    return Spawned(process, ready, log_start)


async def answers(addresses: dict[str, str]) -> bool:
    """Whether somebody accepts connections at a child's address."""
    target = target_of(addresses)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            if target.startswith("unix:"):
                _, writer = await asyncio.open_unix_connection(target.removeprefix("unix:"))
            else:
                host, _, port = target.rpartition(":")
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, ValueError):  # TimeoutError is an OSError
        return False
    writer.close()
    return True


def target_of(addresses: dict[str, str]) -> str:
    """Choose the gRPC target among a child's addresses: its own socket, where it has one."""
    return addresses.get("socket") or addresses.get("grpc", "")


def how_it_ended(code: int | None, words: str) -> str:
    """Say it as ``Process.last_exit`` does; None is the unknown code of an adopted process.

    Returns:
        The end, with its last words for a failure that chose its code: others say no reason.
    """
    if code is None:
        return "exit code unknown"
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}: {words}" if code and words else f"exit code {code}"


def last_words(log_file: Path, start: int) -> str:
    """Read the last line of a log that is not empty, looking no further back than ``start``."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return words_of(said[-1])[:_LAST_WORDS_CHARS] if said else ""


def runs(process: psutil.Process) -> bool:
    """Whether a process lives; one that only waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _read_line(fd: int) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
    )
    try:
        return await reader.readline()
    except ValueError:  # longer than any hand-shake
        return b""
    finally:
        transport.close()
