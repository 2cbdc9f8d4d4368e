"""The incarnations of a node's children: spawned, adopted or found astray, and their pidfiles.

Whoever spawns, stops or removes one holds the lease's lock (``Ownership.acting``).
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from bramley.common.child import ChildContext
from bramley.common.logs import Format, facts
from bramley.deploy.process import Incarnation, answers, runs, spawn
from bramley.deploy.state import Record, StateFolder, restore_run_dir
from bramley.deploy.supervisor import Key, Level, Seen
from bramley.deploy.sweep import children_of

log = logging.getLogger(__name__)


class Children:
    """All that lives in a run folder.

    Attributes:
        incarnations: by epoch; each stays until it is removed.
        orphan_grace_s: how long those to be spawned go on serving without a supervisor.
    """

    def __init__(
        self,
        state: StateFolder,
        run_dir: str,
        orphan_grace_s: float,
        log_format: Format,
        on_change: Callable[[], None],
    ) -> None:
        self.incarnations: dict[int, Incarnation] = {}
        self._state = state
        self._run_dir = run_dir
        self.orphan_grace_s = orphan_grace_s
        self._log_format: Format = log_format
        self._on_change = on_change
        self._epochs: set[int] = set()  # of those that are no strays, some not spawned yet
        self._owner_fd, self._held_fd = os.pipe()  # the second ends with this process only

    def seen(self) -> list[Seen]:
        """Collect the facts that ``plan`` asks for."""
        return [one.seen for one in self.incarnations.values()]

    def of(self, key: Key) -> set[int]:
        """Collect the epochs of a process's incarnations."""
        return {epoch for epoch, one in self.incarnations.items() if one.key == key}

    async def adopt(self) -> list[Incarnation]:
        """Take over what lives: known and answering children, and strays to be ended.

        Returns:
            The children that can go on serving.
        """
        records = {record.epoch: record for record in self._state.records()}
        found = await asyncio.to_thread(children_of, self._state.lease)
        able = await asyncio.gather(
            *(self._is_able(process, context, records) for process, context in found)
        )
        adopted: list[Incarnation] = []
        for (process, context), is_able in zip(found, able, strict=True):
            if is_able:
                adopted.append(self._take(records[context.epoch]).adopt(process))
                log.info("adopted", extra=_facts(adopted[-1]))
            else:
                self._take_stray(process, context)
        for epoch in records.keys() - self.incarnations.keys():  # died with their supervisor
            self._clear_away(records[epoch].key, epoch)
        return adopted

    async def _is_able(
        self, process: psutil.Process, context: ChildContext, records: dict[int, Record]
    ) -> bool:
        record = records.get(context.epoch)
        return (
            record is not None
            and (record.pid, record.role, record.name) == (process.pid, context.role, context.name)
            and context.run_dir == self._run_dir
            and await answers(record.addresses)
        )

    async def sweep(self) -> bool:
        """Take charge of children that no pidfile told of, and of what a dead wrapper left.

        Returns:
            Whether there were any.
        """
        found = await asyncio.to_thread(children_of, self._state.lease)
        strays = [
            (process, context)
            for process, context in found
            if context.epoch not in self._epochs and runs(process)
        ]
        for process, context in strays:
            self._take_stray(process, context)
        return bool(strays)

    def _take_stray(self, process: psutil.Process, context: ChildContext) -> None:
        record = Record(
            role=context.role, name=context.name, epoch=context.epoch, pid=process.pid, spec=""
        )
        stray = self._take(record).adopt(process)
        log.warning("found a stray", extra=_facts(stray))
        stray.condemn()

    def _take(self, record: Record) -> Incarnation:
        log_file = self._state.log(record.key)
        one = Incarnation(record, time.monotonic(), log_file, self._on_change)
        self._epochs.add(record.epoch)
        self.incarnations[record.epoch] = one
        return one

    def mend_run_dir(self) -> None:
        """Make the run folder again if it is gone, and have replaced whose sockets went with it.

        Raises:
            OSError: it cannot be made.
        """
        restore_run_dir(self._run_dir)
        for one in self.incarnations.values():
            if one.has_lost_its_socket:
                log.warning("its socket is gone", extra=_facts(one))
                one.condemn("its socket was gone")

    async def spawn(
        self, key: Key, spec: str, command: Sequence[str], settings_json: bytes
    ) -> Incarnation:
        """Start an incarnation, and write it down at once.

        Returns:
            The incarnation, not ready yet.

        Raises:
            OSError: it could not be started.
        """
        restore_run_dir(self._run_dir)
        epoch = self._state.next_epoch()
        self._epochs.add(epoch)  # before there is a process for a sweep to find
        context = self._context(key, epoch)
        settings = self._state.write_settings(key, settings_json)
        spawned = await spawn(command, context, settings, self._state.log(key))
        pid = spawned.process.pid
        record = Record(role=key.role, name=key.name, epoch=epoch, pid=pid, spec=spec)
        one = self._take(record).own(spawned)
        self.note(record)
        log.info("started", extra=_facts(one))
        return one

    def understand(self, key: Key, old: str, new: str) -> None:
        """Have those with the spec ``old``, who are told of changes, known by ``new``."""
        for one in self.incarnations.values():
            if (one.key, one.record.spec) == (key, old):
                one.record = msgspec.structs.replace(one.record, spec=new)
                self.note(one.record)

    def _context(self, key: Key, epoch: int) -> ChildContext:
        return ChildContext(
            role=key.role,
            name=key.name,
            epoch=epoch,
            run_dir=self._run_dir,
            lease_file=str(self._state.lease),
            ready_fd=-1,
            owner_fd=self._owner_fd,
            orphan_grace_s=self.orphan_grace_s,
            log_format=self._log_format,
        )

    def heard(self) -> list[Incarnation]:
        """Collect those that have told their addresses since they were last noted."""
        return [one for one in self.incarnations.values() if one.heard]

    def note(self, record: Record) -> None:
        """Write a pidfile; without one, the next supervisor sweeps the child."""
        with tolerated("pidfile"):
            self._state.write_record(record)

    def stop(self, epoch: int, level: Level) -> None:
        """Signal an incarnation."""
        one = self.incarnations[epoch]
        log.info("stopping", extra=facts(**_named(one), signal=level.value))
        one.send(level, time.monotonic())

    def worked_s(self, one: Incarnation, now_s: float) -> float:
        """Tell for how long it has done its work; a worker does none before it says so."""
        if one.key.role != "worker":
            return now_s - one.started_s
        try:
            began_s = float(self._context(one.key, one.record.epoch).work_file.read_text())
        except (OSError, ValueError):
            return 0.0
        return max(0.0, now_s - began_s)

    def kill(self, key: Key, epoch: int, fault: str) -> bool:
        """Kill an incarnation that is to blame; return whether it lives at all."""
        one = self.incarnations.get(epoch)
        if one is None or one.key != key or one.exit:
            return False
        one.condemn(fault)
        self.stop(epoch, Level.KILL)
        return True

    def remove(self, epoch: int) -> Incarnation:
        """Clear away what a dead incarnation left, and return it."""
        one = self.incarnations.pop(epoch)
        self._epochs.discard(epoch)
        self._clear_away(one.key, epoch)
        log.info("ended", extra=facts(**_named(one), exit=one.exit))
        return one

    def _clear_away(self, key: Key, epoch: int) -> None:
        with tolerated("pidfile"):
            self._state.remove_record(key, epoch)
            # ChildContext.socket and its like: they stay behind a process that was killed.
            for left in Path(self._run_dir).glob(f"{key.role}-{epoch}.*"):
                left.unlink(missing_ok=True)


@contextmanager
def tolerated(what: str) -> Generator[None]:
    """Go on without a file that cannot be written: serving matters more."""
    try:
        yield
    except OSError as error:
        log.error("cannot write", extra=facts(what=what, error=error))  # noqa: TRY400


def _named(one: Incarnation) -> dict[str, object]:
    record = one.record
    return {"role": record.role, "name": record.name, "child": record.pid, "epoch": record.epoch}


def _facts(one: Incarnation) -> dict[str, object]:
    return facts(**_named(one))
