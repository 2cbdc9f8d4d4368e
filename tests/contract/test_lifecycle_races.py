"""What happens to a model while something else happens to it, or while its node is away."""

import asyncio
import time
from typing import Any

import grpc
import msgspec
import pytest

from bramley.common.status import RemoteError
from bramley.protos.v1 import router_pb2, types_pb2
from bramley.router import lifecycle, node, watch
from bramley.router.policy import ModelPolicy
from support.routing import WAIT_S, Bench, ask, collect, read_until, routed, text_of, until
from support.script import Script

DEMAND = ModelPolicy(load="demand", memory_bytes=100)
UNLOADED = types_pb2.MODEL_STATE_UNLOADED
DRAINING = types_pb2.MODEL_STATE_DRAINING
TWO = ("one", "two")
PAIR = ["fake", "fake@2"]


def policies(*models: str, **changes: Any) -> dict[str, ModelPolicy]:
    return dict.fromkeys(models, msgspec.structs.replace(DEMAND, **changes))


async def answer(bench: Bench, model: str = "fake") -> str:
    return text_of(await collect(bench.stub.Generate(ask(model=model), timeout=WAIT_S)))


async def load(bench: Bench, model: str = "fake") -> list[router_pb2.Model]:
    call: Any = bench.stub.LoadModel(router_pb2.LoadModelRequest(model=model), timeout=WAIT_S)
    return [response.model async for response in call]


async def unload(bench: Bench, model: str = "fake") -> None:
    await bench.stub.UnloadModel(router_pb2.UnloadModelRequest(model=model), timeout=WAIT_S)


async def pin(bench: Bench, *, pinned: bool) -> None:
    await bench.stub.PinModel(router_pb2.PinModelRequest(model="fake", pinned=pinned))


async def stalled(bench: Bench, model: str) -> Any:
    call = bench.stub.Generate(ask(model=model, labels={"fake.stall": "delta"}))
    await read_until(call, "delta")
    return call


def unloads(bench: Bench, why: str, model: str = "fake") -> float | None:
    labels = {"model": model, "reason": why}
    registry = bench.router.metrics.registry
    return registry.get_sample_value("bramley_router_model_unloads_total", labels)


def step_age_s(bench: Bench) -> float:
    load = bench.router.models.get("fake").gate.view.load
    return load.step_age_s if load else 0.0


async def test_an_unload_counts_once() -> None:
    async with routed() as bench:
        await unload(bench)
        assert unloads(bench, "asked") == 1


async def test_who_follows_a_load_is_told_when_the_model_is_unloaded_instead() -> None:
    async with routed(is_ready=False, policies=policies("fake")) as bench:
        bench.node.may_start.clear()
        loading = asyncio.create_task(load(bench))
        await until(lambda: bench.node.started == ["fake"])
        unloading = asyncio.create_task(unload(bench))
        bench.node.may_start.set()
        await unloading
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await loading
        assert RemoteError(caught.value).reason == "MODEL_NOT_LOADED"


async def test_who_follows_a_load_is_told_when_there_is_no_room_any_more() -> None:
    made: dict[str, Any] = {"policies": policies(*TWO), "memory_bytes": 190}
    async with routed(models=TWO, is_ready=False, **made) as bench:
        await load(bench, "one")
        bench.node.may_stop.clear()
        loading = asyncio.create_task(load(bench, "two"))
        await until(lambda: bench.node.stopped == ["one"])
        fewer = msgspec.structs.replace(bench.router.models.settings, memory_bytes=90)
        bench.node.reload(fewer)
        assert (await loading)[-1].state == types_pb2.MODEL_STATE_FAILED
        bench.node.may_stop.set()


async def test_a_load_that_is_waited_for_is_not_cut_short_for_another_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "PATIENCE_S", 0.05)
    monkeypatch.setattr(lifecycle, "SLICE_S", 0.05)
    made: dict[str, Any] = {"policies": policies(*TWO), "memory_bytes": 190}
    async with routed(models=TWO, is_ready=False, **made) as bench:
        bench.node.scripts["two"] = Script(load_s=0.5)
        await load(bench, "one")
        waiting = asyncio.create_task(answer(bench, "two"))
        await until(lambda: bench.node.started == ["one", "two"])
        behind = asyncio.create_task(answer(bench, "one"))
        assert await waiting
        assert await behind
        assert bench.node.started == ["one", "two", "one"]


async def test_an_unload_counts_for_more_than_a_change_that_came_before() -> None:
    async with routed() as bench:
        bench.node.may_stop.clear()
        models = {"fake": {"path": "other"}}
        bench.node.reload(msgspec.structs.replace(bench.router.models.settings, models=models))
        await until(lambda: bench.node.stopped == ["fake"])
        unloading = asyncio.create_task(unload(bench))
        await bench.state(DRAINING)
        await until(lambda: bench.router.models.get("fake").why is lifecycle.Why.ASKED)
        bench.node.may_stop.set()
        await unloading
        assert bench.router.models.get("fake").state == UNLOADED
        assert bench.node.started == ["fake"]


async def test_what_makes_room_when_its_settings_change_does_not_go_on_by_the_old_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "PATIENCE_S", 0.05)
    monkeypatch.setattr(lifecycle, "SLICE_S", 0.05)
    made: dict[str, Any] = {"policies": policies(*TWO), "memory_bytes": 190}
    async with routed(models=TWO, is_ready=False, **made) as bench:
        running = await stalled(bench, "one")
        other = bench.stub.Generate(ask(model="two"))
        await bench.state(DRAINING, "one")
        models = {"one": {"path": "other"}, "two": {"path": "none"}}
        bench.node.reload(msgspec.structs.replace(bench.router.models.settings, models=models))
        await until(lambda: bench.router.models.settings.models == models)
        other.cancel()
        behind = asyncio.create_task(answer(bench, "one"))
        await until(lambda: bench.router.models.get("one").gate.waiting_count == 1)
        running.cancel()
        assert await behind
        assert bench.node.specs["one"] == msgspec.json.encode(models["one"])


async def test_a_model_unloaded_while_a_node_is_told_anew_what_is_wanted_stays_unloaded() -> None:
    async with routed(models=TWO) as bench:
        await bench.node.leave()
        bench.node.may_start.clear()
        started = len(bench.node.started)
        await bench.node.serve()
        await until(lambda: len(bench.node.started) == started + 1)
        first = bench.node.started[-1]
        last = "two" if first == "one" else "one"
        await unload(bench, last)
        bench.node.may_start.set()
        assert await answer(bench, first)
        await until(lambda: bench.node.started[started:] == [first])
        assert set(bench.node.specs) == {first}
        assert bench.router.models.get(last).state == UNLOADED


async def test_a_worker_is_not_started_once_its_model_was_stopped_meanwhile() -> None:
    made: dict[str, Any] = {"replicas": {"fake": 2}, "policies": policies("fake")}
    async with routed(is_ready=False, **made) as bench:
        await load(bench)
        await bench.all_ready(2)
        bench.node.may_start.clear()
        pinning = asyncio.create_task(pin(bench, pinned=False))
        await until(lambda: len(bench.node.started) == 3)
        unloading = asyncio.create_task(unload(bench))
        await bench.state(DRAINING)
        bench.node.may_start.set()
        await pinning
        await unloading
        assert sorted(bench.node.started[:2]) == PAIR
        assert len(bench.node.started) == 3


async def test_a_start_that_is_on_its_way_does_not_overtake_a_stop() -> None:
    async with routed(policies=policies("fake", load="start")) as bench:
        bench.node.may_start.clear()
        pinning = asyncio.create_task(pin(bench, pinned=False))
        await until(lambda: len(bench.node.started) == 2)
        unloading = asyncio.create_task(unload(bench))
        await until(lambda: bench.router.models.get("fake").phase is lifecycle.Phase.STOPPING)
        bench.node.may_start.set()
        await pinning
        await unloading
        assert bench.node.stopped == ["fake"]
        assert (bench.node.specs, bench.node.processes) == ({}, {})


async def test_a_node_that_answers_too_late_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "CALL_S", 0.05)
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    async with routed(is_ready=False, policies=policies("fake")) as bench:
        bench.node.may_start.clear()
        waiting = asyncio.create_task(answer(bench))
        await until(lambda: len(bench.node.started) > 1)
        bench.node.may_start.set()
        assert await waiting


async def test_a_worker_that_hangs_while_its_node_is_away_is_killed_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    asked: list[str] = []
    kill = node.Node.kill

    async def counted(self: node.Node, name: str, epoch: int, reason: str) -> bool:
        asked.append(name)
        return await kill(self, name, epoch, reason)

    monkeypatch.setattr(node.Node, "kill", counted)
    async with routed(hang_timeout_s=0.3) as bench:
        await bench.node.leave()
        bench.node.workers["fake"].mute()
        await until(lambda: bool(asked))
        await bench.node.serve()
        await until(lambda: len(bench.node.killed) == 1)
        await bench.ready()
        assert await answer(bench)


async def test_a_worker_inside_one_step_for_too_long_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    async with routed(hang_timeout_s=60.0) as bench:
        bench.node.workers["fake"].step_age_s = 61.0
        await until(lambda: len(bench.node.killed) == 1)
        assert bench.node.killed[0] == "inside one step for 61 s"
        await bench.ready()
        assert await answer(bench)


async def test_a_router_that_stood_still_itself_blames_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.05)
    async with routed(hang_timeout_s=1.0) as bench:
        time.sleep(1.2)  # noqa: ASYNC251 -- it is what is tried
        bench.node.workers["fake"].step_age_s = 0.25  # a report from after it
        await until(lambda: step_age_s(bench) == 0.25)
        assert await answer(bench)
        assert bench.node.killed == []


async def test_a_load_tries_again_the_one_of_two_workers_that_keeps_crashing() -> None:
    async with routed(replicas={"fake": 2}) as bench:
        await bench.all_ready(2)
        bench.node.scripts["fake@2"] = Script(load_s=-1)
        for _ in range(3):
            await bench.node.kill("fake@2")
            await bench.node.start("fake@2")
        await bench.node.kill("fake@2")
        await until(lambda: bench.router.models.get("fake").gate.replicas.some_failed)
        del bench.node.scripts["fake@2"], bench.node.started[:]
        assert [model.state for model in await load(bench)] == [types_pb2.MODEL_STATE_READY]
        assert sorted(bench.node.started) == PAIR
        await bench.node.start("fake@2")
        await bench.all_ready(2)


async def test_a_pin_of_the_settings_goes_with_them_and_an_operators_stays() -> None:
    made = policies("fake", load="start", pinned=True)
    async with routed(policies=made) as bench:

        async def reload(**changes: Any) -> None:
            changed = policies("fake", load="start", **changes)
            settings = bench.router.models.settings
            bench.node.reload(msgspec.structs.replace(settings, policies=changed))
            await until(lambda: bench.router.models.settings.policies == changed)

        await until(lambda: bench.node.pinned["fake"])
        await reload(pinned=False)
        await until(lambda: not bench.node.pinned["fake"])
        assert not bench.router.models.get("fake").is_pinned
        await pin(bench, pinned=True)
        await reload(idle_unload_s=60.0)
        assert bench.router.models.get("fake").is_pinned


UNSERVED: dict[str, Any] = {
    "adapter": "a",
    "speculation": types_pb2.SpeculationOptions(disabled=True),
}
# Of raw text, which `ask` sends.
TOGETHER: dict[str, dict[str, Any]] = {
    "tools": {"tools": [types_pb2.Tool(name="a")]},
    "tools[1].name": {"tools": [types_pb2.Tool(name="a"), types_pb2.Tool(name="a")]},
    "reasoning.effort": {"reasoning": types_pb2.ReasoningOptions(effort="low")},
    "tool_choice.name": {"tool_choice": types_pb2.ToolChoice(name="a")},
    "constraint": {"constraint": types_pb2.Constraint()},
}


@pytest.mark.parametrize("field", sorted({**UNSERVED, **TOGETHER}))
async def test_no_model_is_loaded_for_what_no_worker_could_do(field: str) -> None:
    asked = TOGETHER.get(field) or {field: UNSERVED[field]}
    async with routed(is_ready=False, policies=policies("fake")) as bench:
        await bench.router.watch.connected.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(bench.stub.Generate(ask(**asked), timeout=WAIT_S))
        error = RemoteError(caught.value)
        assert (error.code, error.field) == ("INVALID_ARGUMENT", field)
        assert bench.router.models.get("fake").state == UNLOADED
        assert bench.node.started == []
