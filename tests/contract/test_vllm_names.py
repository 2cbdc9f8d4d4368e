"""vLLM's names tell the same as the router's own, from the same samples."""

import re

from bramley.common.ids import ModelName, WorkerName
from bramley.protos.v1 import node_pb2, types_pb2, worker_pb2
from bramley.router.fleet import WorkerView
from bramley.router.metrics import Metrics
from bramley.router.vllm_names import VllmNames
from support.http import Series, fetch, scrape, series
from support.routing import ask, collect, routed
from support.script import Script

WORKER = WorkerName("fake")
PAIR = ("vllm:e2e_request_latency_seconds", "bramley_router_request_duration_seconds")
HTTP = "127.0.0.1:0"
THEIRS = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
}


def theirs(name: str, **labels: str) -> Series:
    return f"vllm:{name}", frozenset({"model_name": "fake", **labels}.items())


async def test_they_are_there_only_when_asked_for() -> None:
    async with routed(is_ready=False, http=HTTP) as bench:
        assert b"vllm:" not in (await fetch(bench.router.addresses["http"], "/metrics")).body


async def test_each_is_there_and_says_what_ours_say() -> None:
    async with routed(Script(tokens=4), http=HTTP, vllm_metrics=True) as bench:
        for _ in range(2):
            await collect(bench.stub.Generate(ask()))
        address = bench.router.addresses["http"]
        text = (await fetch(address, "/metrics")).body.decode()
        assert set(re.findall(r"^# TYPE (vllm:\S+)", text, re.MULTILINE)) == THEIRS
        seen = await scrape(address)
        assert seen[theirs("num_requests_running")] == 0
        assert seen[theirs("num_requests_waiting")] == 0
        assert seen[theirs("prompt_tokens_total")] == 10
        assert seen[theirs("prefix_cache_queries_total")] == 10
        assert seen[theirs("prefix_cache_hits_total")] == 0
        assert seen[theirs("generation_tokens_total")] == 8
        assert seen[theirs("request_success_total", finished_reason="length")] == 2
        for name, ours in (
            ("time_to_first_token_seconds", "time_to_first_token_seconds"),
            ("inter_token_latency_seconds", "inter_token_latency_seconds"),
            ("e2e_request_latency_seconds", "request_duration_seconds"),
            ("request_queue_time_seconds", "queue_wait_seconds"),
        ):
            assert seen[theirs(f"{name}_count")] == 2
            assert seen[theirs(f"{name}_sum")] == seen[series(f"{ours}_sum", model="fake")]
            assert seen[theirs(f"{name}_bucket", le="+Inf")] == 2
        buckets = [sum(key[0] == f"{one}_bucket" for key in seen) for one in PAIR]
        assert buckets[0] == buckets[1] > 5


def test_the_share_of_rows_memory_is_of_what_they_may_take() -> None:
    metrics = Metrics()
    model = metrics.add_model(ModelName("fake"))
    collector = VllmNames(metrics.made)

    def share() -> float:
        (family,) = [one for one in collector.collect() if "kv_cache" in one.name]
        return family.samples[0].value

    def report(used: int) -> None:
        load = worker_pb2.Load(
            state=types_pb2.MODEL_STATE_READY, memory=worker_pb2.Memory(state=used)
        )
        view = WorkerView(
            ModelName("fake"),
            WORKER,
            epoch=1,
            process=node_pb2.PROCESS_STATE_RUNNING,
            address="unix:x",
            load=load,
            limits=types_pb2.ModelLimits(max_rows=4, token_bytes=10, context_tokens=100),
        )
        model.worker_changed(view, view, 0.0)

    report(1000)
    assert share() == 0.25
    model.state_bytes = 2000
    report(1000)
    assert share() == 0.5
    report(5000)
    assert share() == 1.0
