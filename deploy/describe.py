"""Says in NodeService's words how the processes of a node are."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from bramley.deploy.process import Incarnation, target_of
from bramley.deploy.supervisor import Key, Wanted
from bramley.protos.v1 import node_pb2


@dataclass(slots=True)
class History:
    """What became of a process's incarnations.

    Attributes:
        crashes: in a row, without a long life between.
        starts: under this supervisor and, where it adopted one, those before.
        epoch: of the last one.
        last_exit: how the one before the last start ended.
    """

    crashes: int = 0
    starts: int = 0
    epoch: int = 0
    last_exit: str = ""

    @property
    def restarts(self) -> int:
        """Starts but the first."""
        return max(0, self.starts - 1)


def describe(
    desired: Mapping[Key, Wanted],
    incarnations: Collection[Incarnation],
    histories: Mapping[Key, History],
) -> Iterator[node_pb2.Process]:
    """Describe every incarnation that lives, then every process that waits for its next one."""
    alive = [one for one in incarnations if not one.exit]
    for one in alive:
        wanted = desired.get(one.key)
        yield _of_incarnation(one, histories.get(one.key, History()), wanted)
    present = {one.key for one in alive}
    for key, wanted in desired.items():
        if key not in present:
            yield _of_absent(key, histories.get(key, History()), wanted)


def _of_incarnation(one: Incarnation, history: History, wanted: Wanted | None) -> node_pb2.Process:
    state = node_pb2.PROCESS_STATE_STARTING
    if one.is_stopping:
        state = node_pb2.PROCESS_STATE_STOPPING
    elif one.is_ready:
        state = node_pb2.PROCESS_STATE_RUNNING
    return node_pb2.Process(
        role=one.record.role,
        name=one.record.name,
        pid=one.record.pid,
        state=state,
        epoch=one.record.epoch,
        address=target_of(one.record.addresses),
        addresses=one.record.addresses,
        restarts=history.restarts,
        last_exit=history.last_exit,
        pinned=wanted is not None and wanted.is_pinned,
    )


def _of_absent(key: Key, history: History, wanted: Wanted) -> node_pb2.Process:
    has_ended = bool(history.last_exit)
    return node_pb2.Process(
        role=key.role,
        name=key.name,
        state=node_pb2.PROCESS_STATE_BACKOFF if has_ended else node_pb2.PROCESS_STATE_STARTING,
        epoch=history.epoch,
        restarts=history.restarts,
        last_exit=history.last_exit,
        pinned=wanted.is_pinned,
    )
