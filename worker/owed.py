"""What the rows of an engine owe the cache store, and when to try again. Pure.

A row is the source of what is stored of it: while it is there, what was refused can be copied
again. Times are on the monotonic clock, and given.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 10.0
BLOCKS_MAX = 64

# Why something is not stored: as the store says, or because it was not asked.
NOT_STAGED = "not_staged"  # no room in staging, or no store
HELD_BACK = "held_back"  # what it follows was refused just before
STATE_GONE = "state_gone"  # the row does not have it any more
OVERSIZE = "oversize"
PARENT_MISSING = "parent_missing"
REJECTED = "rejected"  # the store finds fault with it
REASONS = (
    "queue_full",
    "ram_full",
    "disk_full",
    "breaker_open",
    "quota",
    OVERSIZE,
    PARENT_MISSING,
    "store_lost",
    REJECTED,
    NOT_STAGED,
    HELD_BACK,
    STATE_GONE,
)
_LASTING = frozenset({OVERSIZE, REJECTED, STATE_GONE})
_LONG = frozenset({"disk_full", "breaker_open"})  # nobody who waits should wait for their end


@dataclass(frozen=True, slots=True)
class Handed:
    """A span that was handed over.

    Attributes:
        attempt: of its account.
        first: tokens before it.
        stop: tokens up to its end.
        blocks: parts that it has.
    """

    attempt: int
    is_state: bool
    first: int
    stop: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it.

    Attributes:
        reason: why it is not stored; empty if it is.
        after_s: when trying again may help, as the store said.
        kept: tokens that are stored without a gap, where what it follows is missing.
    """

    reason: str = ""
    after_s: float = 0.0
    kept: int = 0


@dataclass(slots=True, eq=False)
class Account:
    """How much of one row is stored.

    Attributes:
        stored: leading tokens that are stored or on their way.
        needs_state: whether some layers are stored whole, at a boundary.
        state: the boundary at which they are stored or on their way; 0 for none.
        wanted: leading tokens that were found worth storing.
        attempt: how often it was set back; what was handed over before that is void.
        void: attempts up to this one were refused; written by who hands over alone.
        flying: spans whose outcome is not known.
        reason: why it was refused last, or not asked.
        blocks_max: of an extent.
        is_gone: whether the row is.
        is_given_up: whether trying again helps nobody.
    """

    stored: int = 0
    needs_state: bool = False
    state: int = 0
    wanted: int = 0
    attempt: int = 0
    void: int = -1
    flying: int = 0
    reason: str = ""
    blocks_max: int = BLOCKS_MAX
    is_gone: bool = False
    is_given_up: bool = False

    @property
    def owes(self) -> bool:
        """Whether something worth storing is neither stored nor on its way."""
        lacks_state = self.needs_state and self.state < self.wanted
        return not self.is_given_up and (self.stored < self.wanted or lacks_state)

    def want(self, stop: int) -> None:
        """Find so many tokens worth storing."""
        self.wanted = max(self.wanted, stop)

    def rest_at(self, length: int) -> None:
        """Have its row stay at a length: the only place whose state it still has."""
        if self.needs_state and self.owes:
            self.wanted = length

    def hand_over(self, *, is_state: bool, first: int, stop: int, blocks: int) -> Handed:
        """Note a span that is on its way."""
        self.flying += 1
        self.stored = max(self.stored, stop)
        if is_state:
            self.state = stop
        return Handed(self.attempt, is_state, first, stop, blocks)

    def set_back(self, handed: Handed, outcome: Outcome) -> None:
        """Owe a span again, with all that was to follow it."""
        self.attempt += 1
        self.reason = outcome.reason
        self.state = 0
        if outcome.reason == PARENT_MISSING:
            self.stored = min(self.stored, outcome.kept)
        elif not handed.is_state:
            self.stored = min(self.stored, handed.first)
        if outcome.reason == OVERSIZE and handed.blocks > 1:
            self.blocks_max = handed.blocks // 2
        elif outcome.reason in _LASTING:
            self.is_given_up = True

    def cut(self, tokens: int) -> bool:
        """Lose what the row holds beyond so many tokens; says whether some of it was owed."""
        was_owed = self.owes and self.wanted > tokens
        self.stored, self.wanted = min(self.stored, tokens), min(self.wanted, tokens)
        self.state = self.state if self.state <= tokens else 0
        return was_owed

    def restart(self) -> None:
        """Have an empty row, and owe nothing."""
        self.attempt += 1
        self.stored = self.state = self.wanted = 0


@dataclass(frozen=True, slots=True)
class Debtor:
    """A row that owes.

    Attributes:
        since: its age; the largest is the newest.
    """

    slot: int
    account: Account
    since: int


def newest(debtors: Iterable[Debtor]) -> Debtor | None:
    """Choose who is saved next: the one that is asked for soonest, most likely."""
    return max(debtors, key=lambda one: one.since, default=None)


class Ledger:
    """What all rows have had stored, owe and lost, and when the store may be asked again.

    Attributes:
        stored: spans that were.
        refused: spans that were not, by reason.
        lost: rows that went and owed something, by reason.
        flying: spans whose outcome is not known.
        is_vain: whether the store takes nothing for long.
    """

    def __init__(self) -> None:
        self.stored = 0
        self.refused: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.flying = 0
        self.is_vain = False
        self._ready_s = 0.0
        self._pauses = 0
        self._reason = HELD_BACK
        self._is_hurried = False

    def wait_s(self, now_s: float) -> float:
        """How long the store is to be left alone."""
        return max(self._ready_s - now_s, 0.0)

    def start_afresh(self) -> None:
        """Ask at once, whatever was answered before."""
        self._ready_s, self._pauses, self.is_vain = 0.0, 0, False

    def hurry(self, *, is_hurried: bool) -> None:
        """Wait no longer than the store asks for while somebody waits, and no shorter otherwise."""
        self._is_hurried = is_hurried

    def hand_over(
        self, account: Account, *, is_state: bool, first: int, stop: int, blocks: int
    ) -> Handed:
        """Note a span that is on its way."""
        self.flying += 1
        return account.hand_over(is_state=is_state, first=first, stop=stop, blocks=blocks)

    def settle(self, account: Account, handed: Handed, outcome: Outcome, now_s: float) -> None:
        """Note what became of a span."""
        self.flying -= 1
        account.flying -= 1
        if not outcome.reason:
            self.stored += 1
            self.start_afresh()
        elif handed.attempt == account.attempt:
            self.refused[outcome.reason] += 1
            account.set_back(handed, outcome)
            self.is_vain = outcome.reason in _LONG
            self._pause(outcome.reason, outcome.after_s, now_s)
            if account.is_given_up:
                self.lost[outcome.reason] += 1
            elif account.is_gone:
                self.give_up(account)

    def not_staged(self, account: Account, now_s: float) -> None:
        """Note that there was no room to copy to."""
        account.reason = NOT_STAGED
        self._pause(NOT_STAGED, 0.0, now_s)

    def hold_back(self, account: Account) -> None:
        """Note that the store was not asked, for what it had answered others."""
        account.reason = self._reason

    def give_up(self, account: Account, reason: str = "") -> None:
        """Count what an account owes as lost, if anything."""
        if account.owes:
            account.is_given_up = True
            self.lost[reason or account.reason or HELD_BACK] += 1

    def gone(self, account: Account) -> None:
        """Note that a row has gone, and what it owed with it."""
        account.is_gone = True
        self.give_up(account)

    def cut(self, account: Account, tokens: int) -> None:
        """Note that a row was cut, and what it owed beyond with it."""
        if account.cut(tokens):
            self.lost[account.reason or HELD_BACK] += 1

    def _pause(self, reason: str, after_s: float, now_s: float) -> None:
        self._reason = reason
        grown_s = min(PAUSE_MIN_S * 2**self._pauses, PAUSE_MAX_S)
        self._pauses = min(self._pauses + 1, 16)
        if self._is_hurried:  # a queue moves all the time
            self._ready_s = now_s + min(after_s or grown_s, grown_s)
        else:
            self._ready_s = now_s + max(after_s, grown_s)
