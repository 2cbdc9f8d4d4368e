"""Ids of requests in flight."""

import asyncio

import pytest

from bramley.common.errors import AlreadyExists
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
