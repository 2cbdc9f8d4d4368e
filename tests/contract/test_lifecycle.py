"""Models are loaded and unloaded as requests, operators, settings and memory have it."""

import asyncio
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bramley.common.rpc import open_channel
from bramley.common.status import RemoteError
from bramley.common.wire import to_duration
from bramley.protos.v1 import router_pb2, router_pb2_grpc, types_pb2
from bramley.router import lifecycle
from bramley.router.policy import ModelPolicy
from bramley.router.process import Router
from bramley.router.settings import RouterSettings
from support.routing import (
    Bench,
    ask,
    collect,
    collect_until_error,
    read_until,
    routed,
    text_of,
    until,
)
from support.script import Script

DEMAND = ModelPolicy(load="demand", memory_bytes=100)
UNLOADED = types_pb2.MODEL_STATE_UNLOADED
READY = types_pb2.MODEL_STATE_READY
TWO = ("one", "two")
STALLED = {"fake.stall": "delta"}


def policies(*models: str, **changes: Any) -> dict[str, ModelPolicy]:
    return dict.fromkeys(models, msgspec.structs.replace(DEMAND, **changes))


def budget_for_one(**changes: Any) -> dict[str, Any]:
    return {"policies": policies(*TWO, **changes), "memory_bytes": 190}


async def answer(bench: Bench, model: str = "fake", **fields: Any) -> str:
    return text_of(await collect(bench.stub.Generate(ask(model=model, **fields))))


async def refusal(call: Any) -> RemoteError:
    _, error = await collect_until_error(call)
    return RemoteError(error)


async def described(bench: Bench, model: str = "fake") -> router_pb2.Model:
    return (await bench.stub.GetModel(router_pb2.GetModelRequest(model=model))).model


async def load(bench: Bench, model: str = "fake", *, pin: bool = False) -> list[router_pb2.Model]:
    call: Any = bench.stub.LoadModel(router_pb2.LoadModelRequest(model=model, pin=pin))
    return [response.model async for response in call]


async def unload(bench: Bench, model: str = "fake", **fields: Any) -> None:
    await bench.stub.UnloadModel(router_pb2.UnloadModelRequest(model=model, **fields))


async def pin(bench: Bench, model: str = "fake", *, pinned: bool = True) -> None:
    await bench.stub.PinModel(router_pb2.PinModelRequest(model=model, pinned=pinned))


async def stalled(bench: Bench, model: str) -> Any:
    """Have a request run that does not end by itself."""
    call = bench.stub.Generate(ask(model=model, labels=STALLED))
    await read_until(call, "delta")
    return call


def waiting_count(bench: Bench, model: str = "fake") -> int:
    return bench.router.models.get(model).gate.waiting_count


# On demand


async def test_the_first_request_loads_a_model() -> None:
    async with routed(Script(load_s=0.05), is_ready=False, policies=policies("fake")) as bench:
        await bench.router.watch.connected.wait()
        before = await described(bench)
        assert (before.state, before.reserved_bytes, before.needed_bytes) == (UNLOADED, 0, 100)
        assert bench.node.started == []
        assert (await answer(bench)).startswith("0 1 2 ")
        after = await described(bench)
        assert (after.state, after.reserved_bytes) == (READY, 100)
        assert after.HasField("idle")


async def test_many_first_requests_load_it_once() -> None:
    async with routed(Script(load_s=0.1), is_ready=False, policies=policies("fake")) as bench:
        answers = await asyncio.gather(*[answer(bench) for _ in range(24)])
        assert len(set(answers)) == 1
        assert bench.node.started == ["fake"]


async def test_a_model_that_operators_load_is_not_loaded_by_a_request() -> None:
    async with routed(is_ready=False, policies=policies("fake", load="manual")) as bench:
        await bench.router.watch.connected.wait()
        error = await refusal(bench.stub.Generate(ask()))
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "MODEL_NOT_LOADED")
        states = [model.state for model in await load(bench)]
        assert states[-1] == READY
        assert await answer(bench)


async def test_health_says_whether_a_request_would_be_served() -> None:
    made = {**policies("one"), **policies("two", load="manual")}
    async with routed(models=TWO, is_ready=False, policies=made) as bench:
        await bench.router.watch.connected.wait()
        health: Any = health_pb2_grpc.HealthStub(bench.channel)

        async def status(model: str) -> int:
            request = health_pb2.HealthCheckRequest(service=f"model/{model}")
            return (await health.Check(request)).status

        assert await status("one") == health_pb2.HealthCheckResponse.SERVING
        assert await status("two") == health_pb2.HealthCheckResponse.NOT_SERVING
        await load(bench, "two")
        while await status("two") != health_pb2.HealthCheckResponse.SERVING:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_load_tells_of_its_progress_and_goes_on_when_nobody_listens() -> None:
    async with routed(Script(load_s=0.3), is_ready=False, policies=policies("fake")) as bench:
        call: Any = bench.stub.LoadModel(router_pb2.LoadModelRequest(model="fake"))
        seen = [(await call.read()).model.load_progress for _ in range(6)]
        assert seen == sorted(seen)
        assert seen[-1] > 0
        call.cancel()
        await bench.ready()
        assert [model.state for model in await load(bench)] == [READY]
        assert bench.node.started == ["fake"]


async def test_a_load_that_fails_says_why_and_may_be_tried_again() -> None:
    async with routed(is_ready=False, policies=policies("fake")) as bench:
        bench.node.scripts["fake"] = Script(load_s=-1)
        loading = asyncio.create_task(load(bench))
        await bench.state(types_pb2.MODEL_STATE_LOADING)
        for _ in range(3):
            await bench.node.kill("fake")
            await bench.node.start("fake")
        last = (await loading)[-1]
        assert (last.state, last.reason) == (types_pb2.MODEL_STATE_FAILED, "signal SIGKILL")
        assert (await refusal(bench.stub.Generate(ask()))).reason == "NO_READY_WORKER"
        await bench.node.kill("fake")
        bench.node.scripts["fake"] = Script()
        again = asyncio.create_task(load(bench))
        await until(lambda: bench.node.started[1:] == ["fake"])
        await bench.node.start("fake")
        assert (await again)[-1].state == READY


# Memory


async def test_what_never_fits_is_refused_with_both_numbers() -> None:
    async with routed(is_ready=False, policies=policies("fake"), memory_bytes=90) as bench:
        await bench.router.watch.connected.wait()
        loading: Any = bench.stub.LoadModel(router_pb2.LoadModelRequest(model="fake"))
        for call in (bench.stub.Generate(ask()), loading):
            error = await refusal(call)
            assert (error.code, error.reason) == ("FAILED_PRECONDITION", "MEMORY_BUDGET")
            assert (error.facts["needed"], error.facts["budget"]) == ("100", "90")


async def test_the_stores_share_is_not_for_models() -> None:
    made = policies("fake")
    async with routed(is_ready=False, policies=made, memory_bytes=150, store_bytes=60) as bench:
        await bench.router.watch.connected.wait()
        assert (await refusal(bench.stub.Generate(ask()))).facts["budget"] == "90"
        memory = (await bench.stub.GetStatus(router_pb2.GetStatusRequest())).memory
        assert (memory.budget_bytes, memory.store_bytes, memory.reserved_bytes) == (150, 60, 0)


async def test_at_the_start_those_are_loaded_for_whom_there_is_room() -> None:
    made = policies(*TWO, load="start")
    async with routed(models=TWO, is_ready=False, policies=made, memory_bytes=190) as bench:
        await bench.ready("one")
        await bench.state(UNLOADED, "two")
        assert bench.node.started == ["one"]
        assert await answer(bench, "two")


async def test_a_model_that_never_fits_has_failed_and_says_why() -> None:
    made = policies("fake", load="start")
    async with routed(is_ready=False, policies=made, memory_bytes=90) as bench:
        await bench.state(types_pb2.MODEL_STATE_FAILED)
        reason = (await described(bench)).reason
        assert "100" in reason
        assert "90" in reason
        changed = settings_of(bench, memory_bytes=100)
        bench.node.reload(changed)
        assert await answer(bench)


async def test_an_unused_model_makes_room_for_one_that_is_asked_for() -> None:
    async with routed(models=TWO, is_ready=False, **budget_for_one()) as bench:
        for model in ("one", "two", "one"):
            assert await answer(bench, model)
            other = "two" if model == "one" else "one"
            assert (await described(bench, other)).state == UNLOADED
            status = await bench.stub.GetStatus(router_pb2.GetStatusRequest())
            assert status.memory.reserved_bytes == 100
        assert bench.node.stopped == ["one", "two"]


async def test_no_other_is_loaded_before_the_processes_of_one_that_leaves_are_gone() -> None:
    async with routed(models=TWO, is_ready=False, **budget_for_one()) as bench:
        await answer(bench, "one")
        bench.node.may_stop.clear()
        waiting = asyncio.create_task(answer(bench, "two"))
        await until(lambda: bench.node.stopped == ["one"])
        assert (await described(bench, "one")).reserved_bytes == 100
        assert bench.node.started == ["one"]
        bench.node.may_stop.set()
        assert await waiting


@pytest.mark.parametrize("is_pinned", [False, True])
async def test_a_load_is_refused_while_others_that_may_stay_hold_the_memory(
    is_pinned: bool,
) -> None:
    async with routed(models=TWO, is_ready=False, **budget_for_one()) as bench:
        await load(bench, "one", pin=is_pinned)
        call = None if is_pinned else await stalled(bench, "one")
        error = await refusal(bench.stub.LoadModel(router_pb2.LoadModelRequest(model="two")))
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "MEMORY_IN_USE")
        assert (error.facts["needed"], error.facts["free"]) == ("100", "90")
        assert error.retry_after_s
        waiting = ask(model="two", max_queue_time=to_duration(0.1))
        error = await refusal(bench.stub.Generate(waiting))
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "MEMORY_IN_USE")
        if call:
            call.cancel()
            assert await answer(bench, "two")


async def test_a_model_in_use_makes_room_after_some_patience_and_ends_what_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "PATIENCE_S", 0.05)
    monkeypatch.setattr(lifecycle, "SLICE_S", 0.05)
    async with routed(models=TWO, is_ready=False, **budget_for_one()) as bench:
        running = bench.stub.Generate(ask(model="one", labels={"fake.interval_s": "0.02"}))
        await read_until(running, "delta")
        waiting = asyncio.create_task(answer(bench, "two"))
        await bench.state(types_pb2.MODEL_STATE_DRAINING, "one")
        behind = asyncio.create_task(answer(bench, "one"))
        rest = await collect(running)
        assert rest[-1].finished.reason == types_pb2.FINISH_REASON_LENGTH
        assert await waiting
        assert await behind  # it comes back for those who came meanwhile
        assert bench.node.started == ["one", "two", "one"]


# Unloading


async def test_unloading_lets_what_runs_end_and_loads_again_for_who_comes_meanwhile() -> None:
    async with routed(policies=policies("fake", load="start")) as bench:
        running = bench.stub.Generate(ask(labels={"fake.interval_s": "0.02"}))
        await read_until(running, "delta")
        unloading = asyncio.create_task(unload(bench))
        await bench.state(types_pb2.MODEL_STATE_DRAINING)
        late = asyncio.create_task(answer(bench))
        assert (await collect(running))[-1].finished.reason == types_pb2.FINISH_REASON_LENGTH
        await unloading
        assert bench.node.stopped == ["fake"]
        assert await late
        assert bench.node.started == ["fake", "fake"]


async def test_unloading_ends_what_still_runs_when_its_time_is_over() -> None:
    async with routed() as bench:
        call = await stalled(bench, "fake")
        await unload(bench, drain_timeout=to_duration(0.05))
        assert (await refusal(call)).code == "UNAVAILABLE"
        assert (await described(bench)).state == UNLOADED
        await unload(bench)  # again: nothing to do


async def test_a_pinned_model_is_not_unloaded_until_it_is_unpinned() -> None:
    async with routed(policies=policies("fake", load="start")) as bench:
        await pin(bench)
        assert bench.node.pinned["fake"]
        assert (await described(bench)).pinned
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unload(bench)
        assert RemoteError(caught.value).reason == "MODEL_PINNED"
        await pin(bench, pinned=False)
        await unload(bench)
        assert (await described(bench)).state == UNLOADED


async def test_a_model_without_requests_for_long_enough_is_unloaded() -> None:
    async with routed(policies=policies("fake", load="start", idle_unload_s=0.1)) as bench:
        call = await stalled(bench, "fake")
        await asyncio.sleep(0.15)  # a request keeps it, however long
        assert (await described(bench)).state == READY
        call.cancel()
        await bench.state(UNLOADED)
        assert await answer(bench)


async def test_a_request_that_comes_while_it_is_stopped_loads_it_again() -> None:
    async with routed(policies=policies("fake", load="start")) as bench:
        bench.node.may_stop.clear()
        unloading = asyncio.create_task(unload(bench))
        await until(lambda: bench.node.stopped == ["fake"])
        waiting = [asyncio.create_task(answer(bench)) for _ in range(8)]
        await until(lambda: waiting_count(bench) == 8)
        bench.node.may_stop.set()
        assert len(set(await asyncio.gather(*waiting))) == 1
        await unloading
        assert bench.node.started == ["fake", "fake"]


@pytest.mark.parametrize("call", ["LoadModel", "UnloadModel", "PinModel"])
async def test_operators_are_told_of_names_that_are_wrong(call: str) -> None:
    async with routed(models=()) as bench:
        for name, code in (("", "INVALID_ARGUMENT"), ("none", "NOT_FOUND")):
            made = getattr(bench.stub, call)(getattr(router_pb2, f"{call}Request")(model=name))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (collect(made) if call == "LoadModel" else made)
            assert caught.value.code().name == code


# Another router, other settings


async def test_the_next_router_goes_on_with_what_is_loaded_and_pinned() -> None:
    async with routed(models=TWO, is_ready=False, policies=policies(*TWO)) as bench:
        await load(bench, "one", pin=True)
        settings = RouterSettings(
            grpc="127.0.0.1:0",
            http="",
            node=bench.node.target,
            models={model: {"path": "none"} for model in TWO},
            policies=policies(*TWO),
        )
        socket = bench.node.target.replace("node.sock", "next.sock")
        following = Router(settings, socket, epoch=2)
        async with following.serve(), open_channel(following.addresses["grpc"]) as channel:
            stub = router_pb2_grpc.RouterServiceStub(channel)
            other = Bench(following, bench.node, channel, stub)
            await other.ready("one")
            one, two = await described(other, "one"), await described(other, "two")
            assert (one.pinned, one.reserved_bytes) == (True, 100)
            assert (two.state, two.pinned) == (UNLOADED, False)
            assert set(bench.node.started) == {"one"}
            assert "one" in bench.node.processes


async def test_workers_that_no_settings_name_any_more_are_stopped() -> None:
    async with routed() as bench:
        settings = RouterSettings(grpc="127.0.0.1:0", http="", node=bench.node.target)
        socket = bench.node.target.replace("node.sock", "next.sock")
        following = Router(settings, socket, epoch=2)
        async with following.serve():
            await until(lambda: bench.node.stopped == ["fake"])


def settings_of(bench: Bench, **changes: Any) -> RouterSettings:
    return msgspec.structs.replace(bench.router.models.settings, **changes)


async def test_a_model_whose_settings_change_is_loaded_anew_and_its_streams_go_on() -> None:
    async with routed(models=TWO) as bench:
        running = bench.stub.Generate(ask(model="one", labels={"fake.interval_s": "0.02"}))
        await read_until(running, "delta")
        models = {"one": {"path": "other"}, "two": {"path": "none"}}
        bench.node.reload(settings_of(bench, models=models))
        await bench.state(types_pb2.MODEL_STATE_DRAINING, "one")
        waiting = asyncio.create_task(answer(bench, "one"))
        assert (await collect(running))[-1].finished.reason == types_pb2.FINISH_REASON_LENGTH
        assert await waiting
        assert bench.node.stopped == ["one"]
        assert bench.node.specs["one"] == msgspec.json.encode(models["one"])
        assert bench.node.started.count("two") == 1


async def test_models_come_and_go_with_the_settings() -> None:
    async with routed(models=("one", "gone")) as bench:
        await answer(bench, "gone")
        models = {"one": {"path": "none"}, "new": {"path": "none"}}
        bench.node.reload(settings_of(bench, models=models))
        await until(lambda: "new" in bench.router.models.by_name)
        assert await answer(bench, "new")
        await until(lambda: bench.node.stopped == ["gone"])
        assert (await refusal(bench.stub.Generate(ask(model="gone")))).code == "NOT_FOUND"
        await until(lambda: "gone" not in bench.router.models.by_name)
        listed = await bench.stub.ListModels(router_pb2.ListModelsRequest())
        assert {model.name for model in listed.models} == {"one", "new"}


async def test_a_model_that_is_removed_and_comes_back_while_it_drains_is_loaded_again() -> None:
    async with routed() as bench:
        call = await stalled(bench, "fake")
        models = bench.router.models.settings.models
        bench.node.reload(settings_of(bench, models={}))
        await bench.state(types_pb2.MODEL_STATE_DRAINING)
        bench.node.reload(settings_of(bench, models=models))
        await until(lambda: bench.router.models.settings.models == models)
        call.cancel()
        assert await answer(bench)
        assert bench.node.started == ["fake", "fake"]


async def test_who_waits_for_a_model_that_is_removed_is_told() -> None:
    async with routed(Script(load_s=-1), is_ready=False) as bench:
        waiting = bench.stub.Generate(ask())
        await until(lambda: waiting_count(bench) == 1)
        bench.node.reload(settings_of(bench, models={}))
        assert (await refusal(waiting)).code == "NOT_FOUND"


async def test_limits_of_clients_and_classes_change_at_once() -> None:
    async with routed(Script(max_rows=1)) as bench:
        call = await stalled(bench, "fake")
        changed = {
            "clients": {"requests_max": 1},
            "classes": {"default": {"queue_timeout_s": 0.05}},
        }
        made = msgspec.convert(
            {**msgspec.to_builtins(bench.router.models.settings), **changed}, RouterSettings
        )
        bench.node.reload(made)
        await until(lambda: bench.router.models.settings == made)
        waiting = await refusal(bench.stub.Generate(ask(fairness_key="other")))
        assert waiting.reason == "QUEUE_TIMEOUT"
        too_many = await refusal(bench.stub.Generate(ask()))
        assert too_many.reason == "CLIENT_CONCURRENCY"
        call.cancel()


async def test_who_waits_is_prepared_again_by_a_worker_with_another_revision() -> None:
    async with routed(Script(max_rows=1)) as bench:
        call = await stalled(bench, "fake")
        waiting = asyncio.create_task(answer(bench, request_id="waits"))
        await until(lambda: waiting_count(bench) == 1)
        await until(lambda: "waits" in bench.node.workers["fake"].prepared)
        bench.node.scripts["fake"] = Script(revision="other")
        bench.node.reload(settings_of(bench, models={"fake": {"path": "other"}}))
        await bench.state(types_pb2.MODEL_STATE_DRAINING)
        call.cancel()
        assert await waiting
        assert bench.node.workers["fake"].prepared == ["waits"]


# Liveness


async def test_a_worker_that_says_nothing_for_too_long_is_killed_and_replaced() -> None:
    async with routed(hang_timeout_s=1.0) as bench:
        bench.node.workers["fake"].mute()
        await until(lambda: len(bench.node.killed) == 1)
        assert bench.node.killed[0].startswith("silent for ")
        await bench.ready()
        assert await answer(bench)


async def test_a_worker_inside_one_step_is_degraded_and_given_nothing_new() -> None:
    async with routed(hang_timeout_s=60.0) as bench:
        worker = bench.node.workers["fake"]
        worker.step_age_s = 31.0
        await bench.state(types_pb2.MODEL_STATE_DEGRADED)
        assert "one step" in (await described(bench)).reason
        waiting = asyncio.create_task(answer(bench))
        await until(lambda: waiting_count(bench) == 1)
        assert worker.generated == []
        worker.step_age_s = 0.0
        assert await waiting
