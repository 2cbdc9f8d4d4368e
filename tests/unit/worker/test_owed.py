"""Accounts of rows: what is owed after which answers, and when the store is asked again."""

import pytest

from bramley.common.wire import short_name
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.worker.owed import (
    PAUSE_MAX_S,
    REASONS,
    Account,
    Debtor,
    Handed,
    Ledger,
    Outcome,
    newest,
)

FULL = Outcome("queue_full", after_s=1.0)
STORED = Outcome()


class Book:
    """A ledger and one row's account, whose spans are handed over by their places."""

    def __init__(self, *, needs_state: bool = False) -> None:
        self.ledger = Ledger()
        self.account = Account(needs_state=needs_state)
        self.now_s = 100.0

    def hand_over(self, first: int, stop: int, *, is_state: bool = False) -> Handed:
        blocks = 1 if is_state else max((stop - first) // 256, 1)
        return self.ledger.hand_over(
            self.account, is_state=is_state, first=first, stop=stop, blocks=blocks
        )

    def settle(self, handed: Handed, outcome: Outcome = STORED) -> None:
        self.ledger.settle(self.account, handed, outcome, self.now_s)


def test_what_is_wanted_is_owed_until_it_is_on_its_way() -> None:
    book = Book()
    assert not book.account.owes
    book.account.want(600)
    assert book.account.owes
    book.hand_over(0, 512)
    assert book.account.owes
    book.hand_over(512, 600)
    assert not book.account.owes
    assert book.ledger.flying == book.account.flying == 2


def test_a_refused_span_is_owed_again_with_all_that_follows_it() -> None:
    book = Book()
    book.account.want(1100)
    spans = [book.hand_over(0, 512), book.hand_over(512, 1024), book.hand_over(1024, 1100)]
    book.settle(spans[0])
    book.settle(spans[1], FULL)
    assert (book.account.stored, book.account.owes) == (512, True)
    again = book.hand_over(512, 1024)
    book.settle(spans[2], Outcome("parent_missing"))  # void: it was handed over before
    assert book.account.stored == 1024
    book.settle(again)
    book.settle(book.hand_over(1024, 1100))
    assert not book.account.owes
    assert book.ledger.refused == {"queue_full": 1}
    assert (book.ledger.stored, book.ledger.flying) == (3, 0)


def test_a_refused_state_leaves_the_blocks_before_it_stored() -> None:
    book = Book(needs_state=True)
    book.account.want(600)
    for span in (book.hand_over(0, 512), book.hand_over(512, 600)):
        book.settle(span)
    assert book.account.owes
    book.settle(book.hand_over(512, 600, is_state=True), FULL)
    assert (book.account.stored, book.account.state, book.account.owes) == (600, 0, True)
    book.settle(book.hand_over(512, 600, is_state=True))
    assert not book.account.owes


def test_a_state_is_owed_where_the_row_rests_and_not_where_it_was() -> None:
    book = Book(needs_state=True)
    book.account.want(590)
    book.account.rest_at(610)
    assert book.account.wanted == 610
    for account in (Account(wanted=590), Account(needs_state=True)):
        account.rest_at(610)
        assert account.wanted in {590, 0}


@pytest.mark.parametrize("kept", [0, 256])
def test_a_missing_parent_is_owed_from_the_first_block_that_is_not_there(kept: int) -> None:
    book = Book()
    book.account.want(600)
    book.settle(book.hand_over(0, 512))
    book.settle(book.hand_over(512, 600), Outcome("parent_missing", kept=kept))
    assert (book.account.stored, book.account.owes) == (kept, True)


def test_an_extent_that_is_too_large_is_tried_in_halves_and_then_given_up() -> None:
    book = Book()
    book.account.want(4 * 256)
    book.settle(book.hand_over(0, 4 * 256), Outcome("oversize"))
    assert (book.account.blocks_max, book.account.owes) == (2, True)
    book.settle(book.hand_over(0, 2 * 256), Outcome("oversize"))
    assert (book.account.blocks_max, book.account.owes) == (1, True)
    assert not book.ledger.lost
    book.settle(book.hand_over(0, 256), Outcome("oversize"))
    assert not book.account.owes
    assert book.ledger.lost == {"oversize": 1}
    book.ledger.gone(book.account)
    assert book.ledger.lost == {"oversize": 1}


def test_a_row_that_goes_loses_what_it_owes_and_no_more() -> None:
    paid, owing = Book(), Book()
    paid.account.want(300)
    paid.settle(paid.hand_over(0, 300))
    paid.ledger.gone(paid.account)
    assert not paid.ledger.lost
    owing.account.want(300)
    owing.settle(owing.hand_over(0, 256), FULL)
    owing.ledger.gone(owing.account)
    owing.ledger.gone(owing.account)
    assert owing.ledger.lost == {"queue_full": 1}


def test_what_is_on_its_way_when_its_row_goes_is_lost_only_if_it_is_refused() -> None:
    for outcome, lost in ((STORED, {}), (FULL, {"queue_full": 1})):
        book = Book()
        book.account.want(256)
        span = book.hand_over(0, 256)
        book.ledger.gone(book.account)
        assert not book.ledger.lost
        book.settle(span, outcome)
        assert book.ledger.lost == lost


def test_a_row_that_is_cut_loses_what_it_owed_beyond() -> None:
    book = Book()
    book.account.want(700)
    book.settle(book.hand_over(0, 512))
    book.ledger.not_staged(book.account, book.now_s)
    book.ledger.cut(book.account, 600)
    assert book.ledger.lost == {"not_staged": 1}
    assert (book.account.stored, book.account.wanted, book.account.owes) == (512, 600, True)
    book.ledger.cut(book.account, 300)
    assert (book.account.stored, book.account.owes) == (300, False)


def test_a_row_that_starts_over_owes_nothing_and_hears_nothing_of_before() -> None:
    book = Book()
    book.account.want(300)
    span = book.hand_over(0, 256)
    book.account.restart()
    assert not book.account.owes
    book.account.want(300)
    book.hand_over(0, 256)
    book.settle(span, FULL)
    assert book.account.stored == 256


def test_the_store_is_left_alone_as_long_as_it_asks_and_longer_each_time() -> None:
    book = Book()
    ledger, account = book.ledger, book.account
    assert ledger.wait_s(book.now_s) == 0.0
    account.want(300)
    book.settle(book.hand_over(0, 256), FULL)
    assert ledger.wait_s(book.now_s) == 1.0
    assert ledger.wait_s(book.now_s + 0.75) == 0.25
    waits: list[float] = []
    for _ in range(12):
        ledger.not_staged(account, book.now_s)
        waits.append(ledger.wait_s(book.now_s))
    assert waits == sorted(waits)
    assert waits[-1] == PAUSE_MAX_S
    book.settle(book.hand_over(0, 256))
    assert ledger.wait_s(book.now_s) == 0.0


def test_who_is_held_back_has_the_reason_of_who_was_refused() -> None:
    book, other = Book(), Account(wanted=300)
    book.account.want(256)
    book.settle(book.hand_over(0, 256), FULL)
    book.ledger.hold_back(other)
    book.ledger.gone(other)
    assert book.ledger.lost == {"queue_full": 1}


def test_while_somebody_waits_the_store_is_asked_more_often() -> None:
    book = Book()
    book.account.want(300)
    book.ledger.hurry(is_hurried=True)
    waits: list[float] = []
    for _ in range(6):
        book.settle(book.hand_over(0, 256), FULL)
        waits.append(book.ledger.wait_s(book.now_s))
    assert waits[0] < 0.2
    assert waits[-1] == pytest.approx(1.0)
    book.ledger.hurry(is_hurried=False)
    book.settle(book.hand_over(0, 256), FULL)
    assert book.ledger.wait_s(book.now_s) > 1.0


def test_who_waits_waits_for_a_full_queue_and_not_for_a_full_disk() -> None:
    for reason, is_vain in (("queue_full", False), ("disk_full", True), ("breaker_open", True)):
        book = Book()
        book.account.want(256)
        book.settle(book.hand_over(0, 256), Outcome(reason))
        assert book.ledger.is_vain == is_vain
        book.ledger.start_afresh()
        assert not book.ledger.is_vain


def test_the_newest_row_is_saved_first() -> None:
    rows = [Debtor(slot, Account(), since) for slot, since in ((0, 4), (1, 9), (2, 1))]
    assert newest(rows) is rows[1]
    assert newest([]) is None


def test_every_reason_of_the_store_is_known() -> None:

    kinds = pb.ReserveResponse.Refusal
    told = {short_name(kinds, value).lower() for value in kinds.values() if value}
    assert told <= set(REASONS)
