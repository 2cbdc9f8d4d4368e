"""Leases: what they pin, and every way in which they end."""

from bramley.cachestore.arena import Run
from bramley.cachestore.leases import Leases, Wish, WriteLease

WISH = Wish(
    root=b"r", kind="tail", group="kv", parent=b"r", chain=b"", first_token=0, tokens=1, nbytes=1
)


def written(leases: Leases, connection: str = "a", now_s: float = 0.0) -> WriteLease:
    return leases.write(connection, WISH, Run(1, 0, 1), now_s)


def test_an_object_is_pinned_until_its_last_lease_ends() -> None:
    leases = Leases(60.0, epoch=1)
    one, other = leases.read("a", ["x", "y"], 0.0), leases.read("b", ["x"], 0.0)
    leases.release(one.id)
    assert leases.is_pinned("x")
    assert not leases.is_pinned("y")
    leases.release(other.id)
    assert not leases.is_pinned("x")


def test_a_lease_is_released_once() -> None:
    leases = Leases(60.0, epoch=1)
    one = leases.read("a", ["x"], 0.0)
    leases.read("b", ["x"], 0.0)
    assert leases.release(one.id) is one
    assert leases.release(one.id) is None
    assert leases.is_pinned("x")


def test_a_write_lease_is_named_by_both_its_numbers() -> None:
    leases = Leases(60.0, epoch=1)
    lease = written(leases)
    assert leases.claim(lease.id, lease.generation + 1) is None
    assert leases.claim(lease.id + 1, lease.generation) is None
    assert leases.claim(lease.id, lease.generation) is lease
    assert leases.claim(lease.id, lease.generation) is None


def test_a_generation_of_another_epoch_never_comes_again() -> None:
    before, after = Leases(60.0, epoch=1), Leases(60.0, epoch=2)
    old = {written(before).generation for _ in range(100)}
    new = {written(after).generation for _ in range(100)}
    assert len(old | new) == 200


def test_what_nobody_renews_expires() -> None:
    leases = Leases(60.0, epoch=1)
    kept, lost = leases.read("a", ["x"], 0.0), leases.read("a", ["y"], 0.0)
    hung = written(leases)
    assert leases.touch("a", [kept.id], 50.0) == []
    assert leases.end_expired(60.0) == ([lost], [hung])
    assert leases.is_pinned("x")
    assert not leases.is_pinned("y")
    assert leases.end_expired(109.0) == ([], [])
    assert leases.end_expired(110.0) == ([kept], [])


def test_only_its_own_connection_renews_a_lease_and_only_in_time() -> None:
    leases = Leases(60.0, epoch=1)
    lease = leases.read("a", ["x"], 0.0)
    assert leases.touch("b", [lease.id], 1.0) == [lease.id]
    assert leases.touch("a", [lease.id, 99], 60.0) == [lease.id, 99]


def test_a_connection_takes_all_its_leases_along() -> None:
    leases = Leases(60.0, epoch=1)
    mine, other = leases.read("a", ["x"], 0.0), leases.read("b", ["y"], 0.0)
    writing = written(leases)
    assert leases.end_connection("a") == ([mine], [writing])
    assert list(leases.reads) == [other.id]
    assert not leases.writes
    assert not leases.is_pinned("x")
