"""Decides when models are loaded and unloaded: ``plan(models, memory, now) -> one action`` (pure).

The caller carries the action out, looks again, and asks again; a plan is never kept. Memory is
given to one model at a time, to the one whose requests have waited longest: no smaller model
slips in before it. Room is made by models that nobody uses, the least recently used first;
after some patience also by one that is in use, which then finishes what it runs.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from bramley.common.ids import ModelName
from bramley.router.policy import ModelPolicy

PATIENCE_S = 5.0  # a waiting model's, before one that is in use has to make room
SLICE_S = 5.0  # that a model serves at least before that
LOAD_S = 300.0  # that its load may take at most, while others wait for its room


class Phase(enum.Enum):
    """What is to be of a model's processes."""

    UNLOADED = "unloaded"
    LOADED = "loaded"  # they run, or are about to
    DRAINING = "draining"  # they get nothing new
    STOPPING = "stopping"


class Why(enum.Enum):
    """What a model is unloaded for."""

    ASKED = "asked"
    IDLE = "idle"
    ROOM = "room"
    CHANGED = "changed"  # its settings: it is loaded again at once
    REMOVED = "removed"  # from the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is known of one model; times are of one clock.

    Attributes:
        needed: bytes that a load reserves.
        held: bytes that the ledger holds for it.
        is_asked: whether an operator, or the start of the router, wants it loaded.
        running: requests on its workers.
        waiting: requests in its queue.
        waiting_since_s: when the longest of them came, or it was asked for.
        used_s: when it last had a request.
        loaded_s: when its load began.
        ready_s: when it first served since then; infinite while it has not.
        why: what it is draining for.
        drain_until_s: when it is stopped whatever it runs.
    """

    name: ModelName
    policy: ModelPolicy = field(default_factory=ModelPolicy)
    phase: Phase = Phase.UNLOADED
    is_pinned: bool = False
    needed: int = 0
    held: int = 0
    is_asked: bool = False
    running: int = 0
    waiting: int = 0
    waiting_since_s: float = inf
    used_s: float = 0.0
    loaded_s: float = 0.0
    ready_s: float = inf
    why: Why | None = None
    drain_until_s: float = inf

    @property
    def is_used(self) -> bool:
        """Whether anybody uses it."""
        return bool(self.running or self.waiting)

    @property
    def is_candidate(self) -> bool:
        """Whether it is to be loaded as soon as there is room."""
        on_demand = self.policy.load != "manual" and self.waiting > 0
        return self.phase is Phase.UNLOADED and (self.is_asked or on_demand)

    @property
    def is_leaving(self) -> bool:
        """Whether its memory comes free by and by."""
        return self.phase in {Phase.DRAINING, Phase.STOPPING}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that are free now, and those that one model could have at most."""

    free: int
    most: int


@dataclass(frozen=True, slots=True)
class Load:
    """Reserve its memory and start its workers."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class Drain:
    """Give its workers nothing new."""

    model: ModelName
    why: Why


@dataclass(frozen=True, slots=True)
class Keep:
    """Drain it no more: it is wanted again."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class Stop:
    """End its workers, which have nothing to do any more or have had their time."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something changes, or until then at the latest."""

    until_s: float


Action = Load | Drain | Keep | Stop | Wait


class Room(enum.Enum):
    """Whether a model fits."""

    NOW = "now"
    SOON = "soon"  # once others have left that nobody uses
    LATER = "later"  # once others that are in use, or pinned, have left
    NEVER = "never"


def plan(models: Sequence[Model], memory: Memory, now_s: float) -> Action:
    """Choose the one next action."""
    return (
        _stop_the_drained(models, now_s)
        or _keep_the_wanted(models)
        or _make_room(models, memory, now_s)
        or _drain_the_idle(models, now_s)
        or Wait(_next_s(models, memory, now_s))
    )


def room(model: Model, models: Iterable[Model], memory: Memory) -> Room:
    """Say whether an unloaded model fits, as things are."""
    if model.needed > memory.most:
        return Room.NEVER
    if model.needed <= memory.free:
        return Room.NOW
    soon = sum(one.held for one in models if one.is_leaving or _is_idle(one))
    return Room.SOON if model.needed <= memory.free + soon else Room.LATER


def _stop_the_drained(models: Sequence[Model], now_s: float) -> Stop | None:
    for one in models:
        if one.phase is Phase.DRAINING and (not one.running or one.drain_until_s <= now_s):
            return Stop(one.name)
    return None


def _keep_the_wanted(models: Sequence[Model]) -> Keep | None:
    """Let a model go on whose requests came before it was stopped, if nobody needs its room."""
    is_needed = any(one.is_candidate for one in models)
    for one in models:
        is_draining = one.phase is Phase.DRAINING and one.why in {Why.IDLE, Why.ROOM}
        if is_draining and one.waiting and not (one.why is Why.ROOM and is_needed):
            return Keep(one.name)
    return None


def _make_room(models: Sequence[Model], memory: Memory, now_s: float) -> Load | Drain | None:
    first = _first_candidate(models, memory)
    if first is None:
        return None
    if first.needed <= memory.free:
        return Load(first.name)
    leaving = sum(one.held for one in models if one.is_leaving)
    if first.needed <= memory.free + leaving:
        return None
    victims = _victims(models, first, now_s)
    if first.needed > memory.free + leaving + sum(one.held for one in victims):
        return None
    return Drain(victims[0].name, Why.ROOM)


def _first_candidate(models: Sequence[Model], memory: Memory) -> Model | None:
    # One that fits beside no pinned one is waited for by nobody else: its room may never come.
    pinned = sum(one.held for one in models if one.phase is Phase.LOADED and one.is_pinned)
    able = [one for one in models if one.is_candidate and one.needed <= memory.most - pinned]
    return min(able, key=lambda one: 0.0 if one.is_asked else one.waiting_since_s, default=None)


def _victims(models: Sequence[Model], first: Model, now_s: float) -> list[Model]:
    """Collect who makes room for a model, in this order: the unused before the used."""
    idle = sorted(filter(_is_idle, models), key=lambda one: one.used_s)
    if now_s < first.waiting_since_s + PATIENCE_S:
        return idle
    used = [
        one for one in models if _is_evictable(one) and one.is_used and now_s >= _slice_ends_s(one)
    ]
    return [*idle, *sorted(used, key=lambda one: one.loaded_s)]


def _slice_ends_s(model: Model) -> float:
    # Were a load cut short for whom it keeps waiting, two models would be loaded in turn for ever.
    return min(model.ready_s + SLICE_S, model.loaded_s + LOAD_S)


def _is_evictable(model: Model) -> bool:
    return model.phase is Phase.LOADED and not model.is_pinned


def _is_idle(model: Model) -> bool:
    return _is_evictable(model) and not model.is_used


def _drain_the_idle(models: Sequence[Model], now_s: float) -> Drain | None:
    for one in models:
        if _idle_until_s(one) <= now_s:
            return Drain(one.name, Why.IDLE)
    return None


def _idle_until_s(model: Model) -> float:
    idle_s = model.policy.idle_unload_s
    return model.used_s + idle_s if idle_s and _is_idle(model) else inf


def _next_s(models: Sequence[Model], memory: Memory, now_s: float) -> float:
    times = [one.drain_until_s for one in models if one.phase is Phase.DRAINING]
    times += map(_idle_until_s, models)
    if first := _first_candidate(models, memory):
        times.append(first.waiting_since_s + PATIENCE_S)
        times += [_slice_ends_s(one) for one in models if _is_evictable(one)]
    return min((time for time in times if time > now_s), default=inf)
