"""Rows that outlive their request, rows that share a prompt, rows that are sent back."""

from collections.abc import Iterator

import numpy as np
import pytest

from bramley.cachestore import keys
from bramley.common.wire import pack_ids
from bramley.worker.board import Board
from bramley.worker.models.contract import LanguageModel, LayerCache
from bramley.worker.request import LogprobRule, Priority, Request
from bramley.worker.sampling.params import SamplingParams
from support.engines import FULL, InProcessEngine, Outcome, oracle, request
from support.tiny_models import build

SCOPE = b"scope"
LAYERS = {"full": (FULL, FULL), "sliding": (LayerCache(kind="rotating", window=8), FULL)}


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, count)]


PROMPT = tokens(1, 40)


@pytest.fixture(scope="module", params=sorted(LAYERS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(kind: str) -> LanguageModel:
    return build("full" if kind == "full" else "sliding", seed=5)


@pytest.fixture
def engine(kind: str, model: LanguageModel) -> Iterator[InProcessEngine]:
    made = InProcessEngine(model, layers=LAYERS[kind])
    yield made
    made.close()


@pytest.fixture
def alone(kind: str, model: LanguageModel) -> "Alone":
    return Alone(kind, model)


class Alone:
    """ORACLE for one kind of model."""

    def __init__(self, kind: str, model: LanguageModel) -> None:
        self._kind, self._model = kind, model

    def __call__(self, one: Request) -> list[int]:
        return oracle(self._model, one, layers=LAYERS[self._kind])


def test_the_next_turn_goes_on_from_the_parked_row(engine: InProcessEngine, alone: Alone) -> None:
    first = engine.run(request("first", PROMPT, scope=SCOPE))["first"]
    turn = [*PROMPT, *first, *tokens(2, 9)]
    assert engine.run(request("next", turn, scope=SCOPE))["next"] == alone(request("next", turn))
    assert engine.outcomes["next"].parked == len(PROMPT) + len(first) - 1
    assert engine.engine.counters.parked == 1


def test_the_worker_s_report_names_the_rows_that_a_prompt_can_go_on_from(
    engine: InProcessEngine,
) -> None:
    board = Board(engine.engine.counters, {})
    assert list(board.load().row_chains) == []
    long = tokens(7, 600)
    answer = engine.run(request("long", long, scope=SCOPE, max_tokens=4))["long"]
    engine.run(request("short", PROMPT, scope=SCOPE, max_tokens=4))
    chains = keys.chain(SCOPE, pack_ids([*long, *answer]))
    assert list(board.load().row_chains) == [chains[32:64]]
    engine.run(request("other", tokens(8, 600), max_tokens=1))  # nobody may share it
    assert list(board.load().row_chains) == [chains[32:64]]


def test_an_edited_turn_goes_on_from_where_it_still_agrees(
    engine: InProcessEngine, alone: Alone
) -> None:
    engine.run(request("first", PROMPT, scope=SCOPE, max_tokens=4))
    edited = [*PROMPT[:30], *tokens(3, 12)]
    assert engine.run(request("next", edited, scope=SCOPE))["next"] == alone(
        request("next", edited)
    )
    assert engine.outcomes["next"].parked == 30  # within what a window can take back


def test_b016_the_same_prompt_again_leaves_one_token_to_compute(engine: InProcessEngine) -> None:
    first = engine.run(request("first", PROMPT, scope=SCOPE))["first"]
    for turn in range(3):
        assert engine.run(request(f"{turn}", PROMPT, scope=SCOPE))[f"{turn}"] == first
        assert engine.outcomes[f"{turn}"].parked == len(PROMPT) - 1
    together = engine.run(*[request(f"t{n}", PROMPT, scope=SCOPE) for n in range(4)])
    assert all(answer == first for answer in together.values())


def test_scopes_and_requests_without_one_share_nothing(engine: InProcessEngine) -> None:
    engine.run(request("first", PROMPT, scope=SCOPE))
    engine.run(request("other", PROMPT, scope=b"other"), request("none", PROMPT))
    assert engine.outcomes["other"].parked == engine.outcomes["none"].parked == 0


def test_a_parked_row_goes_when_its_seat_is_needed(engine: InProcessEngine, alone: Alone) -> None:
    for number in range(8):
        engine.run(request(f"p{number}", tokens(10 + number, 30), scope=SCOPE, max_tokens=3))
    assert engine.engine.counters.parked == 8
    engine.run(request("new", tokens(30, 20), scope=SCOPE, max_tokens=3))
    assert engine.engine.counters.parked == 8
    again = request("p0", tokens(10, 30), scope=SCOPE, max_tokens=3)  # the oldest, which went
    assert engine.run(again)["p0"] == alone(request("p0", tokens(10, 30), max_tokens=3))
    assert engine.outcomes["p0"].parked == 0


def test_no_more_is_parked_than_may_be(kind: str, model: LanguageModel) -> None:
    engine = InProcessEngine(model, layers=LAYERS[kind], parked_bytes=0)
    first = engine.run(request("first", PROMPT, scope=SCOPE))["first"]
    assert engine.engine.counters.parked == 0
    assert engine.run(request("again", PROMPT, scope=SCOPE))["again"] == first
    engine.close()


def test_parked_rows_stay_as_they_are_while_others_run(
    engine: InProcessEngine, alone: Alone
) -> None:
    firsts = {f"a{n}": tokens(40 + n, 10 + 5 * n) for n in range(3)}
    ran = engine.run(*[request(name, prompt, scope=SCOPE) for name, prompt in firsts.items()])
    engine.run(*[request(f"b{n}", tokens(50 + n, 25), max_tokens=20) for n in range(4)])
    for name, prompt in firsts.items():
        turn = [*prompt, *ran[name], 7, 8, 9]
        expected = alone(request("turn", turn))
        assert engine.run(request(f"turn {name}", turn, scope=SCOPE))[f"turn {name}"] == expected
        assert engine.outcomes[f"turn {name}"].parked >= len(prompt) + len(ran[name]) - 1


def test_four_answers_share_one_prefill(engine: InProcessEngine, alone: Alone) -> None:
    def one(n: int, leader: Request | None = None) -> Request:
        sampling = SamplingParams(temperature=1.0, seed=n)
        return request(f"{n}", PROMPT, sampling=sampling, leader=leader)

    leader = one(0)
    answers = engine.run(leader, *[one(n, leader) for n in (1, 2, 3)])
    assert answers == {f"{n}": alone(one(n)) for n in range(4)}
    assert len(set(map(tuple, answers.values()))) == 4
    # The prompt once, and its last token for each.
    assert engine.engine.counters.prompt_tokens == len(PROMPT) - 1 + 4


def test_answers_share_the_prefill_of_a_prompt_whose_logprobs_are_told(
    engine: InProcessEngine, alone: Alone
) -> None:
    leader = request("0", PROMPT, logprobs=LogprobRule(prompt=True))
    answers = engine.run(leader, request("1", PROMPT, leader=leader))
    assert set(map(tuple, answers.values())) == {tuple(alone(request("x", PROMPT)))}
    assert engine.engine.counters.prompt_tokens == len(PROMPT) + 1
    assert len(engine.outcomes["0"].prompt_logprobs) == len(PROMPT) - 1


def test_followers_without_a_seat_are_served_when_their_leader_is_gone(
    kind: str, model: LanguageModel, alone: Alone
) -> None:
    engine = InProcessEngine(model, layers=LAYERS[kind], max_rows=2)
    leader = request("0", PROMPT)
    answers = engine.run(leader, *[request(f"{n}", PROMPT, leader=leader) for n in (1, 2, 3)])
    assert set(map(tuple, answers.values())) == {tuple(alone(request("x", PROMPT)))}
    engine.close()


def test_a_leader_that_is_cancelled_leaves_its_followers_to_themselves(
    kind: str, model: LanguageModel, alone: Alone
) -> None:
    engine = InProcessEngine(model, layers=LAYERS[kind], chunk_tokens=16)
    leader = request("0", tokens(5, 300))
    follower = request("1", tokens(5, 300), leader=leader)
    engine.at_step[1] = lambda: engine.engine.cancel("0")
    engine.submit(leader, follower)
    engine.finished("1")
    assert engine.outcomes["1"].tokens == alone(request("x", tokens(5, 300)))
    engine.close()


def test_a_bulk_request_gives_its_seat_away_and_its_client_sees_nothing(
    kind: str, model: LanguageModel, alone: Alone
) -> None:
    engine = InProcessEngine(model, layers=LAYERS[kind], max_rows=1)
    sampling = SamplingParams(temperature=1.0, seed=4)
    bulk = request("bulk", PROMPT, max_tokens=900, priority=Priority.BULK, sampling=sampling)
    engine.submit(bulk)
    for number in range(2):
        seen = len(engine.outcomes["bulk"].tokens)
        engine.until(lambda seen=seen: len(engine.outcomes["bulk"].tokens) > seen + 3)
        name = f"urgent {number}"
        urgent = tokens(60 + number, 12)
        assert engine.run(request(name, urgent))[name] == alone(request("u", urgent))
    engine.finished("bulk")
    assert engine.outcomes["bulk"].preempted == 2
    assert engine.outcomes["bulk"].tokens == alone(
        request("x", PROMPT, max_tokens=900, sampling=sampling)
    )
    engine.close()


def test_rows_of_very_different_lengths_run_as_two_cohorts(
    kind: str, model: LanguageModel, alone: Alone
) -> None:
    engine = InProcessEngine(model, layers=LAYERS[kind], waste_columns=200)
    long = request("long", tokens(8, 300), max_tokens=40)
    shorts = [request(f"s{n}", tokens(70 + n, 8 + n), max_tokens=30) for n in range(3)]
    answers = engine.run(long, *shorts)
    assert len(engine.cohorts) == 2
    assert answers["long"] == alone(request("x", tokens(8, 300), max_tokens=40))
    for n in range(3):
        assert answers[f"s{n}"] == alone(request("x", tokens(70 + n, 8 + n), max_tokens=30))
    engine.close()


@pytest.mark.parametrize("reused", [0, 24])
def test_b020_a_paused_prefill_goes_on_where_it_was(
    kind: str, model: LanguageModel, alone: Alone, reused: int
) -> None:
    engine = InProcessEngine(model, layers=LAYERS[kind], chunk_tokens=8)
    if reused:
        engine.run(request("before", PROMPT[:reused], scope=SCOPE, max_tokens=1))
    began = engine.engine.counters.prompt_tokens
    urgent = request("urgent", tokens(9, 30), priority=Priority.SYSTEM)
    engine.outcomes["paused"] = Outcome()

    def interrupt() -> None:
        if len(engine.outcomes["paused"].progress) == 2:
            engine.submit(urgent)
        else:
            engine.at_step[engine.step + 1] = interrupt

    engine.at_step[engine.step + 1] = interrupt
    engine.submit(request("paused", PROMPT, scope=SCOPE, wants_progress=True))
    engine.finished("paused")
    engine.finished("urgent")
    assert engine.outcomes["paused"].progress == [*range(reused + 8, 39, 8), 39]
    assert engine.outcomes["paused"].tokens == alone(request("x", PROMPT))
    assert engine.outcomes["urgent"].tokens == alone(request("x", tokens(9, 30)))
    assert engine.engine.counters.prompt_tokens - began == len(PROMPT) - reused + 30
    engine.run(request("after", [*PROMPT, 5, 6], scope=SCOPE))
    assert engine.outcomes["after"].tokens == alone(request("x", [*PROMPT, 5, 6]))
    engine.close()
