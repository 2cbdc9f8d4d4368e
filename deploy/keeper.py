"""Keeps a node's processes as they are wanted: looks, asks ``plan``, does the one thing."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from bramley.common.errors import AlreadyExists, Draining, UnknownResource
from bramley.common.ids import ModelName, WorkerName, worker_name
from bramley.common.logs import facts
from bramley.deploy.changes import Changes
from bramley.deploy.children import Children, tolerated
from bramley.deploy.describe import History, describe
from bramley.deploy.lease import Ownership
from bramley.deploy.process import Incarnation
from bramley.deploy.reloading import changed_keys, refuse_fixed
from bramley.deploy.settings import ClusterSettings
from bramley.deploy.state import NodeFile, StateFolder, WantedWorker
from bramley.deploy.supervisor import (
    Forget,
    Key,
    Limits,
    Start,
    Stop,
    Wait,
    Wanted,
    backoff_s,
    crashes_after,
    plan,
)
from bramley.protos.v1 import node_pb2

log = logging.getLogger(__name__)

ROUTER: Final = Key("router", "router")
STORE: Final = Key("store", "store")


class Keeper:
    """The processes of one node.

    Attributes:
        changes: told whenever ``processes`` may answer otherwise.
        failure: why the node cannot run at all; empty while it can.
        router_addresses: by kind; empty until it is ready for the first time.
        target: of the NodeService.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        state: StateFolder,
        ownership: Ownership,
        run_dir: str,
        read: Callable[[], ClusterSettings],
    ) -> None:
        """Make one that keeps nothing yet.

        Args:
            settings: of the cluster.
            state: the folder.
            ownership: of it.
            run_dir: for sockets.
            read: reads the settings again; raises SettingsError.
        """
        self.changes = Changes()
        self.failure = ""
        self.target = f"unix:{run_dir}/node.sock"
        self._read = read
        self._settings = settings
        self._router = msgspec.structs.replace(settings.router, node=self.target)
        self.router_addresses: dict[str, str] = {}
        self._state = state
        self._ownership = ownership
        self._run_dir = run_dir
        self._limits = _limits(settings)
        self._children = Children(
            state,
            run_dir,
            settings.node.orphan_grace_s,
            settings.logs.format,
            self.changes.notify,
        )
        self._desired: dict[Key, Wanted] = {}  # what is missing is started in this order
        if settings.store.enabled:
            self._desired[STORE] = Wanted(spec=canonical(settings.store.own()))
        self._desired[ROUTER] = Wanted(spec=canonical(self._router))
        self._histories: dict[Key, History] = {}
        self._reloading = asyncio.Lock()
        self._is_stopping = False
        # A child that clients depend on was ready once: the settings can work.
        self._has_served = False

    async def adopt(self, previous: NodeFile | None) -> None:
        """Take over what the last supervisor left: its wishes and its living children."""
        specs = {
            worker_name(ModelName(name), number): canonical(model.own())
            for name, model in self._settings.models.items()
            for number in range(1, model.replicas + 1)
        }
        for name, wanted in self._state.read_wanted().items():
            if specs.get(WorkerName(name)) == wanted.spec:
                self._desired[Key("worker", name)] = Wanted(
                    spec=wanted.spec, is_pinned=wanted.is_pinned
                )
        adopted = await self._children.adopt()
        for one in adopted:
            self._histories[one.key] = History(starts=1, epoch=one.record.epoch)
        self._has_served = any(one.key != STORE for one in adopted)
        if adopted and previous is not None:  # else nobody holds on to the old ports
            self.router_addresses = previous.addresses
        async with self._ownership.acting():
            self._write_node()

    async def run(self) -> None:
        """Act until the node has been stopped and nothing of it lives."""
        while True:
            change = self.changes.next()
            await self._note_heard()
            now_s = time.monotonic()
            match plan(self._desired, self._children.seen(), now_s, self._limits):
                case Start(key):
                    await self._start(key)
                case Stop(epoch, level):
                    async with self._ownership.acting():
                        self._children.stop(epoch, level)
                case Forget(epoch):
                    await self._forget(epoch)
                case Wait(until_s):
                    if self._is_stopping and await self._is_all_gone():
                        return
                    await _wait(change, until_s)
                    continue
            self.changes.notify()

    async def sweep(self) -> None:
        """Look for strays, which may have been between fork and exec before, and lost sockets.

        Raises:
            OSError: the sockets' folder is gone and cannot be made again.
        """
        await self._children.sweep()
        self._children.mend_run_dir()

    def fail(self, why: str) -> None:
        """Stop a node that cannot run."""
        self.failure = self.failure or why
        self.stop()

    def stop(self, *, at_once: bool = False) -> None:
        """End all processes in good order, or ``at_once``; then ``run`` returns."""
        self._is_stopping = True
        self._desired.clear()
        if at_once:
            self._limits = replace(self._limits, stop_s=0.0, drain_s=0.0, flush_s=0.0)
        self.changes.notify()

    @property
    def router_settings_json(self) -> bytes:
        """The router's settings, as last read."""
        return msgspec.json.encode(self._router)

    @property
    def sweep_every_s(self) -> float:
        """How often to ``sweep``."""
        return self._settings.node.sweep_every_s

    async def reload(self) -> list[str]:
        """Read the settings again, for the router to be told and for what starts from now on.

        Returns:
            Keys that differ.

        Raises:
            Draining: the node is stopping.
            SettingsError: they are wrong, or differ in what only a restart can change: nothing
                has been changed.
        """
        async with self._reloading:
            settings = await asyncio.to_thread(self._read)
            async with self._ownership.acting():
                if self._is_stopping:
                    raise Draining("the node is stopping")
                changed = changed_keys(self._settings, settings)
                refuse_fixed(changed)
                self._take(settings)
        log.info("reloaded", extra=facts(changed=changed))
        self.changes.notify()
        return changed

    def _take(self, settings: ClusterSettings) -> None:
        before = canonical(self._router)
        self._settings = settings
        self._limits = _limits(settings)
        self._router = msgspec.structs.replace(settings.router, node=self.target)
        self._children.orphan_grace_s = settings.node.orphan_grace_s
        # The running router is told: it is not to be replaced, now or at a takeover.
        spec = canonical(self._router)
        self._desired[ROUTER] = replace(self._desired[ROUTER], spec=spec)
        self._children.understand(ROUTER, before, spec)
        with tolerated("the router's settings"):
            self._state.write_settings(ROUTER, self._router_settings())

    async def start_worker(
        self, name: str, spec: str, *, now: bool = False, is_pinned: bool = False
    ) -> None:
        """Make a worker wanted.

        Args:
            name: of the worker.
            spec: as ``canonical`` gives it.
            now: whether to forget that it has crashed, and start it without a pause.
            is_pinned: kept for the router.

        Raises:
            Draining: the node is stopping.
            AlreadyExists: it is wanted with another spec.
        """
        key = Key("worker", name)
        async with self._ownership.acting():
            if self._is_stopping:
                raise Draining("the node is stopping")
            wanted = self._desired.get(key, Wanted(spec=spec))
            if wanted.spec != spec:
                raise AlreadyExists(f"worker {name!r} has other settings: stop it first")
            if now:
                wanted = replace(wanted, not_before_s=0.0)
                self._histories.setdefault(key, History()).crashes = 0
            self._desired[key] = replace(wanted, is_pinned=is_pinned)
            self._write_wanted()
        self.changes.notify()

    async def stop_worker(self, name: str) -> None:
        """Make a worker unwanted, and wait until it is gone.

        Raises:
            UnknownResource: it was not wanted, and none of that name is still stopping.
        """
        key = Key("worker", name)
        async with self._ownership.acting():
            wanted = self._desired.pop(key, None)
            epochs = self._children.of(key)
            if wanted is None and not epochs:
                raise UnknownResource("worker", name)
            self._write_wanted()
        self.changes.notify()
        await self.changes.until(lambda: not epochs & self._children.incarnations.keys())

    async def kill_worker(self, name: str, epoch: int, reason: str) -> None:
        """Kill one incarnation of a worker for ``reason``, which counts as its crash.

        Raises:
            UnknownResource: that incarnation does not live.
        """
        key = Key("worker", name)
        async with self._ownership.acting():
            is_there = self._children.kill(key, epoch, reason)
        if not is_there:
            raise UnknownResource("worker", f"{name} of epoch {epoch}")
        log.warning("killed", extra=facts(worker=name, epoch=epoch, reason=reason))
        self.changes.notify()

    def is_running(self, key: Key) -> bool:
        """Whether a process serves."""
        incarnations = self._children.incarnations.values()
        return any(one.key == key and one.is_ready and not one.is_stopping for one in incarnations)

    def processes(self) -> list[node_pb2.Process]:
        """Describe the supervisor and every process that lives or is wanted."""
        state = (
            node_pb2.PROCESS_STATE_STOPPING if self._is_stopping else node_pb2.PROCESS_STATE_RUNNING
        )
        me = node_pb2.Process(
            role="supervisor",
            name="supervisor",
            pid=os.getpid(),
            state=state,
            epoch=self._ownership.epoch,
            address=self.target,
            addresses={"grpc": self.target},
        )
        children = self._children.incarnations.values()
        return [me, *describe(self._desired, children, self._histories)]

    def process(self, name: str) -> node_pb2.Process:
        """Describe a worker as it is to be: never one that is on its way out."""
        key = Key("worker", name)
        wanted = {key: self._desired[key]}
        serving = [
            one
            for one in self._children.incarnations.values()
            if one.key == key and not one.is_stopping
        ]
        return next(describe(wanted, serving, self._histories))

    async def _start(self, key: Key) -> None:
        history = self._histories.setdefault(key, History())
        try:
            async with self._ownership.acting():
                wanted = self._desired.get(key)
                if wanted is None:  # it was stopped while we waited
                    return
                content = self._router_settings() if key == ROUTER else wanted.spec.encode()
                one = await self._children.spawn(key, wanted.spec, self._command(key), content)
        except OSError as error:
            log.error("cannot start", extra=facts(role=key.role, name=key.name, error=error))  # noqa: TRY400
            history.last_exit = f"cannot start: {error}"
            self._go_on_without(key, history, worked_s=0.0)
            return
        history.starts += 1
        history.epoch = one.record.epoch

    def _command(self, key: Key) -> list[str]:
        node = self._settings.node
        if key == ROUTER:
            return node.router_command
        return node.store_command if key == STORE else node.worker_command

    def _router_settings(self) -> bytes:
        """Encode the router's settings; it keeps the free ports that its predecessor took."""
        kept = {
            kind: self.router_addresses.get(kind, wanted)
            for kind, wanted in (("grpc", self._router.grpc), ("http", self._router.http))
            if wanted.endswith(":0")
        }
        return msgspec.json.encode(msgspec.structs.replace(self._router, **kept))

    async def _forget(self, epoch: int) -> None:
        ended = self._children.incarnations[epoch]
        worked_s = self._children.worked_s(ended, time.monotonic())
        async with self._ownership.acting():
            one = self._children.remove(epoch)
        if one.key not in self._desired:
            if not self._children.of(one.key):
                self._histories.pop(one.key, None)
            return
        history = self._histories.setdefault(one.key, History())
        history.last_exit = one.exit
        if not one.has_failed:
            return
        self._go_on_without(one.key, history, worked_s)

    def _go_on_without(self, key: Key, history: History, worked_s: float) -> None:
        """Try again after a pause; a router that fails before anything served ends the node."""
        if key not in self._desired:
            return
        if key == ROUTER and not self._has_served:
            self.fail(f"the router does not start: {history.last_exit}")
            return
        history.crashes = crashes_after(history.crashes, worked_s, self._limits)
        pause_s = backoff_s(key.role, history.crashes, self._limits)
        self._desired[key] = replace(self._desired[key], not_before_s=time.monotonic() + pause_s)

    async def _note_heard(self) -> None:
        """Write down who has become ready, and only then tell of it."""
        heard = self._children.heard()
        if not heard:
            return
        async with self._ownership.acting():
            for one in heard:
                self._children.note(one.become_ready())
                self._has_served |= one.key != STORE
                if one.key == ROUTER:
                    self._note_router(one)
        self.changes.notify()

    def _note_router(self, one: Incarnation) -> None:
        self.router_addresses = one.record.addresses
        log.info("the router is ready", extra=facts(**one.record.addresses))
        self._write_node()

    def _write_node(self) -> None:
        node = NodeFile(
            run_dir=self._run_dir,
            node=self.target,
            addresses=self.router_addresses,
            pid=os.getpid(),
            epoch=self._ownership.epoch,
        )
        with tolerated("node.json"):
            self._state.write_node(node)

    def _write_wanted(self) -> None:
        workers = {
            key.name: WantedWorker(spec=wanted.spec, is_pinned=wanted.is_pinned)
            for key, wanted in self._desired.items()
            if key.role == "worker"
        }
        with tolerated("wanted.json"):  # the router asks again for what it wants
            self._state.write_wanted(workers)

    async def _is_all_gone(self) -> bool:
        return not self._children.incarnations and not await self._children.sweep()


def canonical(settings: object) -> str:
    """Encode settings so that equal ones give equal text."""
    return msgspec.json.encode(msgspec.to_builtins(settings), order="sorted").decode()


def _limits(settings: ClusterSettings) -> Limits:
    node = settings.node
    return Limits(
        start_s=node.start_timeout_s,
        stop_s=node.stop_timeout_s,
        drain_s=settings.router.drain_timeout_s,
        flush_s=node.flush_timeout_s,
        backoff_min_s=node.backoff_min_s,
        backoff_max_s=node.backoff_max_s,
        settled_s=node.settled_s,
        crash_loop_starts=node.crash_loop_starts,
        crash_loop_pause_s=node.crash_loop_pause_s,
    )


async def _wait(change: asyncio.Event, until_s: float | None) -> None:
    timeout_s = None if until_s is None else max(0.0, until_s - time.monotonic())
    try:
        await asyncio.wait_for(change.wait(), timeout_s)
    except TimeoutError:
        return
