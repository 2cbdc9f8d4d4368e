"""Copies rows into staging: at once where they are worth storing, later where that failed.

What is decided is in worker/owed.py. Runs on the engine's thread, between two forwards.
"""

import contextlib
import logging
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from bramley.cachestore.objects import BLOCK
from bramley.common.logs import facts
from bramley.worker.cache.contract import CannotExport, LayerState
from bramley.worker.cache.saved import Saving, Staged
from bramley.worker.cache.snapshot import Span, copy_out, span_bytes, spans
from bramley.worker.engine.counters import Counters
from bramley.worker.engine.outputs import Output, Saved
from bramley.worker.engine.seating import Seating
from bramley.worker.owed import STATE_GONE, Account, Debtor, Ledger, newest
from bramley.worker.request import Request

log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20  # copied between two looks at the mail: some milliseconds


@dataclass(slots=True)
class _Row:
    """A row that owes, and who it is.

    Attributes:
        length: tokens that it holds.
        stop: tokens to be stored.
        tokens: the first so many.
    """

    debtor: Debtor
    request_id: str
    saving: Saving
    length: int
    stop: int
    tokens: Callable[[int], Sequence[int]]


@dataclass(slots=True)
class _Copying:
    """An object that is copied piece by piece; ``done`` parts of it are."""

    account: Account
    attempt: int
    length: int
    span: Span
    staged: Staged
    done: int = 0


class Saver:
    """Saves rows.

    Args:
        seating: whose rows they are.
        ledger: of what they owe.
        counters: to be kept.
        outputs: takes what was saved.
    """

    def __init__(
        self, seating: Seating, ledger: Ledger, counters: Counters, outputs: list[Output]
    ) -> None:
        self._seating = seating
        self._ledger = ledger
        self._counters = counters
        self._outputs = outputs
        self._copying: _Copying | None = None

    @property
    def owed(self) -> int:
        """How many rows owe something."""
        slots = self._seating.slots
        savings = [one.saving for one in [*slots.seated, *slots.parked]]
        return sum(saving is not None and saving.account.owes for saving in savings)

    def save(self, request: Request, stop: int, worth: int) -> None:
        """Copy what is not stored of a row's first tokens, as far as there is room.

        Args:
            request: whose row it is.
            stop: how many.
            worth: new ones that make it worth its cost.
        """
        saving = request.saving
        if saving is None or stop - saving.account.stored < worth:
            return
        cohort, account = self._seating.cohort(request.slot), saving.account
        assert stop <= cohort.length(request.slot)
        if not cohort.is_sound(request.slot):
            return  # its next token will tell it
        account.want(stop)
        now_s = time.monotonic()
        # A state cannot be copied later.
        if self._ledger.wait_s(now_s) and not saving.pauses:
            self._ledger.hold_back(account)
            return
        for span in _missing(cohort.layers, saving, stop):
            staged = saving.stage(span_bytes(cohort.layers, span))
            if staged is None:
                self._ledger.not_staged(account, now_s)
                break
            try:
                with self._timed():
                    copy_out(cohort.layers, cohort.row(request.slot), span, staged.view)
            except CannotExport as error:
                staged.release()
                log.debug("no state is kept", extra=facts(tokens=stop, error=error))
                break
            except BaseException:
                staged.release()
                raise
            self._hand_over(request.id, saving, span, staged, request.tokens(0, span.stop))

    @property
    def can_go_on(self) -> bool:
        """Whether something is owed that can be copied, now or later."""
        return self._next() is not None

    def wait_s(self, now_s: float) -> float | None:
        """Say in how many seconds ``go_on`` has something to do; None until news come."""
        if self._copying is not None:
            return 0.0
        if self._ledger.flying or self._next() is None:
            return None  # one at a time
        return self._ledger.wait_s(now_s)

    def cohort_number(self, now_s: float) -> int | None:
        """Say from which cohort ``go_on`` would copy now, if there is anything to do."""
        row = self._next() if self.wait_s(now_s) == 0.0 else None
        if row is None:
            self._abandon()
            return None
        return self._seating.numbers[row.debtor.slot]

    def go_on(self) -> None:
        """Copy a piece of what is owed; an object of which that was the last is handed over."""
        row = self._next()
        if row is None:
            return
        copying = self._copying
        if copying is not None and not _is_of(copying, row):
            self._abandon()
            copying = None
        copying = copying or self._begin(row)
        if copying is None:
            return
        cohort = self._seating.cohort(row.debtor.slot)
        try:
            with self._timed():
                _copy_piece(cohort.layers, cohort.row(row.debtor.slot), copying)
        except CannotExport:
            self._abandon()
            self._ledger.give_up(copying.account, STATE_GONE)
            return
        except BaseException:
            self._abandon()
            raise
        if copying.done == len(copying.span.parts):
            self._copying = None
            tokens = row.tokens(copying.span.stop)
            self._hand_over(row.request_id, row.saving, copying.span, copying.staged, tokens)

    def put_off(self) -> None:
        """Try again later, after a copy that failed."""
        row = self._next()
        self._abandon()
        if row is not None:
            self._ledger.not_staged(row.debtor.account, time.monotonic())

    def _begin(self, row: _Row) -> _Copying | None:
        cohort, account = self._seating.cohort(row.debtor.slot), row.debtor.account
        missing = _missing(cohort.layers, row.saving, row.stop)
        if not missing or not cohort.is_sound(row.debtor.slot):
            self._ledger.give_up(account, STATE_GONE)
            return None
        staged = row.saving.stage(span_bytes(cohort.layers, missing[0]))
        if staged is None:
            self._ledger.not_staged(account, time.monotonic())
            return None
        self._copying = _Copying(account, account.attempt, row.length, missing[0], staged)
        return self._copying

    def _abandon(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.staged.release()

    def _hand_over(
        self, request_id: str, saving: Saving, span: Span, staged: Staged, tokens: Sequence[int]
    ) -> None:
        handed = self._ledger.hand_over(
            saving.account,
            is_state=span.kind == "state",
            first=span.first,
            stop=span.stop,
            blocks=len(span.parts),
        )
        ids = array("I", tokens).tobytes()
        self._outputs.append(Saved(request_id, span, staged, ids, saving, handed))

    @contextlib.contextmanager
    def _timed(self) -> Generator[None]:
        began_s = time.monotonic()
        yield
        took_s = time.monotonic() - began_s
        self._counters.saving_s += took_s
        self._counters.saving_longest_s = max(self._counters.saving_longest_s, took_s)

    def _next(self) -> _Row | None:
        rows = {row.debtor.slot: row for row in self._rows()}
        chosen = newest(row.debtor for row in rows.values())
        return rows[chosen.slot] if chosen is not None else None

    def _rows(self) -> Iterator[_Row]:
        """Walk the rows that owe and can be copied now."""
        slots = self._seating.slots
        for parked in slots.parked:
            if parked.saving is not None and parked.saving.account.owes:
                yield _Row(
                    Debtor(parked.slot, parked.saving.account, parked.since),
                    "",
                    parked.saving,
                    len(parked.tokens),
                    parked.saving.account.wanted,
                    lambda stop, held=parked.tokens: held[:stop],
                )
        for request in slots.seated:
            # Where a state is needed, the row has gone on from where it was.
            saving = request.saving
            if saving is not None and saving.account.owes and not saving.pauses:
                yield _Row(
                    Debtor(request.slot, saving.account, 0),
                    request.id,
                    saving,
                    request.computed,
                    saving.account.wanted,
                    lambda stop, held=request: held.tokens(0, stop),
                )


def _missing(layers: Sequence[LayerState], saving: Saving, stop: int) -> list[Span]:
    """Cut what is not stored of a row's first tokens into objects, in order."""
    account = saving.account
    has_state = not account.needs_state or account.state >= stop
    stored = account.stored if has_state else min(account.stored, stop - 1)
    blocks = min(saving.extent_blocks, account.blocks_max)
    cut = spans(layers, stored, stop, blocks)
    return [one for one in cut if one.kind == "state" or one.stop > account.stored]


def _is_of(copying: _Copying, row: _Row) -> bool:
    """Whether a row is the one that is being copied, and still has what is copied of it."""
    account = row.debtor.account
    is_same = copying.account is account and copying.attempt == account.attempt
    is_there = copying.span.stop <= row.length and account.stored < copying.span.stop
    if copying.span.kind == "state":
        return is_same and copying.length == row.length
    return is_same and is_there


def _copy_piece(layers: Sequence[LayerState], row: int, copying: _Copying) -> None:
    span, done = copying.span, copying.done
    if span.kind != "extent":
        copy_out(layers, row, span, copying.staged.view)
        copying.done = len(span.parts)
        return
    size = span_bytes(layers, Span("extent", 0, (BLOCK,)))
    parts = span.parts[done : done + max(PIECE_BYTES // size, 1)]
    piece = Span("extent", span.first + done * BLOCK, parts)
    copy_out(layers, row, piece, copying.staged.view[done * size :])
    copying.done += len(parts)
