"""When models are loaded and unloaded, case by case."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from bramley.common.ids import ModelName
from bramley.router.lifecycle import (
    LOAD_S,
    PATIENCE_S,
    SLICE_S,
    Action,
    Drain,
    Keep,
    Load,
    Memory,
    Model,
    Phase,
    Room,
    Stop,
    Wait,
    Why,
    plan,
    room,
)
from bramley.router.policy import ModelPolicy

NOW_S = 1000.0
SPENT = Memory(free=0, most=2)
AMPLE = Memory(free=2, most=2)


def model(name: str, **fields: Any) -> Model:
    defaults: dict[str, Any] = {"needed": 1, "policy": ModelPolicy(load="demand")}
    return Model(name=ModelName(name), **{**defaults, **fields})


def asked_for(name: str, waited_s: float = 1.0, **fields: Any) -> Model:
    return model(name, waiting=1, waiting_since_s=NOW_S - waited_s, **fields)


def loaded(name: str, **fields: Any) -> Model:
    return model(name, phase=Phase.LOADED, held=1, **fields)


def draining(name: str, **fields: Any) -> Model:
    return model(name, phase=Phase.DRAINING, **{"held": 1, **fields})


def a(name: str) -> ModelName:
    return ModelName(name)


@pytest.mark.parametrize(
    ("models", "memory", "action"),
    [
        # What is loaded, and when
        ([model("a")], AMPLE, Wait(inf)),
        ([asked_for("a")], AMPLE, Load(a("a"))),
        ([model("a", is_asked=True)], AMPLE, Load(a("a"))),
        ([asked_for("a", policy=ModelPolicy(load="manual"))], AMPLE, Wait(inf)),
        ([model("a", is_asked=True, policy=ModelPolicy(load="manual"))], AMPLE, Load(a("a"))),
        ([asked_for("a", 1), asked_for("b", 2)], AMPLE, Load(a("b"))),
        ([asked_for("a", needed=3)], AMPLE, Wait(inf)),
        ([asked_for("a", 9, needed=3), asked_for("b", 1)], AMPLE, Load(a("b"))),
        # Who makes room
        (
            [asked_for("a"), loaded("b", used_s=7), loaded("c", used_s=5)],
            SPENT,
            Drain(a("c"), Why.ROOM),
        ),
        (
            [asked_for("a"), loaded("b", is_pinned=True), loaded("c", used_s=9)],
            SPENT,
            Drain(a("c"), Why.ROOM),
        ),
        (
            [asked_for("a", needed=2), loaded("b"), loaded("c", is_pinned=True)],
            SPENT,
            Wait(inf),
        ),
        ([asked_for("a"), draining("b", running=1)], SPENT, Wait(NOW_S - 1 + PATIENCE_S)),
        (
            [asked_for("a"), model("b", phase=Phase.STOPPING, held=1)],
            SPENT,
            Wait(NOW_S - 1 + PATIENCE_S),
        ),
        # A smaller one does not slip in before the first
        (
            [asked_for("a", 3, needed=2), asked_for("b", 1), loaded("c", running=1)],
            Memory(1, 2),
            Wait(NOW_S - 3 + PATIENCE_S),
        ),
        # Unless the first has no room beside what is pinned
        (
            [asked_for("a", 9, needed=2), asked_for("b", 1), loaded("c", is_pinned=True)],
            Memory(1, 2),
            Load(a("b")),
        ),
        # One that is in use makes room after some patience, if it had its time
        ([asked_for("a", 1), loaded("b", running=1)], SPENT, Wait(NOW_S - 1 + PATIENCE_S)),
        ([asked_for("a", 6), loaded("b", running=1)], SPENT, Drain(a("b"), Why.ROOM)),
        (
            [model("a", is_asked=True, waiting_since_s=NOW_S - 6), loaded("b", running=1)],
            SPENT,
            Drain(a("b"), Why.ROOM),
        ),
        (
            [asked_for("a", 6), loaded("b", running=1, loaded_s=NOW_S - 9, ready_s=NOW_S - 1)],
            SPENT,
            Wait(NOW_S - 1 + SLICE_S),
        ),
        # It is not given up while it loads, for long
        (
            [asked_for("a", 60), loaded("b", waiting=1, loaded_s=NOW_S - 60)],
            SPENT,
            Wait(NOW_S - 60 + LOAD_S),
        ),
        (
            [asked_for("a", 60), loaded("b", waiting=1, loaded_s=NOW_S - LOAD_S)],
            SPENT,
            Drain(a("b"), Why.ROOM),
        ),
        ([asked_for("a", 6), loaded("b", running=1, is_pinned=True)], SPENT, Wait(inf)),
        # Draining
        ([draining("a", why=Why.ASKED, running=1)], AMPLE, Wait(inf)),
        ([draining("a", why=Why.ASKED, running=1, drain_until_s=NOW_S)], AMPLE, Stop(a("a"))),
        ([draining("a", why=Why.ASKED)], AMPLE, Stop(a("a"))),
        ([draining("a", why=Why.IDLE, waiting=1, running=1)], AMPLE, Keep(a("a"))),
        ([draining("a", why=Why.ROOM, waiting=1, running=1)], AMPLE, Keep(a("a"))),
        ([draining("a", why=Why.ASKED, waiting=1, running=1)], AMPLE, Wait(inf)),
        ([draining("a", why=Why.CHANGED, waiting=1, running=1)], AMPLE, Wait(inf)),
        # Idle
        (
            [loaded("a", policy=ModelPolicy(idle_unload_s=9), used_s=NOW_S - 9)],
            AMPLE,
            Drain(a("a"), Why.IDLE),
        ),
        (
            [loaded("a", policy=ModelPolicy(idle_unload_s=9), used_s=NOW_S - 8)],
            AMPLE,
            Wait(NOW_S + 1),
        ),
        ([loaded("a", policy=ModelPolicy(idle_unload_s=9), used_s=1, running=1)], AMPLE, Wait(inf)),
        (
            [loaded("a", policy=ModelPolicy(idle_unload_s=9), used_s=1, is_pinned=True)],
            AMPLE,
            Wait(inf),
        ),
        ([loaded("a", policy=ModelPolicy(), used_s=1)], AMPLE, Wait(inf)),
    ],
)
def test_the_next_action(models: list[Model], memory: Memory, action: Action) -> None:
    assert plan(models, memory, NOW_S) == action


def test_a_model_whose_room_another_waits_for_is_not_kept() -> None:
    leaving = draining("a", why=Why.ROOM, waiting=1, running=1)
    assert plan([leaving, asked_for("b")], SPENT, NOW_S) != Keep(a("a"))


@pytest.mark.parametrize(
    ("others", "memory", "answer"),
    [
        ([], Memory(1, 2), Room.NOW),
        ([loaded("b")], SPENT, Room.SOON),
        ([draining("b", running=1)], SPENT, Room.SOON),
        ([loaded("b", running=1)], SPENT, Room.LATER),
        ([loaded("b", is_pinned=True)], SPENT, Room.LATER),
        ([], Memory(0, 0), Room.NEVER),
    ],
)
def test_whether_there_is_room(others: list[Model], memory: Memory, answer: Room) -> None:
    first = model("a", is_asked=True)
    assert room(first, [first, *others], memory) is answer
    assert room(replace(first, needed=0), [first, *others], memory) is Room.NOW
