"""FlushCache and ExplainCache: to the store and the worker that know, and clear without them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from bramley.common.status import RemoteError
from bramley.protos.v1 import cachestore_pb2, node_pb2, router_pb2, types_pb2
from support.fake_store import FakeStore, storing
from support.routing import MODEL, Bench, routed, until
from support.script import Script


@asynccontextmanager
async def cached(
    script: Script | None = None, **settings: Any
) -> AsyncGenerator[tuple[Bench, FakeStore]]:
    """Run a router on a node with a store."""
    with storing() as (fake, address):
        async with routed(script, **settings) as bench:
            tell(bench, address)
            await until(lambda: bench.router.watch.store == address)
            yield bench, fake


def tell(
    bench: Bench,
    address: str,
    state: node_pb2.ProcessState.ValueType = node_pb2.PROCESS_STATE_RUNNING,
) -> None:
    process = node_pb2.Process(role="store", name="store", state=state, epoch=9, address=address)
    bench.node.tell(process)


def flush_request(model: str = "") -> router_pb2.FlushCacheRequest:
    return router_pb2.FlushCacheRequest(model=model)


async def test_flushing_all_asks_the_store_once_and_tells_all_it_says() -> None:
    async with cached() as (bench, fake):
        fake.answers[b""] = cachestore_pb2.FlushResponse(
            pending=1, refused=2, failed=3, missing=4, bytes=5, longest_prefix_tokens=6
        )
        answer = await bench.stub.FlushCache(flush_request())
        assert fake.flushed == [b""]
        assert answer == router_pb2.FlushCacheResponse(
            pending=1, refused=2, failed=3, missing=4, bytes=5, longest_prefix_tokens=6
        )


async def test_flushing_a_model_flushes_its_namespaces_and_adds_them_up() -> None:
    async with cached(Script(cache_roots=["one", "two"])) as (bench, fake):
        fake.answers = {
            b"one": cachestore_pb2.FlushResponse(ok=True, bytes=5, longest_prefix_tokens=9),
            b"two": cachestore_pb2.FlushResponse(pending=1, bytes=7, longest_prefix_tokens=6),
        }
        answer = await bench.stub.FlushCache(flush_request(MODEL))
        assert fake.flushed == [b"one", b"two"]
        assert answer == router_pb2.FlushCacheResponse(
            ok=False, pending=1, bytes=12, longest_prefix_tokens=9
        )


async def test_flushing_a_model_flushes_what_any_of_its_workers_has_opened() -> None:
    async with cached(replicas={MODEL: 2}) as (bench, fake):
        await bench.all_ready(2)
        for name, roots in ((MODEL, ["one", "two"]), (f"{MODEL}@2", ["two", "three"])):
            bench.node.scripts[name] = Script(cache_roots=roots)
            await bench.node.kill(name)
            await bench.node.start(name)
        await bench.all_ready(2)
        for root in ("one", "two", "three"):
            fake.answers[root.encode()] = cachestore_pb2.FlushResponse(ok=True, bytes=1)
        assert (await bench.stub.FlushCache(flush_request(MODEL))).bytes == 3
        assert sorted(fake.flushed) == [b"one", b"three", b"two"]


async def test_workers_hand_over_what_they_owe_before_a_flush_and_their_debts_are_told() -> None:
    async with cached(Script(cache_roots=["one"])) as (bench, fake):
        fake.answers[b"one"] = cachestore_pb2.FlushResponse(ok=True, refused=1)
        worker = bench.node.workers[MODEL]
        assert (await bench.stub.FlushCache(flush_request(MODEL), timeout=8.0)).ok
        worker.owed = 2
        answer = await bench.stub.FlushCache(flush_request(MODEL))
        assert (answer.ok, answer.refused) == (False, 2)
        assert not (await bench.stub.FlushCache(flush_request())).ok
        assert 2.0 < worker.flushes[0] < 4.5  # the other half of the time is the store's
        assert worker.flushes[1:] == [30.0, 30.0]
        assert len(fake.flushed) == 3


async def test_flushing_a_model_that_forgot_namespaces_flushes_all() -> None:
    async with cached(Script(cache_roots=["one"], cache_roots_cut=True)) as (bench, fake):
        assert (await bench.stub.FlushCache(flush_request(MODEL))).ok
        assert fake.flushed == [b""]


async def test_closing_a_session_is_passed_to_its_worker_and_may_be_done_twice() -> None:
    async with routed() as bench:
        request = router_pb2.CloseSessionRequest(model=MODEL, session_key="k", salt="s")
        assert (await bench.stub.CloseSession(request)).found
        assert not (await bench.stub.CloseSession(request)).found
        assert bench.node.workers[MODEL].closed == [("k", "s")] * 2


async def test_closing_a_session_closes_it_in_each_worker_of_its_model() -> None:
    async with routed(replicas={MODEL: 2}) as bench:
        await bench.all_ready(2)
        bench.node.workers[f"{MODEL}@2"].closed.append(("k", "s"))
        request = router_pb2.CloseSessionRequest(model=MODEL, session_key="k", salt="s")
        assert (await bench.stub.CloseSession(request)).found
        assert bench.node.workers[MODEL].closed == [("k", "s")]
        assert bench.node.workers[f"{MODEL}@2"].closed == [("k", "s")] * 2
        assert not (await bench.stub.CloseSession(request)).found


@pytest.mark.parametrize(
    ("model", "session_key", "code"),
    [
        ("nobody", "k", grpc.StatusCode.NOT_FOUND),
        (MODEL, "", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_closing_a_session_that_cannot_be_names_what_is_wrong(
    model: str, session_key: str, code: grpc.StatusCode
) -> None:
    async with routed() as bench:
        request = router_pb2.CloseSessionRequest(model=model, session_key=session_key)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.stub.CloseSession(request)
        assert caught.value.code() is code
        assert bench.node.workers[MODEL].closed == []


async def test_flushing_a_model_whose_worker_tells_no_namespace_names_the_field() -> None:
    async with cached() as (bench, fake):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.stub.FlushCache(flush_request(MODEL))
        assert RemoteError(caught.value).field == "model"
        assert fake.flushed == []


async def test_flushing_an_unknown_model_is_not_found() -> None:
    async with cached() as (bench, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.stub.FlushCache(flush_request("nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "given",
    [
        {"text": "hello"},
        {"token_ids": types_pb2.TokenIds(ids=[1, 2, 3, 4, 5])},
        {"chat": {"messages": [{"role": "u", "content": "é"}]}},
    ],
)
async def test_explaining_passes_the_question_to_the_worker_and_its_answer_back(
    given: dict[str, object],
) -> None:
    async with cached() as (bench, _):
        request = router_pb2.ExplainCacheRequest(model=MODEL, adapter="a", salt="s")
        request.MergeFrom(router_pb2.ExplainCacheRequest(**given))  # pyright: ignore[reportArgumentType]
        answer = await bench.stub.ExplainCache(request)
        tokens = answer.prompt_tokens
        assert tokens in {5, 6}
        assert answer == router_pb2.ExplainCacheResponse(
            prompt_tokens=tokens,
            cached=types_pb2.CachedTokens(ssd=tokens // 2),
            explanation="adapter=a salt=s",
            first_differing_block=1,
            mismatched_fields=["salt"],
        )


async def test_explaining_nothing_names_the_field() -> None:
    async with cached() as (bench, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.stub.ExplainCache(router_pb2.ExplainCacheRequest(model=MODEL))
        assert RemoteError(caught.value).field == "input"


async def test_without_a_store_both_say_so() -> None:
    async with routed() as bench:
        explain = router_pb2.ExplainCacheRequest(model=MODEL, text="hello")
        for call in (bench.stub.FlushCache(flush_request()), bench.stub.ExplainCache(explain)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            error = RemoteError(caught.value)
            assert error.status_code is grpc.StatusCode.FAILED_PRECONDITION
            assert (error.reason, error.message) == ("NO_STORE", "the node runs no cache store now")


async def test_a_store_that_waits_for_its_next_start_is_none() -> None:
    async with cached() as (bench, _):
        tell(bench, "", node_pb2.PROCESS_STATE_BACKOFF)
        await until(lambda: not bench.router.watch.store)


async def test_a_store_that_died_under_a_flush_may_be_asked_again() -> None:
    async with cached() as (bench, _):
        tell(bench, "unix:/nonexistent/store.sock")
        await until(lambda: "nonexistent" in bench.router.watch.store)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.stub.FlushCache(flush_request())
        error = RemoteError(caught.value)
        assert (error.status_code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_LOST")
        assert error.retry_after_s is not None
