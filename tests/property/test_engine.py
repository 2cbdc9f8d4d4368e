"""Whatever joins, leaves and competes in an engine: an answer is what it is alone."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from bramley.worker.engine.outputs import Output
from bramley.worker.models.contract import LanguageModel
from bramley.worker.models.mlx_lm import layer_caches
from bramley.worker.request import LogprobRule, Priority, Request
from bramley.worker.sampling.params import SamplingParams
from support.engines import InProcessEngine, Outcome, request
from support.tiny_models import KINDS, build

MODELS = {kind: build(kind, seed=5) for kind in KINDS}
LAYERS = {kind: layer_caches(model) for kind, model in MODELS.items()}
LENGTHS = (1, 2, 15, 16, 17, 31, 60, 100, 255, 256, 257, 300)
ROOMY = 1 << 30
TOKEN_BYTES = 2 * 2 * 16 * 4  # of one layer: keys and values, two heads of 16 floats


@dataclass(frozen=True)
class Setting:
    """An engine's: how many share it, and what they compete for."""

    rows: int
    chunk_tokens: int = 64
    waste_columns: int = ROOMY
    room: int | None = None  # rows as long as the longest
    parked_bytes: int = ROOMY


SETTINGS = {
    "small chunks": Setting(8, chunk_tokens=16),
    "cohorts": Setting(6, waste_columns=200, parked_bytes=1),
    "few rows": Setting(2, chunk_tokens=2048),
    "little memory": Setting(6, room=3, parked_bytes=0),
    "hardly any memory": Setting(8, waste_columns=400, room=1),
}


@dataclass
class Wish:
    """A request that can be made more than once."""

    name: str
    prompt: list[int]
    max_tokens: int
    sampling: SamplingParams
    priority: Priority
    scope: bytes
    logprobs: LogprobRule | None
    eos: frozenset[int]
    min_tokens: int

    def make(self, *, leader: Request | None = None, is_alone: bool = False) -> Request:
        return request(
            self.name,
            self.prompt,
            max_tokens=self.max_tokens,
            eos=self.eos,
            min_tokens=self.min_tokens,
            sampling=self.sampling,
            logprobs=self.logprobs,
            priority=Priority.DEFAULT if is_alone else self.priority,
            scope=b"" if is_alone else self.scope,
            leader=leader,
        )


class Watched(InProcessEngine):
    """Keeps the most bytes that the rows' state ever took after a step."""

    most_bytes = 0

    def _deliver(self, outputs: Sequence[Output]) -> None:
        now = sum(cohort.nbytes for cohort in self.cohorts)
        self.most_bytes = max(self.most_bytes, now)
        super()._deliver(outputs)


def sampling(draw: random.Random) -> SamplingParams:
    """Greedy, seeded, or with a history, each often."""
    if draw.random() < 0.4:
        return SamplingParams()
    seed, temperature = draw.getrandbits(64), draw.choice([0.0, 0.8, 1.5])
    if draw.random() < 0.5:
        top_p, top_k = draw.choice([0.5, 0.95]), draw.choice([0, 20])
        return SamplingParams(seed=seed, temperature=temperature, top_p=top_p, top_k=top_k)
    return SamplingParams(
        seed=seed,
        temperature=temperature,
        repetition_penalty=draw.choice([1.0, 1.3]),
        frequency_penalty=draw.choice([0.0, 0.7]),
        penalty_window=draw.choice([0, 1, 20]),
        logit_bias=((draw.randrange(256), draw.uniform(-100, 100)),),
        bad_words=(tuple(draw.randrange(256) for _ in range(draw.randint(1, 3))),),
    )


def wishes(draw: random.Random, count: int) -> list[Wish]:
    """Prompts that share beginnings in all ways: equal, longer, shorter, another end."""
    stems = [[draw.randrange(256) for _ in range(300)] for _ in range(2)]
    made: list[Wish] = []
    for number in range(count):
        prompt = draw.choice(stems)[: draw.choice(LENGTHS)]
        if draw.random() < 0.4:
            prompt = [*prompt[:-1], draw.randrange(256)]
        if draw.random() < 0.2:
            prompt = [*prompt, *(draw.randrange(256) for _ in range(draw.randint(1, 40)))]
        max_tokens = draw.choice([1, 5, 12, 20, 40])
        rule = LogprobRule(draw.choice([0, 3]), draw.random() < 0.5)
        made.append(
            Wish(
                f"{number}",
                prompt,
                max_tokens,
                sampling(draw),
                draw.choice([Priority.BULK, *Priority]),
                draw.choice([b"", b"a", b"a", b"b"]),
                rule if draw.random() < 0.3 else None,
                frozenset(draw.sample(range(256), 20)) if draw.random() < 0.5 else frozenset(),
                draw.choice([0, 0, 3]) if max_tokens >= 3 else 0,
            )
        )
    return made


@pytest.fixture(scope="module", params=sorted(LAYERS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(kind: str) -> LanguageModel:
    return MODELS[kind]


def each(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def play(engine: Watched, draw: random.Random, wanted: list[Wish]) -> set[str]:
    """Submit in bursts, some as several answers, and cancel some; who was cancelled."""
    cancelled: set[str] = set()
    actions: list[Callable[[], None]] = []
    while wanted:
        burst, wanted = wanted[: (size := draw.randint(1, 8))], wanted[size:]
        leads = len(burst) > 1 and draw.random() < 0.4
        for one in burst[1:] if leads else ():
            one.prompt, one.scope, one.priority = burst[0].prompt, burst[0].scope, burst[0].priority
        made = [burst[0].make()]
        made += [one.make(leader=made[0] if leads else None) for one in burst[1:]]
        actions.append(lambda made=made: engine.submit(*made))
        if draw.random() < 0.4:
            victim = draw.choice(burst).name
            cancelled.add(victim)
            actions.append(lambda victim=victim: engine.engine.cancel(victim))
    at, planned = 1, dict[int, list[Callable[[], None]]]()
    for action in actions[1:]:
        at += draw.choice([0, 1, 1, 2, 3, 8])
        planned.setdefault(at, []).append(action)
    for step, some in planned.items():
        engine.at_step[step] = partial(each, some)
    actions[0]()
    while engine.at_step:
        engine.idle()
        if engine.at_step:
            engine.at_step.pop(min(engine.at_step))()
    return cancelled


def same(outcome: Outcome, alone: Outcome, *, is_cut: bool) -> bool:
    """Whether an outcome is the one alone, or as much of it as there was before a cancel."""
    if is_cut:
        return outcome.tokens == alone.tokens[: len(outcome.tokens)]
    return (
        outcome.tokens == alone.tokens
        and outcome.finish == alone.finish
        and [one.top_ids for one in outcome.logprobs] == [one.top_ids for one in alone.logprobs]
        and len(outcome.prompt_logprobs) == len(alone.prompt_logprobs)
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_whoever_joins_and_leaves_an_answer_is_the_one_alone_and_nothing_is_left(
    kind: str, model: LanguageModel, name: str
) -> None:
    draw, setting = random.Random(name), SETTINGS[name]  # noqa: S311
    wanted = wishes(draw, 24)
    longest = max(len(one.prompt) + one.max_tokens for one in wanted)
    row_bytes = len(LAYERS[kind]) * (longest + 256 + 256) * TOKEN_BYTES
    state_bytes = setting.room and setting.room * row_bytes * 8 // 7  # an eighth is for a chunk
    engine = Watched(
        model,
        layers=LAYERS[kind],
        chunk_tokens=setting.chunk_tokens,
        waste_columns=setting.waste_columns,
        max_rows=setting.rows,
        state_bytes=state_bytes,
        parked_bytes=setting.parked_bytes,
    )
    alone = InProcessEngine(model, layers=LAYERS[kind])
    cancelled = play(engine, draw, list(wanted))
    engine.finished(*(one.name for one in wanted if one.name not in cancelled))
    engine.idle()
    for one in wanted:
        alone.run(one.make(is_alone=True))
    wrong = [
        one.name
        for one in wanted
        if not same(
            engine.outcomes[one.name],
            alone.outcomes[one.name],
            is_cut=one.name in cancelled and engine.outcomes[one.name].finish is None,
        )
    ]
    assert not wrong
    assert not [one.error for one in engine.outcomes.values() if one.error is not None]
    counters = engine.engine.counters
    assert counters.completion_tokens == sum(len(one.tokens) for one in engine.outcomes.values())
    assert state_bytes is None or engine.most_bytes <= state_bytes
    engine.close()
    alone.close()
    left = sum(len(cohort.slots) for cohort in engine.cohorts)
    assert left == counters.parked <= setting.rows
