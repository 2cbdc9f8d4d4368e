"""Whatever is asked for, memory is never over, nothing pinned leaves, and everybody has a turn."""

from dataclasses import dataclass, field, replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from bramley.common.ids import ModelName
from bramley.router.lifecycle import (
    PATIENCE_S,
    SLICE_S,
    Drain,
    Keep,
    Load,
    Memory,
    Model,
    Phase,
    Stop,
    Wait,
    Why,
    plan,
)
from bramley.router.policy import ModelPolicy

START_S = 20.0  # of a model's load
RUN_S = 3.0  # of a request, once its model is loaded
STOP_S = 2.0  # of a model's processes
ACTIONS_MAX = 50  # without time passing


@dataclass
class World:
    """Models that take their time to load and to stop, and run all that they are given."""

    most: int
    models: dict[str, Model]
    now_s: float = 0.0
    ends: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    loads: dict[str, float] = field(default_factory=dict[str, float])
    stops: dict[str, float] = field(default_factory=dict[str, float])
    waits: list[float] = field(default_factory=list[float])

    @property
    def memory(self) -> Memory:
        return Memory(self.most - sum(one.held for one in self.models.values()), self.most)

    def change(self, name: str, **fields: object) -> None:
        self.models[name] = replace(self.models[name], **fields)

    def arrive(self, name: str, count: int) -> None:
        one = self.models[name]
        since_s = min(one.waiting_since_s, self.now_s)
        self.change(name, waiting=one.waiting + count, waiting_since_s=since_s)

    def settle(self) -> float:
        """Act until there is nothing to do, and say until when."""
        for _ in range(ACTIONS_MAX):
            self._serve()
            match plan(list(self.models.values()), self.memory, self.now_s):
                case Wait(until_s):
                    return until_s
                case Load(name):
                    one = self.models[name]
                    assert one.phase is Phase.UNLOADED
                    assert one.needed <= self.memory.free
                    self.change(
                        name,
                        phase=Phase.LOADED,
                        held=one.needed,
                        is_asked=False,
                        loaded_s=self.now_s,
                        ready_s=inf,
                        used_s=self.now_s,
                    )
                    self.loads[name] = self.now_s + START_S
                case Drain(name, why):
                    assert not self.models[name].is_pinned
                    self.change(name, phase=Phase.DRAINING, why=why)
                case Keep(name):
                    self.change(name, phase=Phase.LOADED, why=None)
                case Stop(name):
                    assert not self.models[name].running
                    self.change(name, phase=Phase.STOPPING)
                    self.loads.pop(name, None)
                    self.stops[name] = self.now_s + STOP_S
            assert self.memory.free >= 0
        raise AssertionError("it never comes to rest")

    def _serve(self) -> None:
        for name, one in self.models.items():
            if one.phase is Phase.LOADED and one.ready_s < inf and one.waiting:
                self.waits.append(self.now_s - one.waiting_since_s)
                self.ends.setdefault(name, []).extend([self.now_s + RUN_S] * one.waiting)
                running = one.running + one.waiting
                self.change(name, running=running, waiting=0, waiting_since_s=inf)

    def go_on(self, until_s: float) -> None:
        """Let time pass, and what ends meanwhile end."""
        ends = [at_s for some in self.ends.values() for at_s in some]
        self.now_s = min([until_s, *ends, *self.loads.values(), *self.stops.values()])
        for name, some in self.ends.items():
            left = [at_s for at_s in some if at_s > self.now_s]
            if len(left) < len(some):
                self.change(name, running=len(left), used_s=self.now_s)
            self.ends[name] = left
        for name, at_s in list(self.loads.items()):
            if at_s <= self.now_s:
                del self.loads[name]
                self.change(name, ready_s=self.now_s)
        for name, at_s in list(self.stops.items()):
            if at_s <= self.now_s:
                del self.stops[name]
                self.change(name, phase=Phase.UNLOADED, held=0, why=None)


def models(draw: st.DrawFn) -> dict[str, Model]:
    return {
        name: Model(
            name=ModelName(name),
            policy=ModelPolicy(load="demand", idle_unload_s=draw(st.sampled_from([0.0, 4.0]))),
            needed=draw(st.integers(1, 3)),
        )
        for name in "abcd"
    }


@st.composite
def worlds(draw: st.DrawFn) -> World:
    return World(most=draw(st.integers(3, 7)), models=models(draw))


steps = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 3), st.floats(0.0, 6.0)), max_size=30
)


@settings(max_examples=150, deadline=None)
@given(worlds(), steps)
def test_everybody_is_served_in_bounded_time_and_memory_is_never_over(
    world: World, arrivals: list[tuple[str, int, float]]
) -> None:
    for name, count, gap_s in arrivals:
        world.arrive(name, count)
        target_s = world.now_s + gap_s
        while world.now_s < target_s:
            world.go_on(min(world.settle(), target_s))
    end_s = world.now_s + 1000.0
    while any(one.waiting for one in world.models.values()):
        assert world.now_s < end_s, "somebody waits for ever"
        world.go_on(min(world.settle(), end_s))
    # A turn is what one model has at most before the next one waiting has its memory.
    turn_s = PATIENCE_S + START_S + SLICE_S + RUN_S + STOP_S
    assert max(world.waits, default=0.0) <= len(world.models) * turn_s


@settings(max_examples=60, deadline=None)
@given(worlds(), steps)
def test_a_pinned_model_stays_whoever_waits(
    world: World, arrivals: list[tuple[str, int, float]]
) -> None:
    world.change("a", is_pinned=True, is_asked=True)
    world.settle()
    for name, count, gap_s in arrivals:
        world.arrive(name, count)
        target_s = world.now_s + gap_s
        while world.now_s < target_s:
            world.go_on(min(world.settle(), target_s))
        assert world.models["a"].phase is Phase.LOADED
        assert world.models["a"].why is not Why.ROOM
