"""What goes first when room is short, and how few are looked at to find it."""

from collections.abc import Callable

import pytest

from bramley.cachestore.arena import Run
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.eviction import Order
from bramley.cachestore.sessions import Rank
from support.objects import ROOT, entry
from support.store import ids


class Tiers:
    """Objects in RAM, and on disk too unless told otherwise.

    Attributes:
        looked_at: how many the last choice looked at.
    """

    def __init__(
        self,
        *entries: Entry,
        on_disk: bool = True,
        rank: Callable[[Entry], Rank] = lambda _: Rank.FREE,
    ) -> None:
        self.catalogue = Catalogue()
        self.order = Order(self.catalogue, rank)
        self.looked_at = 0
        for one in entries:
            self.take_in(one, on_disk=on_disk)

    def take_in(self, one: Entry, *, on_disk: bool = True) -> None:
        self.catalogue.add(one)
        self.order.used(one, 0.0)
        self.catalogue.came_to_ram(one, Run(1, 0, 1))
        if on_disk:
            self.catalogue.came_to_disk(one)

    def ram(self, *leased: str, may_lose: bool = False) -> Entry | None:
        return self.order.ram_victim(self._free(leased), may_lose=may_lose)

    def disk(self, *leased: str) -> Entry | None:
        return self.order.disk_victim(self._free(leased))

    def _free(self, leased: tuple[str, ...]) -> Callable[[Entry], bool]:
        self.looked_at = 0

        def is_free(one: Entry) -> bool:
            self.looked_at += 1
            return one.id not in leased

        return is_free


def test_the_least_recently_used_leaves_first() -> None:
    a, b = entry(ids(256)), entry(ids(256, seed=1))
    tiers = Tiers(a, b)
    assert (tiers.ram(), tiers.disk()) == (a, a)
    tiers.order.used(a, 1.0)
    assert (tiers.ram(), tiers.disk()) == (b, b)


def test_what_somebody_holds_stays() -> None:
    a, b = entry(ids(256)), entry(ids(256, seed=1))
    tiers = Tiers(a, b)
    assert (tiers.ram(a.id), tiers.disk(a.id)) == (b, b)
    assert (tiers.ram(a.id, b.id), tiers.disk(a.id, b.id)) == (None, None)


def test_what_is_nowhere_else_stays_unless_it_may_be_lost() -> None:
    a = entry(ids(256))
    tiers = Tiers(a, on_disk=False)
    assert tiers.ram() is None
    assert tiers.ram(may_lose=True) is a
    a.fate = "failed"
    tiers.order.update(a)
    assert tiers.ram() is a


def test_an_object_goes_for_good_only_when_nothing_follows_it() -> None:
    trunk, branch = entry(ids(512)), entry(ids(768), 2)
    unwritten = Tiers(trunk, branch, on_disk=False)
    assert unwritten.ram(may_lose=True) is branch
    assert unwritten.ram(branch.id, may_lose=True) is None
    written = Tiers(entry(ids(512)), branch := entry(ids(768), 2))
    trunk = next(one for one in written.catalogue.entries.values() if one is not branch)
    assert written.ram() is trunk  # a copy only
    assert written.disk() is branch
    written.catalogue.remove(branch)
    assert written.disk() is trunk


def test_a_state_keeps_the_blocks_that_it_follows() -> None:
    line, state = entry(ids(512)), entry(ids(600), 2, kind="state", group="state")
    tiers = Tiers(line, state)
    tiers.order.used(state, 1.0)
    assert tiers.disk() is state
    tiers.catalogue.remove(state)
    assert tiers.disk() is line


def test_of_open_sessions_the_older_leave_after_all_others_and_the_newest_last() -> None:
    newest, older, others = (entry(ids(256, seed=seed)) for seed in range(3))
    ranks = {newest.id: Rank.NEWEST, older.id: Rank.OF_SESSION, others.id: Rank.FREE}
    tiers = Tiers(newest, older, others, rank=lambda one: ranks[one.id])
    for expected in (others, older, newest):
        assert (tiers.ram(), tiers.disk()) == (expected, expected)
        tiers.catalogue.remove(expected)
    assert tiers.ram() is None


def test_whoever_changes_rank_changes_place() -> None:
    a, b = entry(ids(256)), entry(ids(256, seed=1))
    ranks = {a.id: Rank.NEWEST, b.id: Rank.FREE}
    tiers = Tiers(a, b, rank=lambda one: ranks[one.id])
    assert tiers.disk() is b
    ranks[b.id] = Rank.NEWEST
    tiers.order.update_all([b.id, "gone"])
    assert tiers.disk() is a


def test_what_takes_long_to_compute_stays_longer() -> None:
    slow = entry(ids(256), root=b"s" * 32)
    fast = [entry(ids(256, seed=seed), root=b"f" * 32) for seed in range(8)]
    tiers = Tiers()
    tiers.order.set_rate(b"s" * 32, 100.0)
    tiers.order.set_rate(b"f" * 32, 1000.0)
    tiers.take_in(slow)
    for one in fast:
        tiers.take_in(one)
    for expected in fast:
        assert tiers.disk() is expected
        tiers.catalogue.remove(expected)


def test_what_takes_much_room_leaves_sooner() -> None:
    small = entry(ids(256))
    tiers = Tiers(small, large := entry(ids(512, seed=1)))
    tail = entry(ids(10, seed=2), kind="tail")  # as much room as a block, for ten tokens
    tiers.take_in(tail)
    assert tiers.disk() is tail
    tiers.catalogue.remove(tail)
    assert tiers.disk() is small
    tiers.catalogue.remove(small)
    assert tiers.disk() is large


def test_what_was_used_often_stays_longer_but_not_for_ever() -> None:
    often = entry(ids(256))
    tiers = Tiers(often)
    for _ in range(6):
        tiers.order.used(often, 0.0)
    left = 0
    for seed in range(1, 40):  # a tier that holds two
        tiers.take_in(entry(ids(256, seed=seed)))
        victim = tiers.disk()
        assert victim is not None
        tiers.catalogue.remove(victim)
        if victim is often:
            break
        left += 1
    assert left == 3  # eight uses count, and two of whoever is new


def test_a_rate_that_changes_prices_what_is_there_a_few_at_a_time() -> None:
    slow = entry(ids(256), root=b"s" * 32)
    tiers = Tiers(slow, entry(ids(256)))
    assert tiers.disk() is slow
    tiers.order.set_rate(b"s" * 32, 10.0)
    tiers.order.price_some()
    assert tiers.disk() is not slow


def test_what_no_prompt_reaches_leaves_first_until_it_is_reached_again() -> None:
    one, two, three = entry(ids(256)), entry(ids(512), 1), entry(ids(768), 2)
    other = entry(ids(256, seed=1))
    tiers = Tiers(other, one, two, three)
    assert tiers.disk() is other
    tiers.catalogue.remove(two)  # it was damaged
    assert three.is_orphan
    assert tiers.disk() is three
    tiers.take_in(entry(ids(512), 1))
    assert not three.is_orphan
    assert tiers.disk() is other


def test_a_state_without_its_blocks_is_an_orphan_where_the_model_needs_them() -> None:
    state = entry(ids(600), 2, kind="state", group="state")
    tiers = Tiers(state)
    assert not state.is_orphan  # nobody has said yet what it follows
    tiers.catalogue.require(ROOT, ["kv"])
    assert state.is_orphan
    tiers.take_in(entry(ids(512)))
    assert not state.is_orphan


@pytest.mark.parametrize("objects", [100, 2000])
def test_a_choice_looks_at_the_victim_and_at_those_held_before_it(objects: int) -> None:
    entries = [entry(ids(256, seed=seed)) for seed in range(objects)]
    tiers = Tiers(*entries, rank=lambda one: Rank(1 + int(one.id, 16) % 3))
    for choose in (tiers.ram, tiers.disk):
        first = choose()
        assert first is not None
        assert tiers.looked_at == 1
        second = choose(first.id)
        assert second is not None
        assert second is not first
        assert tiers.looked_at == 2
