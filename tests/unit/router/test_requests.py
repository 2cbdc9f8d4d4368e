"""Ids of requests in flight."""

import asyncio

import pytest

from bramley.common.errors import AlreadyExists
from bramley.router.access import Identity
from bramley.router.requests import Registry


def test_a_callers_id_is_free_again_once_its_request_ended() -> None:
    registry = Registry(epoch=3)
    with registry.enter("mine") as entry:
        assert (entry.id, len(registry)) == ("r3-1", 1)
        with pytest.raises(AlreadyExists), registry.enter("mine"):
            pass
    assert len(registry) == 0
    with registry.enter("mine"):
        pass
    assert registry.ended_count == 2


def test_our_ids_pass_over_a_callers_that_looks_like_one() -> None:
    registry = Registry(epoch=3)
    with registry.enter("r3-2"), registry.enter("") as entry:
        assert entry.id == "r3-3"


def test_a_callers_id_cannot_be_one_of_ours() -> None:
    registry = Registry(epoch=3)
    with registry.enter("") as entry, pytest.raises(AlreadyExists), registry.enter(entry.id):
        pass


def test_abort_finds_a_request_by_both_ids_and_no_ended_one() -> None:
    registry = Registry(epoch=3)
    with registry.enter("mine") as entry:
        assert registry.abort("mine")
        assert registry.abort(entry.id)
        assert entry.is_aborted
    assert not registry.abort("mine")


async def test_idle_waits_for_the_last_one() -> None:
    registry = Registry(epoch=3)
    with registry.enter(""), registry.enter(""):
        waiting = asyncio.create_task(registry.idle())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


def test_each_owner_has_ids_of_its_own_and_ends_its_own_requests_only() -> None:
    registry = Registry(epoch=3)
    alice = Identity(name="alice", is_admin=False)
    bob = Identity(name="bob", is_admin=False)
    with registry.enter("mine", "alice") as hers, registry.enter("mine", "bob") as his:
        assert not registry.abort(his.id, alice)
        assert not registry.abort("nobody's", alice)
        assert not his.is_aborted
        assert registry.abort("mine", alice)
        assert (hers.is_aborted, his.is_aborted) == (True, False)
        assert registry.abort(his.id, bob)
        with pytest.raises(AlreadyExists), registry.enter("mine", "bob"):
            pass
    assert not registry.abort("mine", alice)


def test_an_admin_ends_all_that_an_id_may_mean_its_own_first() -> None:
    registry = Registry(epoch=3)
    root = Identity(name="root", is_admin=True)
    with registry.enter("mine", "alice") as hers, registry.enter("mine", "bob") as his:
        with registry.enter("mine", "root") as own:
            assert registry.abort("mine", root)
            assert (own.is_aborted, hers.is_aborted) == (True, False)
        assert registry.abort("mine", root)
        assert (hers.is_aborted, his.is_aborted) == (True, True)
    assert not registry.abort("mine", root)
