"""Decides who of one model's requests runs, who waits and who is refused (pure).

A request enters, says when it is prepared, gets a place and leaves: whatever ended it. Each
change goes through one function that gives free places away: to who waited too long, at every
fourth place; else to the most urgent class, within which keys take turns. A place is on any
worker of the model; router/routing.py chooses which: the next file of a request's way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from bramley.common.ids import RequestId
from bramley.router.classes import Classes, Priority
from bramley.router.fairness import Turns

RETRY_MIN_S = 0.5
RETRY_MAX_S = 30.0
PROMOTED_EVERY = 4
PREEMPTIONS_MAX = 2  # of one request: then it keeps its place
_MEAN_WEIGHT = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is known of a request when it enters; times are of one clock.

    Attributes:
        owner: takes turns with others of its class; the token's name, empty without tokens.
        key: takes turns with others of its owner.
        nbytes: of the request.
        entered_s: when it came.
        deadline_s: when its client gives up; infinite if it does not say.
    """

    id: RequestId
    priority: Priority = Priority.DEFAULT
    owner: str = ""
    key: str = ""
    nbytes: int = 0
    entered_s: float = 0.0
    deadline_s: float = inf


@dataclass(frozen=True, slots=True)
class QueueFull:
    """As many requests of the class wait as may, or as many bytes."""

    depth: int
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class TooLate:
    """Its client would have given up before its first token."""

    needed_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class Changes:
    """Whose lot changed.

    Attributes:
        granted: have a place from now on.
        preempted: have none any more, and wait as if they had just been prepared.
    """

    granted: Sequence[RequestId] = ()
    preempted: Sequence[RequestId] = ()


@dataclass(slots=True)
class _Member:
    ask: Ask
    cost: float = 1.0
    is_prepared: bool = False
    started_s: float | None = None  # while it has a place
    has_begun: bool = False  # its first token is there
    preemptions: int = 0

    @property
    def priority(self) -> Priority:
        return self.ask.priority


@dataclass
class Line:
    """One model's requests, from entering to leaving.

    Attributes:
        classes: their rules.
        places: how many may run; 0 while no worker is ready.
    """

    classes: Classes = field(default_factory=Classes)
    places: int = 0
    _members: dict[RequestId, _Member] = field(default_factory=dict[RequestId, _Member])
    _queue: dict[RequestId, _Member] = field(default_factory=dict[RequestId, _Member])
    _running: dict[Priority, int] = field(default_factory=lambda: dict.fromkeys(Priority, 0))
    _waiting: dict[Priority, int] = field(default_factory=lambda: dict.fromkeys(Priority, 0))
    _bytes: dict[Priority, int] = field(default_factory=lambda: dict.fromkeys(Priority, 0))
    _turns: dict[Priority, Turns] = field(default_factory=lambda: {p: Turns() for p in Priority})
    _until_promoted: int = PROMOTED_EVERY
    _mean_run_s: float = 0.0

    def __repr__(self) -> str:
        return f"<{self.running_count} running of {self.places}, {self.waiting_count} waiting>"

    @property
    def running_count(self) -> int:
        """Requests that have a place."""
        return sum(self._running.values())

    @property
    def waiting_count(self) -> int:
        """Requests that have none."""
        return sum(self._waiting.values())

    def waiting_of(self, priority: Priority) -> int:
        """Requests of a class that have none."""
        return self._waiting[priority]

    def waiting(self) -> Iterable[Ask]:
        """Requests that have no place."""
        return (member.ask for member in self._queue.values())

    def is_full(self, priority: Priority) -> bool:
        """Whether as many requests of a class wait as may."""
        beyond = self._waiting[priority] - self._free(priority)
        return beyond >= self.classes.of(priority).queue_max

    def is_running(self, request: RequestId) -> bool:
        """Whether it has a place."""
        member = self._members.get(request)
        return member is not None and member.started_s is not None

    def position(self, request: RequestId) -> int:
        """How many that wait are more urgent, or as urgent and earlier: 0 for one that runs."""
        member = self._members.get(request)
        if member is None or member.started_s is not None:
            return 0
        before, is_later = 0, False  # in the order of the queue
        for other in self._queue.values():
            if other is member:
                is_later = True
            elif other.priority == member.priority:
                later_s = other.ask.entered_s - member.ask.entered_s
                before += later_s < 0 or (later_s == 0 and not is_later)
            else:
                before += other.priority > member.priority
        return before

    def enter(self, ask: Ask) -> QueueFull | TooLate | None:
        """Take a request in, unless its class is full or its deadline cannot be met.

        Returns:
            Why not.
        """
        assert ask.id not in self._members
        rule = self.classes.of(ask.priority)
        if self.is_full(ask.priority) or self._bytes[ask.priority] + ask.nbytes > rule.queue_bytes:
            return QueueFull(self._waiting[ask.priority], self.retry_after_s())
        if late := self._too_late(ask, 0.0, ask.entered_s):
            return late
        member = self._members[ask.id] = _Member(ask)
        self._wait(member)
        return None

    def prepared(
        self, request: RequestId, cost: float, prefill_s: float, now_s: float
    ) -> Changes | TooLate:
        """Let a request that entered compete for a place.

        Args:
            request: of those that entered.
            cost: what its key is charged for its turn: prompt tokens to compute.
            prefill_s: estimate of the time to its first token, once it runs; 0 if unknown.
            now_s: the time.

        Returns:
            What changes, or why it cannot be in time; it is to leave then.
        """
        member = self._members[request]
        if late := self._too_late(member.ask, prefill_s, now_s):
            return late
        member.cost = max(cost, 1.0)
        member.is_prepared = True
        self._compete(member)
        return self._assign(now_s)

    def begun(self, request: RequestId) -> None:
        """Note that the first token of a request is there: it keeps its place."""
        if member := self._members.get(request):
            member.has_begun = True

    def leave(self, request: RequestId, now_s: float) -> Changes:
        """Forget a request, wherever it is."""
        member = self._members.pop(request, None)
        if member is None:
            return Changes()
        if member.started_s is None:
            self._wait_no_more(member)
        else:
            self._running[member.priority] -= 1
            if member.has_begun:
                self._note_run(now_s - member.started_s)
        return self._assign(now_s)

    def give_back(self, request: RequestId, now_s: float) -> Changes:
        """Put a request without a token back; it competes once it is ``prepared`` again."""
        member = self._members[request]
        member.is_prepared = False
        if member.started_s is None:  # its place was taken just now
            self._turns[member.priority].discard(request)
            return Changes()
        self._unplace(member)
        return self._assign(now_s)

    def resize(self, places: int, now_s: float) -> Changes:
        """Set how many may run; those that run go on even if they are more."""
        self.places = places
        return self._assign(now_s)

    def retry_after_s(self) -> float:
        """Estimate when a full line has room again: requests that run free a place in turn."""
        return min(max(self._mean_run_s / max(self.places, 1), RETRY_MIN_S), RETRY_MAX_S)

    # Who is next

    def _assign(self, now_s: float) -> Changes:
        granted: list[RequestId] = []
        preempted: list[RequestId] = []
        while (request := self._next(now_s, preempted)) is not None:
            member = self._members[request]
            member.started_s = now_s
            self._running[member.priority] += 1
            self._wait_no_more(member)
            granted.append(request)
        return Changes(granted, preempted)

    def _next(self, now_s: float, preempted: list[RequestId]) -> RequestId | None:
        if self._until_promoted <= 1 and (overdue := self._overdue(now_s)) is not None:
            self._until_promoted = PROMOTED_EVERY
            return overdue
        for priority in sorted(Priority, reverse=True):
            if not self._turns[priority]:
                continue
            if self._free(priority) <= 0 and not self._preempt(priority, preempted):
                continue
            self._until_promoted -= 1
            return self._turns[priority].take()
        return None

    def _free(self, priority: Priority) -> int:
        """Places that a class may take now: what higher ones have a claim to is not among them."""
        claims = sum(
            max(self.classes.of(higher).floor - self._running[higher], 0)
            for higher in Priority
            if higher > priority
        )
        free = self.places - self.running_count
        return min(free, max(free - claims, 1 - self._running_up_to(priority)))

    def _running_up_to(self, priority: Priority) -> int:
        return sum(self._running[lower] for lower in Priority if lower <= priority)

    def _overdue(self, now_s: float) -> RequestId | None:
        """Find who has waited longest of those that have waited too long."""
        overdue = [
            member
            for member in self._queue.values()
            if member.is_prepared
            and now_s - member.ask.entered_s >= self.classes.of(member.priority).promote_after_s
            and self._free(member.priority) > 0
        ]
        if not overdue:
            return None
        first = min(overdue, key=lambda member: member.ask.entered_s)
        first.preemptions = PREEMPTIONS_MAX
        self._turns[first.priority].charge((first.ask.owner, first.ask.key), first.cost)
        return first.ask.id

    def _preempt(self, priority: Priority, preempted: list[RequestId]) -> bool:
        """Take a bulk request's place for somebody who waits for a first token."""
        if not _may_preempt(priority) or self._free(priority) < 0:
            return False
        victims = self._victims()
        if not victims:
            return False
        victim = max(victims, key=lambda member: member.started_s or 0.0)
        victim.preemptions += 1
        self._unplace(victim)
        self._compete(victim)
        preempted.append(victim.ask.id)
        return True

    def _victims(self) -> list[_Member]:
        return [
            member
            for member in self._members.values()
            if member.priority is Priority.BULK
            and member.started_s is not None
            and not member.has_begun
            and member.preemptions < PREEMPTIONS_MAX
        ]

    # Books

    def _unplace(self, member: _Member) -> None:
        member.started_s = None
        self._running[member.priority] -= 1
        self._wait(member)

    def _compete(self, member: _Member) -> None:
        ask = member.ask
        key = (ask.owner, ask.key)
        self._turns[ask.priority].add(ask.id, key, ask.deadline_s, member.cost)

    def _wait(self, member: _Member) -> None:
        self._queue[member.ask.id] = member
        self._waiting[member.priority] += 1
        self._bytes[member.priority] += member.ask.nbytes

    def _wait_no_more(self, member: _Member) -> None:
        del self._queue[member.ask.id]
        self._waiting[member.priority] -= 1
        self._bytes[member.priority] -= member.ask.nbytes
        self._turns[member.priority].discard(member.ask.id)

    def _note_run(self, run_s: float) -> None:
        before_s = self._mean_run_s or run_s
        self._mean_run_s = before_s + _MEAN_WEIGHT * (run_s - before_s)

    def _too_late(self, ask: Ask, prefill_s: float, now_s: float) -> TooLate | None:
        """Whether its deadline passes before its first token, as far as is known."""
        if ask.deadline_s == inf or not self.places:
            return None
        free = self._free(ask.priority)
        if _may_preempt(ask.priority):
            free += len(self._victims())
        turns_s = max(self._ahead(ask) - free + 1, 0) / self.places * self._mean_run_s
        needed_s, left_s = turns_s + prefill_s, ask.deadline_s - now_s
        return TooLate(needed_s, left_s) if needed_s > left_s else None

    def _ahead(self, ask: Ask) -> int:
        place = (-ask.priority, ask.deadline_s, ask.entered_s)
        return sum(
            (-other.priority, other.ask.deadline_s, other.ask.entered_s) < place
            for other in self._queue.values()
            if other.ask.id != ask.id
        )


def _may_preempt(priority: Priority) -> bool:
    return priority >= Priority.INTERACTIVE
