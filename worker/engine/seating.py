"""Carries out who sits where: rows for seats, restored, copied, parked, and given back.

Everything that changes a seat goes through here, so that slots and rows always agree. Runs on
the engine's thread, between two forwards.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx

from bramley.common.errors import DeviceOom
from bramley.common.logs import facts
from bramley.worker.cache.saved import Restore, Saving
from bramley.worker.cache.snapshot import copy_in, fits
from bramley.worker.engine import faults
from bramley.worker.engine.cohort import IDLE_BYTES_MAX, Cohort
from bramley.worker.engine.grouping import choose_cohort
from bramley.worker.engine.outputs import Seated
from bramley.worker.engine.sharing import Source, find_source
from bramley.worker.engine.slots import Slots
from bramley.worker.owed import Ledger
from bramley.worker.request import Phase, Request

log = logging.getLogger(__name__)

HEADROOM_TOKENS = 256  # of an answer, for which a seat needs memory at once


class Seating:
    """Seats and the cohorts' rows behind them.

    Args:
        slots: all seats.
        make_cohort: makes an empty one.
        waste_columns: padding that a cohort may read before rows are better apart.
        bytes_max: of all rows' state; None for as much as there is.
        ledger: of what rows owe the store.
        parked_bytes: of what the parked rows hold.
    """

    def __init__(
        self,
        slots: Slots,
        make_cohort: Callable[[], Cohort],
        waste_columns: int,
        bytes_max: int | None,
        ledger: Ledger,
        parked_bytes: int = 1 << 30,
    ) -> None:
        self.slots = slots
        self._ledger = ledger
        self._make_cohort = make_cohort
        self._waste_columns = waste_columns
        self._bytes_max = bytes_max
        self._parked_bytes = parked_bytes
        self.cohorts: dict[int, Cohort] = {0: make_cohort()}
        self.aside: Cohort | None = None
        self._number: dict[int, int] = {}

    @property
    def numbers(self) -> dict[int, int]:
        """Each slot's cohort, by its number."""
        return self._number

    @property
    def nbytes(self) -> int:
        """Bytes of all rows' state, spare room included, and of those that are aside."""
        aside = self.aside.nbytes if self.aside is not None else 0
        return aside + sum(cohort.nbytes for cohort in self.cohorts.values())

    def cohort(self, slot: int) -> Cohort:
        """The cohort that a slot's row is in."""
        return self.cohorts[self._number[slot]]

    def has_room(self, request: Request) -> bool:
        """Make room for a request's row, as far as nobody who runs has to pay for it.

        Returns:
            Whether there is room; if not, it must wait for others to end.

        Raises:
            DeviceOom: it does not fit even alone.
        """
        if self._bytes_max is None:
            return True
        coming = min(HEADROOM_TOKENS, request.stop.max_tokens - len(request.output))
        columns = len(request.prompt) + len(request.output) + coming
        while True:
            number, rows = self._target(request)
            if not self._make_room(number, columns, rows):
                break
            if self._target(request) == (number, rows):  # it may have cost the row it counted on
                return True
        if self.slots.seated:
            return False
        raise self.too_large(columns)

    def can_grow(self, number: int, columns: int) -> bool:
        """Make room for a cohort's rows to reach so many columns, as ``has_room`` does."""
        return self._make_room(number, columns, rows=0)

    def too_large(self, tokens: int) -> DeviceOom:
        """What a request is told that does not fit even alone."""
        return DeviceOom(
            f"the state of {tokens} tokens takes more memory than the {self._bytes_max} bytes "
            "that its settings leave to rows"
        )

    def seat(self, request: Request) -> Seated:
        """Give a request a seat, and its row what is computed of its sequence already."""
        source = self._source(request)
        request.enter(Phase.SEATED)
        began_s = time.monotonic()
        if source is None:
            self._sit_apart(request)
            if request.restore is not None:
                self._restore(request, request.restore)
            restored, parked = request.computed, 0
        else:
            self._sit_with(request, source)
            restored, parked = 0, source.tokens
        request.release()
        now_s = time.monotonic()
        return Seated(request.id, now_s, restored, now_s - began_s, parked)

    def park(self, request: Request) -> None:
        """Leave an ended request's row on its seat, until the seat is needed."""
        if not request.scope or request.computed == 0:
            self.lose_debt(request.saving)
            self.leave(request)
            return
        if request.saving is not None:
            request.saving.account.rest_at(request.computed)
        cohort = self.cohort(request.slot)
        if cohort.row(request.slot) < cohort.decoding:
            cohort.stop_decoding(request.slot)
        self.slots.park(request)
        while self._parked_now() > self._parked_bytes:
            self.drop(self.slots.parked[0].slot)

    def leave(self, request: Request) -> None:
        """Take a request's seat and row back."""
        slot = request.slot
        if slot >= 0:
            self.slots.leave(request)
            self._free_row(slot)

    def lose_debt(self, saving: Saving | None) -> None:
        """Note that a row goes, and with it what it owed the store."""
        if saving is not None:
            self._ledger.gone(saving.account)

    def set_aside(self, make: Callable[[], Cohort], rows: int, columns: int) -> Cohort | None:
        """Make so many rows that are nobody's seats, of so many columns, in a cohort of their own.

        Returns:
            The cohort, which is gone once ``aside`` is another; None without room for it.
        """
        self.drop_aside()
        if not self._make_room(None, columns, rows):
            return None
        cohort = self.aside = make()
        for row in range(rows):
            cohort.join(row)
        for layer in cohort.layers:
            layer.reserve(rows, columns)
        return cohort

    def drop_aside(self) -> None:
        """Free the rows that are nobody's seats."""
        if self.aside is not None:
            self.aside.reset()  # now, not when garbage is collected
            self.aside = None

    def drop(self, slot: int) -> None:
        """Free a parked row, and the memory that only it needed."""
        self.lose_debt(self.slots.clear(slot).saving)
        cohort = self.cohort(slot)
        self._free_row(slot)
        cohort.fit()

    def release_memory(self) -> None:
        """Give back all that no running request needs."""
        self.drop_aside()
        for parked in self.slots.parked:
            self.drop(parked.slot)
        for cohort in self.cohorts.values():
            cohort.fit()
        mx.clear_cache()

    def lose(self, number: int) -> Sequence[Request]:
        """Empty a cohort whose state is unknown; return the requests that lost their seats."""
        slots = [slot for slot, its in self._number.items() if its == number]
        parked = {row.slot for row in self.slots.parked}
        lost: list[Request] = []
        for slot in slots:
            if slot in parked:
                self.lose_debt(self.slots.clear(slot).saving)
            else:
                lost.append(self.slots[slot])
                self.lose_debt(lost[-1].saving)
                self.slots.leave(lost[-1])
            del self._number[slot]
        self.cohorts[number].reset()
        self._drop_empty(number)
        return lost

    def rest(self) -> None:
        """Check what an idle engine must be, and give back what a long context took."""
        self.slots.check()
        assert not self.slots.seated, repr(self.slots)
        assert self.aside is None, repr(self.aside)
        assert len(self._number) == len(self.slots.parked), repr(self.slots)
        for cohort in self.cohorts.values():
            assert cohort.decoding == 0, repr(cohort)
        if self.nbytes > IDLE_BYTES_MAX:
            for cohort in self.cohorts.values():
                cohort.fit()
            mx.clear_cache()

    def _source(self, request: Request) -> Source | None:
        if request.wants_prompt_logprobs:
            return None
        return find_source(
            request,
            self.slots.seated,
            self.slots.parked,
            lambda slot, tokens: self.cohort(slot).can_cut(slot, tokens),
        )

    def _sit_with(self, request: Request, source: Source) -> None:
        cohort, number = self.cohort(source.slot), self._number[source.slot]
        if source.is_parked:
            parked = self.slots.resume(request, source.slot)
            cohort.cut(parked.slot, source.tokens)
            self._inherit(request, parked.saving, source.tokens)
        else:
            slot = self._take_seat(request)
            self._number[slot] = number
            cohort.join(slot)
            cohort.copy(source.slot, slot, source.tokens)
        request.computed = source.tokens

    def _inherit(self, request: Request, saving: Saving | None, tokens: int) -> None:
        """Let a request's row have the account of the parked one that it was."""
        if saving is None:
            return
        self._ledger.cut(saving.account, tokens)
        if request.saving is None:
            self.lose_debt(saving)
            return
        found = request.saving.account.stored
        saving.account.stored = max(saving.account.stored, min(found, tokens))
        # Anew: what is on its way of the row that it had before is for that row's account.
        request.saving = replace(request.saving, account=saving.account)

    def _sit_apart(self, request: Request) -> None:
        slot = self._take_seat(request)
        number = self._choose(request)
        if number is None:
            taken = self.cohorts.keys()
            number = next(free for free in range(len(taken) + 1) if free not in taken)
            self.cohorts[number] = self._make_cohort()
        self._number[slot] = number
        self.cohorts[number].join(slot)

    def _target(self, request: Request) -> tuple[int | None, int]:
        """The cohort that a request would join, if it is there yet, and with how many rows more."""
        source = self._source(request)
        if source is None:
            return self._choose(request), 1
        return self._number[source.slot], 0 if source.is_parked else 1

    def _choose(self, request: Request) -> int | None:
        lengths = {
            number: [max(self._length(slot), cohort.length(slot)) for slot in cohort.slots]
            for number, cohort in self.cohorts.items()
        }
        length = len(request.prompt) + len(request.output)
        return choose_cohort(lengths, length, self._waste_columns)

    def _take_seat(self, request: Request) -> int:
        if not self.slots.free:
            oldest = self.slots.parked[0].slot
            self.lose_debt(self.slots.clear(oldest).saving)
            self._free_row(oldest)
        return self.slots.seat(request)

    def _parked_now(self) -> int:
        return sum(self.cohort(row.slot).bytes_for(1, len(row.tokens)) for row in self.slots.parked)

    def _length(self, slot: int) -> int:
        parked = {row.slot for row in self.slots.parked}
        return 0 if slot in parked else len(self.slots[slot].prompt)

    def _free_row(self, slot: int) -> None:
        number = self._number.pop(slot)
        try:
            self.cohorts[number].leave(slot)
        except RuntimeError as error:
            if not faults.is_lack_of_memory(error):
                raise
            mx.clear_cache()
            self.cohorts[number].leave(slot)
        self._drop_empty(number)

    def _drop_empty(self, number: int) -> None:
        # The first stays: its room serves the next request.
        if number and not self.cohorts[number].slots:
            self.cohorts.pop(number).reset()  # now, not when garbage is collected

    def _make_room(self, number: int | None, columns: int, rows: int) -> bool:
        """Make room for so many rows more in a cohort, or in a new one, of so many columns."""
        if self._bytes_max is None:
            return True
        while True:
            cohort = self.cohorts.get(number) if number is not None else None
            if cohort is None:
                taken, after = self.nbytes, self.cohorts[0].bytes_for(max(rows, 1), columns)
            else:
                taken, wanted = self.nbytes - cohort.nbytes, len(cohort.slots) + rows
                after = cohort.bytes_after(wanted, columns)
                if taken + after > self._bytes_max:
                    longest = max(cohort.table.lengths, default=0)
                    after = cohort.bytes_for(wanted, max(columns, longest))
                    if taken + after <= self._bytes_max:
                        cohort.fit(wanted, columns)
            if taken + after <= self._bytes_max:
                return True
            if not self._give_something_back():
                return False

    def _give_something_back(self) -> bool:
        """Let go of spare room, else of the oldest parked row, else of the rows aside."""
        before = self.nbytes
        for cohort in self.cohorts.values():
            cohort.fit()
        if self.nbytes < before:
            return True
        if self.slots.parked:
            self.drop(self.slots.parked[0].slot)
            return True
        was_aside = self.aside is not None
        self.drop_aside()
        return was_aside

    def _restore(self, request: Request, restore: Restore) -> None:
        """Copy a stored prefix into the request's row, which is empty.

        All layers start from it or none: what is not as it should be is not used, and the row
        stays empty. Nor is a prefix whose memory was taken back meanwhile.
        """
        cohort = self.cohort(request.slot)
        if not fits(cohort.layers, restore):
            log.warning("a stored prefix does not fit", extra=facts(tokens=restore.tokens))
            return
        row = cohort.row(request.slot)
        try:
            copy_in(cohort.layers, row, restore)
        finally:
            cohort.table.imported(row, restore.tokens)  # or nobody would clean the seat
        request.computed = restore.tokens
        if not restore.is_held():
            cohort.empty(request.slot)
            request.computed = 0
