"""Embed through a router: waits, is tried again, is ended and counted as a generation is."""

import asyncio
import struct

import grpc
import pytest

from bramley.common.ids import ModelName
from bramley.common.status import RemoteError
from bramley.protos.v1 import node_pb2, router_pb2, types_pb2
from bramley.router.classes import BulkRule, Classes
from support.fake_worker import FakeWorker
from support.routing import Bench, routed, until
from support.script import Script


def asking(*texts: str, **fields: object) -> router_pb2.EmbedRequest:
    return router_pb2.EmbedRequest(model="fake", texts=texts, **fields)  # type: ignore[arg-type]


def worker_of(bench: Bench) -> FakeWorker:
    return bench.node.workers["fake"]


async def refused(call: object) -> RemoteError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call  # type: ignore[misc]
    return RemoteError(raised.value)


def values(answer: router_pb2.EmbedResponse) -> list[tuple[float, ...]]:
    return [struct.unpack("<4f", one.values_le) for one in answer.embeddings]


async def test_texts_come_first_then_ids_and_every_option_reaches_the_worker() -> None:
    async with routed() as bench:
        ids = [types_pb2.TokenIds(ids=[7, 8, 9])]
        answer = await bench.stub.Embed(asking("ab", "c", token_ids=ids))
        assert values(answer) == [(2, 195, 97, 98), (1, 99, 99, 99), (3, 24, 7, 9)]
        assert [one.prompt_tokens for one in answer.embeddings] == [2, 1, 3]
        pooling = router_pb2.EmbedRequest.POOLING_LAST
        cut = await bench.stub.Embed(asking("ab", pooling=pooling, normalize=True, dimensions=2))
        assert len(cut.embeddings[0].values_le) == 8
        plain, asked = worker_of(bench).embedded
        assert (plain.mean, plain.last_token, plain.normalize, plain.dimensions) == (0, 0, 0, 0)
        assert (asked.mean, asked.last_token, asked.normalize, asked.dimensions) == (0, 1, 1, 2)
        counted = {"model": "fake", "code": "OK", "finish": "none"}
        metrics = bench.router.metrics.registry
        assert metrics.get_sample_value("bramley_router_requests_total", counted) == 2


async def test_it_waits_for_a_model_that_is_loading() -> None:
    async with routed(Script(load_s=0.2), is_ready=False) as bench:
        assert values(await bench.stub.Embed(asking("a"))) == [(1, 97, 97, 97)]


async def test_what_is_wrong_is_told_with_its_field() -> None:
    async with routed() as bench:
        for request, field in (
            (asking(), "texts"),
            (asking("a", ""), "texts[1]"),
            (asking("a", dimensions=0), "dimensions"),
        ):
            error = await refused(bench.stub.Embed(request))
            assert (error.code, error.field) == ("INVALID_ARGUMENT", field)
        unknown = router_pb2.EmbedRequest(model="other", texts=["a"])
        assert (await refused(bench.stub.Embed(unknown))).code == "NOT_FOUND"


async def test_one_whose_worker_dies_is_answered_by_the_next() -> None:
    async with routed(Script(actions={"die": "accepted"})) as bench:
        bench.node.scripts["fake"] = Script()
        call = asyncio.ensure_future(bench.stub.Embed(asking("a")))
        died = node_pb2.PROCESS_STATE_BACKOFF
        await until(lambda: bench.node.processes["fake"].state == died)
        await bench.node.start("fake")
        assert values(await call) == [(1, 97, 97, 97)]


async def test_an_abort_and_a_client_that_leaves_end_it_in_the_worker() -> None:
    async with routed(Script(actions={"stall": "accepted"})) as bench:
        worker = worker_of(bench)
        aborted = asyncio.ensure_future(bench.stub.Embed(asking("a", request_id="mine")))
        await until(lambda: worker.running == 1)
        told = await bench.stub.Abort(router_pb2.AbortRequest(request_ids=["mine"]))
        assert told.results["mine"] == router_pb2.AbortResponse.RESULT_ABORTED
        error = await refused(aborted)
        assert (error.code, error.reason) == ("CANCELLED", "ABORTED")
        await until(lambda: worker.running == 0)
        left = bench.stub.Embed(asking("b"))
        await until(lambda: worker.running == 1)
        left.cancel()
        await until(lambda: worker.running == 0)
        assert len(worker.cancelled) == 2
        assert len(bench.router.server.registry) == 0


async def test_it_takes_one_place_and_the_queue_of_its_class_is_bounded() -> None:
    rule = Classes(bulk=BulkRule(queue_max=1))
    script = Script(max_rows=1, actions={"stall": "accepted"})
    async with routed(script, classes=rule) as bench:
        bulk = types_pb2.PRIORITY_CLASS_BULK
        running = [bench.stub.Embed(asking("a", priority=bulk))]
        await until(lambda: worker_of(bench).running == 1)
        running.append(bench.stub.Embed(asking("b", priority=bulk)))
        gate = bench.router.models.gates[ModelName("fake")]
        await until(lambda: gate.waiting_count == 1)
        error = await refused(bench.stub.Embed(asking("c", priority=bulk)))
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        for call in running:
            call.cancel()
        await until(lambda: not gate.running_count)
