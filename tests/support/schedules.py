"""Replays arrivals through the scheduler on a clock that it sets itself.

``PYTHONPATH=tests python tests/support/schedules.py`` writes the golden schedules anew: the
difference is what a change of policy has to answer for.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bramley.worker.engine.costs import Costs
from bramley.worker.engine.plan import Admission, Part
from bramley.worker.engine.scheduler import Limits, admit, schedule, share_of_decoding
from bramley.worker.engine.slots import Slots
from bramley.worker.request import Phase, Priority, Request, StopRule
from bramley.worker.sampling.params import SamplingParams

FOLDER = Path(__file__).parents[1] / "golden" / "schedules"
STEPS_MAX = 400


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request that comes at a time."""

    id: str
    at_s: float = 0.0
    prompt: int
    tokens: int = 4
    priority: Priority = Priority.DEFAULT
    leader: str = ""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What comes, and the machine that it comes to: 1/16 s a forward, 1/1024 s a token more."""

    arrivals: Sequence[Arrival]
    rows: int = 4
    decode_s: float = 1 / 8


SCENARIOS = {
    "one_after_the_other": Scenario(
        arrivals=[Arrival(id="a", prompt=3), Arrival(id="b", prompt=40, at_s=2.0)]
    ),
    "long_prompt_beside_streams": Scenario(
        arrivals=[
            Arrival(id="s1", prompt=20, tokens=40),
            Arrival(id="s2", prompt=20, tokens=40),
            Arrival(id="long", prompt=1200, at_s=1.0),
            Arrival(id="short", prompt=12, at_s=1.3),
        ]
    ),
    "burst_of_short_prompts": Scenario(
        arrivals=[Arrival(id=f"r{n}", prompt=20 + n, tokens=3) for n in range(6)]
    ),
    "classes": Scenario(
        rows=1,
        arrivals=[
            Arrival(id="bulk", prompt=10, tokens=2, priority=Priority.BULK),
            Arrival(id="default", prompt=10, tokens=2, at_s=0.01),
            Arrival(id="chat", prompt=10, tokens=2, at_s=0.02, priority=Priority.INTERACTIVE),
        ],
    ),
    "bulk_gives_way_and_returns": Scenario(
        rows=1,
        arrivals=[
            Arrival(id="bulk", prompt=30, tokens=12, priority=Priority.BULK),
            Arrival(id="chat", prompt=10, tokens=2, at_s=1.0, priority=Priority.INTERACTIVE),
        ],
    ),
    "four_answers_to_one_prompt": Scenario(
        arrivals=[
            Arrival(id="n0", prompt=300, tokens=3),
            *[Arrival(id=f"n{n}", prompt=300, tokens=3, leader="n0") for n in (1, 2, 3)],
        ]
    ),
}


@dataclass
class _Replay:
    scenario: Scenario
    now_s: float = 0.0
    costs: Costs = field(default_factory=lambda: Costs(1 / 16, 1 / 1024))
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    waiting: dict[str, Request] = field(default_factory=dict[str, Request])

    def __post_init__(self) -> None:
        self.slots = Slots(self.scenario.rows)
        self.coming = sorted(self.scenario.arrivals, key=lambda one: one.at_s)

    def steps(self) -> Iterator[dict[str, Any]]:
        """Run to the end, a line a step."""
        for _ in range(STEPS_MAX):
            if not self._arrive():
                return
            at_s, waiting = self.now_s, list(self.waiting)
            admission = self._admit()
            seated = self.slots.seated
            parts = schedule(seated, dict.fromkeys(range(99), 0), self.costs, Limits(2048))
            yield {"at_s": at_s, "waiting": waiting, **admission, **self._run(parts)}
        raise AssertionError("it never ends")

    def _arrive(self) -> bool:
        if not self.waiting and not self.slots.seated and self.coming:
            self.now_s = max(self.now_s, self.coming[0].at_s)
        while self.coming and self.coming[0].at_s <= self.now_s:
            come = self.coming.pop(0)
            self.waiting[come.id] = self.requests[come.id] = Request(
                id=come.id,
                prompt=[1] * come.prompt,
                stop=StopRule(max_tokens=come.tokens),
                sampling=SamplingParams(),
                priority=come.priority,
                arrived_s=come.at_s,
                leader=self.requests.get(come.leader),
            )
        return bool(self.waiting or self.slots.seated)

    def _admit(self) -> dict[str, list[str]]:
        waiting = list(self.waiting.values())
        told: Admission = admit(self.slots.seated, waiting, self.slots.free, self.costs)
        preempted: list[str] = []
        for slot in told.preempt:
            victim = self.slots[slot]
            self.slots.leave(victim)
            victim.computed = 0
            victim.enter(Phase.WAITING)
            self.waiting[victim.id] = victim
            preempted.append(victim.id)
        for request_id in told.seat:
            request = self.waiting.pop(request_id)
            request.enter(Phase.SEATED)
            self.slots.seat(request)
            leader = request.leader
            if leader is not None and leader.phase is Phase.SEATED:
                request.computed = len(request.prompt) - 1
        return {"preempt": preempted, "seat": list(told.seat)}

    def _run(self, parts: Sequence[Part]) -> dict[str, Any]:
        names = {part.slot: self.slots[part.slot].id for part in parts}
        chunk = {names[part.slot]: part.tokens for part in parts}
        if parts:
            share = share_of_decoding(self.slots.seated)
            for part in parts:
                self.slots[part.slot].computed += part.tokens
            seconds = self.costs.seconds(len(chunk) * max(chunk.values()))
            self.costs.prefilled(len(chunk) * max(chunk.values()), seconds, share)
            self.now_s += seconds
        ready = [one for one in self.slots.seated if not one.prompt_left]
        if ready:
            self.now_s += self.scenario.decode_s
            self.costs.decoded(self.scenario.decode_s)
        for one in ready:
            one.output.append(2)
            one.computed += 1
            if len(one.output) == one.stop.max_tokens:
                self.slots.leave(one)
                one.enter(Phase.ENDED)
        return {"chunk": chunk, "decode": [one.id for one in ready]}


def replay(scenario: Scenario) -> str:
    """Return what the scheduler does, a JSON line a step."""
    return "".join(json.dumps(step) + "\n" for step in _Replay(scenario).steps())


if __name__ == "__main__":
    for each, what in SCENARIOS.items():
        (FOLDER / f"{each}.jsonl").write_text(replay(what))
