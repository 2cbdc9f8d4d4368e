"""Decides what a supervisor does next: ``plan(desired, seen, now) -> one action``.

Pure. The caller carries the action out, looks again, and asks again; a plan is never kept.
A process has one incarnation at a time: the next starts when the last is gone and forgotten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

_STOP_ORDER = ("router", "worker", "store")  # who calls is stopped before whom it calls


class Key(NamedTuple):
    """Which process: the same over all its incarnations."""

    role: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A process that should run.

    Attributes:
        spec: opaque; an incarnation with another one is replaced.
        not_before_s: end of its backoff.
        is_pinned: kept for the router, and no matter here.
    """

    spec: str
    not_before_s: float = 0.0
    is_pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One incarnation, alive or just dead. Times are on one clock, in seconds.

    Attributes:
        is_usable: False for one that nobody can use: unknown, mute, or failed in its start.
        is_ready: its sockets are bound.
        terminated_s: when SIGTERM was sent.
        is_killed: SIGKILL was sent.
    """

    key: Key
    epoch: int
    spec: str
    started_s: float
    is_usable: bool = True
    is_ready: bool = False
    is_gone: bool = False
    terminated_s: float | None = None
    is_killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, in seconds.

    Attributes:
        drain_s: the router's beside ``stop_s``.
        flush_s: the store's beside ``stop_s``.
        crash_loop_starts: crashes of a worker in a row after which it pauses for long.
    """

    start_s: float
    stop_s: float
    drain_s: float
    flush_s: float
    backoff_min_s: float
    backoff_max_s: float
    settled_s: float
    crash_loop_starts: int
    crash_loop_pause_s: float

    def stop_of(self, role: str) -> float:
        """Time from SIGTERM to SIGKILL."""
        return self.stop_s + {"router": self.drain_s, "store": self.flush_s}.get(role, 0.0)


class Level(Enum):
    """How hard a process is told to stop."""

    TERMINATE = "SIGTERM"
    KILL = "SIGKILL"


@dataclass(frozen=True, slots=True)
class Start:
    """Start an incarnation."""

    key: Key


@dataclass(frozen=True, slots=True)
class Stop:
    """Signal an incarnation."""

    epoch: int
    level: Level


@dataclass(frozen=True, slots=True)
class Forget:
    """Clear away what a dead incarnation left."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something changes, or until then at the latest."""

    until_s: float | None


Action = Start | Stop | Forget | Wait


def plan(
    desired: Mapping[Key, Wanted], seen: Sequence[Seen], now_s: float, limits: Limits
) -> Action:
    """Choose the one next action."""
    return (
        _forget_the_dead(seen)
        or _kill_the_overdue(seen, now_s, limits)
        or _terminate_the_unwanted(desired, seen)
        or _start_the_missing(desired, seen, now_s)
        or _wait(desired, seen, limits)
    )


def crashes_after(crashes: int, worked_s: float, limits: Limits) -> int:
    """Count an end that was not asked for; long work forgives those before it."""
    return 1 if worked_s >= limits.settled_s else crashes + 1


def backoff_s(role: str, crashes: int, limits: Limits) -> float:
    """How long to wait before the next start, after so many crashes in a row."""
    # Each crash of a large model may cost memory that only a reboot gives back (macOS keeps what
    # a killed process had wired): a worker is not tried for ever as often as a router is.
    if role == "worker" and crashes >= limits.crash_loop_starts:
        return max(limits.crash_loop_pause_s, limits.backoff_max_s)
    doublings = min(crashes - 1, 62)
    return min(limits.backoff_max_s, limits.backoff_min_s * 2.0**doublings)


def _forget_the_dead(seen: Sequence[Seen]) -> Forget | None:
    return next((Forget(one.epoch) for one in seen if one.is_gone), None)


def _kill_the_overdue(seen: Sequence[Seen], now_s: float, limits: Limits) -> Stop | None:
    for one in seen:
        deadline_s = _patience_ends_s(one, limits)
        if deadline_s is not None and deadline_s <= now_s:
            return Stop(one.epoch, Level.KILL)
    return None


def _patience_ends_s(one: Seen, limits: Limits) -> float | None:
    """When it will be killed as things are; None for never."""
    if one.is_killed:
        return None
    if one.terminated_s is not None:
        return one.terminated_s + limits.stop_of(one.key.role)
    if one.is_usable and not one.is_ready:
        return one.started_s + limits.start_s
    return None


def _terminate_the_unwanted(desired: Mapping[Key, Wanted], seen: Sequence[Seen]) -> Stop | None:
    unwanted = [one for one in seen if _is_unwanted(one, desired)]
    if not unwanted:
        return None
    first = min(_stop_rank(one) for one in unwanted)
    for one in unwanted:
        told = one.terminated_s is not None or one.is_killed
        if _stop_rank(one) == first and not told:
            return Stop(one.epoch, Level.TERMINATE)
    return None


def _stop_rank(one: Seen) -> int:
    role = one.key.role
    return _STOP_ORDER.index(role) if role in _STOP_ORDER else len(_STOP_ORDER)


def _is_unwanted(one: Seen, desired: Mapping[Key, Wanted]) -> bool:
    wanted = desired.get(one.key)
    return not one.is_usable or wanted is None or wanted.spec != one.spec


def _start_the_missing(
    desired: Mapping[Key, Wanted], seen: Sequence[Seen], now_s: float
) -> Start | None:
    present = {one.key for one in seen}
    for key, wanted in desired.items():
        if key not in present and wanted.not_before_s <= now_s:
            return Start(key)
    return None


def _wait(desired: Mapping[Key, Wanted], seen: Sequence[Seen], limits: Limits) -> Wait:
    present = {one.key for one in seen}
    times = [_patience_ends_s(one, limits) for one in seen]
    times += [wanted.not_before_s for key, wanted in desired.items() if key not in present]
    return Wait(min((time for time in times if time is not None), default=None))
