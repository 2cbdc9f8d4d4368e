"""What goes first when room is short, and when a failed disk is tried again."""

from collections.abc import Callable

from bramley.cachestore.arena import Run
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.policy import BREAKER_MAX_S, Breaker, disk_victim, ram_victim
from bramley.cachestore.sessions import Rank
from bramley.cachestore.settings import StoreSettings, disk_budget, ram_budget
from support.objects import catalogue, entry
from support.store import ids

GB = 1 << 30


def stored(*entries: Entry, on_disk: bool = True) -> Catalogue:
    made = catalogue(*entries)
    for one in entries:
        made.came_to_ram(one, Run(1, 0, 1))
        if on_disk:
            made.came_to_disk(one)
    return made


def ram(
    made: Catalogue,
    *leased: str,
    may_lose: bool = False,
    rank: Callable[[Entry], Rank] = lambda _: Rank.FREE,
) -> Entry | None:
    return ram_victim(made, lambda name: name in leased, lambda _: may_lose, rank, 10.0)


def disk(
    made: Catalogue, *leased: str, rank: Callable[[Entry], Rank] = lambda _: Rank.FREE
) -> Entry | None:
    return disk_victim(made, lambda name: name in leased, rank, 10.0)


def test_the_least_recently_used_leaves_ram_first() -> None:
    a, b = entry(ids(256)), entry(ids(256, seed=1))
    made = stored(a, b)
    assert ram(made) is a
    made.touch(a, 1.0)
    assert ram(made) is b


def test_what_is_read_held_or_pinned_stays() -> None:
    a, b, c = entry(ids(256)), entry(ids(256, seed=1)), entry(ids(256, seed=2))
    made = stored(a, b, c)
    b.holds = 1
    c.pinned_until_s = 11.0
    assert ram(made, a.id) is None
    assert disk(made, a.id) is None
    c.pinned_until_s = 10.0
    assert ram(made, a.id) is c
    assert disk(made, a.id) is c


def test_what_is_nowhere_else_stays_unless_it_may_be_lost() -> None:
    a = entry(ids(256))
    made = stored(a, on_disk=False)
    assert ram(made) is None
    assert ram(made, may_lose=True) is a


def test_an_object_goes_for_good_only_when_nothing_follows_it() -> None:
    trunk, branch = entry(ids(512)), entry(ids(768), 2)
    unwritten = stored(trunk, branch, on_disk=False)
    assert ram(unwritten, may_lose=True) is branch
    assert ram(unwritten, branch.id, may_lose=True) is None
    written = stored(trunk, branch)
    assert ram(written) is trunk  # a copy only
    assert disk(written) is branch
    written.remove(branch)
    assert disk(written) is trunk


def test_of_open_sessions_the_older_leave_after_all_others_and_the_newest_last() -> None:
    newest, older, others = (entry(ids(256, seed=seed)) for seed in range(3))
    made = stored(newest, older, others)
    ranks = {newest.id: Rank.NEWEST, older.id: Rank.OF_SESSION, others.id: Rank.FREE}

    def rank(one: Entry) -> Rank:
        return ranks[one.id]

    for expected in (others, older, newest):
        assert ram(made, rank=rank) is expected
        assert disk(made, rank=rank) is expected
        made.remove(expected)
    assert ram(made, rank=rank) is None


def test_of_one_rank_the_least_recently_used_leaves_first() -> None:
    a, b = entry(ids(256)), entry(ids(256, seed=1))
    made = stored(a, b)
    made.touch(a, 1.0)
    assert ram(made, rank=lambda _: Rank.NEWEST) is b
    assert disk(made, rank=lambda _: Rank.OF_SESSION) is b


def test_a_breaker_waits_twice_as_long_each_time() -> None:
    breaker = Breaker()
    assert not breaker.has_tripped
    waits: list[float] = []
    for _ in range(9):
        breaker.trip(100.0)
        waits.append(breaker.remaining_s(100.0))
    assert waits == [5, 10, 20, 40, 80, 160, BREAKER_MAX_S, BREAKER_MAX_S, BREAKER_MAX_S]
    assert breaker.remaining_s(399.0) == 1.0
    assert breaker.remaining_s(500.0) == 0.0
    assert breaker.has_tripped
    breaker.close()
    assert not breaker.has_tripped
    breaker.trip(0.0)
    assert breaker.remaining_s(0.0) == 5.0


def test_tiers_take_a_tenth_within_bounds_unless_told() -> None:
    usual = StoreSettings()
    assert ram_budget(usual, 4 * GB) == GB
    assert ram_budget(usual, 64 * GB) == 64 * GB // 10
    assert ram_budget(usual, 512 * GB) == 16 * GB
    assert ram_budget(StoreSettings(ram_bytes=5), 64 * GB) == 5
    assert disk_budget(usual, 200 * GB) == 20 * GB
    assert disk_budget(usual, 4000 * GB) == 100 * GB
    assert disk_budget(StoreSettings(disk_bytes=7), GB) == 7
