"""The sampler: each row by its own rule, whatever shares the batch."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_xtc
from numpy.typing import NDArray

from bramley.worker.sampling.draws import first_within
from bramley.worker.sampling.filters import Filters, mass_floor
from bramley.worker.sampling.logprobs import LOGPROB_MIN, score
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.sampling.rows import best, best_values, invert
from bramley.worker.sampling.sampler import RowRule, RowSampler, Sampled
from bramley.worker.sampling.weights import LOG2_E, weigh
from support.arrays import floats, ids

VOCABULARY = 50
LOGITS = np.random.default_rng(7).normal(size=VOCABULARY).astype(np.float32) * 2
ORDER = list(np.argsort(-LOGITS))
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum()
TOP = int(ORDER[0])

Floats = NDArray[np.float32] | NDArray[np.float64]


def sampled(
    rules: Sequence[RowRule],
    logits: Floats,
    positions: Sequence[int],
    histories: Sequence[tuple[Sequence[int], Sequence[int]]] | None = None,
) -> Sampled:
    return RowSampler(rules).draw(mx.array(logits, mx.float32), positions, histories)


def draw(params: SamplingParams, count: int = 1, first: int = 0, **rule: Any) -> list[int]:
    """Draw from LOGITS at ``count`` positions, each in a row of its own."""
    rules = [RowRule(params, **rule)] * count
    drawn = sampled(
        rules, np.tile(LOGITS, (count, 1)), range(first, first + count), [((), ())] * count
    )
    return ids(drawn.tokens)


def follows(tokens: Sequence[int], probabilities: Floats) -> bool:
    """Tell whether chi-square stays within five of its standard deviations."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    if counts[probabilities == 0].any():
        return False
    expected = probabilities[probabilities > 0] * len(tokens)
    square = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    return square < freedom + 5 * math.sqrt(2 * freedom) + 5


def kept_by_sorting(weights: Floats, params: SamplingParams) -> tuple[set[int], set[int]]:
    """Return what a full sort keeps, and the ids too near a border for float32 to tell."""
    order = np.argsort(-weights, kind="stable")
    heavy = weights[order].astype(np.float64)
    before = (np.cumsum(heavy) - heavy) / heavy.sum()
    ranks = np.arange(len(heavy))
    kept = heavy >= params.min_p
    near = np.zeros(len(heavy), np.bool_)
    if params.top_p < 1:
        kept &= before < params.top_p
        near |= np.abs(before - params.top_p) < 1e-5
    if params.top_k:
        kept &= ranks < params.top_k
    return {int(i) for i in order[kept]}, {int(i) for i in order[near]}


def test_greedy_takes_the_most_likely() -> None:
    assert draw(SamplingParams(temperature=0.0), 3) == [TOP] * 3


def test_greedy_takes_the_first_of_equals() -> None:
    logits = np.zeros((2, 64), np.float32)
    logits[:, 9:] = 1
    rules = [RowRule(SamplingParams()), RowRule(SamplingParams(temperature=1.0, top_k=1))]
    assert ids(sampled(rules, logits, [0, 0]).tokens) == [9, 9]


@pytest.mark.parametrize("temperature", [0, 1e-3, 1e-5, 1e-6, 1e-9, 1e-40])
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 1.0])
@pytest.mark.parametrize("more", [{}, {"top_k": 5}, {"min_p": 0.5}, {"xtc_probability": 1.0}])
def test_b041_a_very_small_temperature_is_greedy(
    temperature: float, top_p: float, more: dict[str, Any]
) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p, **more)
    assert draw(params, 20) == [TOP] * 20


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=0.0),
        SamplingParams(temperature=1.0, top_p=1e-9),
        SamplingParams(temperature=1.0, top_p=0.05),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, min_p=1.0),
    ],
)
def test_b041_the_tightest_filter_keeps_the_top_token_alone(params: SamplingParams) -> None:
    assert draw(params, 50) == [TOP] * 50


def test_b041_a_neighbour_of_extreme_wishes_keeps_its_token() -> None:
    logits = np.tile(LOGITS, (2, 1))
    logits[1, 7:] = -np.inf
    rules = [
        RowRule(SamplingParams()),
        RowRule(SamplingParams(temperature=1e-5, top_p=1e-9)),
    ]
    assert ids(sampled(rules, logits, [0, 0]).tokens) == [TOP, logits[1, :7].argmax()]


@pytest.mark.parametrize("top_k", [0, 50, 51, 2**31 - 1])
def test_b041_as_many_as_the_vocabulary_or_more_keep_all(top_k: int) -> None:
    plain = SamplingParams(temperature=2.0, seed=5)
    assert draw(SamplingParams(temperature=2.0, seed=5, top_k=top_k), 200) == draw(plain, 200)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=1.0, seed=4, top_k=3),
        SamplingParams(temperature=1.0, seed=5, top_p=0.9),
        SamplingParams(temperature=1.0, seed=6, top_p=0.5),
        SamplingParams(temperature=1.0, seed=7, top_p=0.15),
        SamplingParams(temperature=1.0, seed=8, min_p=0.2),
        SamplingParams(temperature=1.0, seed=9, top_p=0.9, min_p=0.05),
        SamplingParams(temperature=1.0, seed=10, top_p=0.8, top_k=20),
        SamplingParams(temperature=1.0, seed=10, top_p=0.999999),
    ],
)
def test_draws_follow_the_kept_distribution(params: SamplingParams) -> None:
    kept, _ = kept_by_sorting(PROBABILITIES / PROBABILITIES.max(), params)
    wanted = np.array([p if i in kept else 0 for i, p in enumerate(PROBABILITIES)])
    tokens = draw(params, 8_000)
    assert follows(tokens, wanted / wanted.sum())
    assert not follows(tokens, np.roll(wanted, 1) / wanted.sum())


def test_temperature_divides_the_logits() -> None:
    wanted = np.exp(LOGITS.astype(np.float64) / 1.7)
    assert follows(draw(SamplingParams(temperature=1.7, seed=1), 8_000), wanted / wanted.sum())


@pytest.mark.parametrize("size", [50, 97, 1024, 3000])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_k=7),
        SamplingParams(temperature=1.0, top_k=40, top_p=0.95),
        SamplingParams(temperature=1.0, top_k=900, min_p=0.001),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, top_p=0.999),
        SamplingParams(temperature=1.0, top_p=0.01),
        SamplingParams(temperature=1.0, min_p=0.03),
    ],
)
@pytest.mark.parametrize("spread", [0.1, 2.0, 6.0])
def test_filters_keep_what_a_full_sort_keeps(
    size: int, params: SamplingParams, spread: float
) -> None:
    logits = np.random.default_rng(size).normal(size=(3, size)) * spread
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True)).astype(np.float32)
    left = floats(Filters([params] * 3, [False] * 3).apply(mx.array(weights), [0] * 3))
    for row, one in enumerate(weights):
        kept, near = kept_by_sorting(one, params)
        assert set(np.flatnonzero(left[row])) - near == kept - near
        assert len(near) < 5
        assert (left[row][left[row] > 0] == one[left[row] > 0]).all()


@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 1.0}])
def test_equals_at_the_border_are_kept_together(params: dict[str, Any]) -> None:
    weights = mx.array([[0.25, 1.0, 1.0, 0.5, 1.0]])
    asked = SamplingParams(temperature=1.0, **params)
    assert floats(Filters([asked], [False]).apply(weights, [0])).tolist() == [[0, 1, 1, 0, 1]]


@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.9, 0.97])
def test_drawing_again_keeps_to_what_top_p_keeps(top_p: float) -> None:
    params = SamplingParams(temperature=1.0, top_p=top_p, seed=2)
    kept, _ = kept_by_sorting(PROBABILITIES / PROBABILITIES.max(), params)
    assert set(draw(params, 4_000)) == kept


def test_the_likeliest_is_taken_where_top_p_keeps_no_try() -> None:
    weights = mx.array(PROBABILITIES / PROBABILITIES.max())[None]
    tries = mx.array([[int(ORDER[9]), int(ORDER[0]), int(ORDER[8])]])
    for count in (1, 2):
        taken = first_within(weights, tries, mx.array([[0.05]]), mx.array([count]))
        assert ids(taken) == [TOP]
    near = first_within(weights, tries[:, ::-1], mx.array([[0.9999]]), mx.array([3]))
    assert ids(near) == [int(ORDER[8])]


def test_a_flat_distribution_is_cut_by_top_p() -> None:
    floor = mass_floor(mx.ones((1, 640)), [0.5])
    assert floats(floor).tolist() == [[1.0]]
    falling = np.linspace(1, 0.5, 640, dtype=np.float32)[None]
    kept, _ = kept_by_sorting(falling[0], SamplingParams(temperature=1.0, top_p=0.5))
    assert (falling >= floats(mass_floor(mx.array(falling), [0.5]))).sum() == len(kept)


def test_a_token_is_a_function_of_seed_and_position() -> None:
    params = SamplingParams(temperature=1.0, seed=11)
    assert draw(params, 40) == draw(params, 40)
    assert draw(params, 1, first=17)[0] == draw(params, 40)[17]
    assert draw(params, 40) != draw(SamplingParams(temperature=1.0, seed=12), 40)


WISHES: list[RowRule] = [
    RowRule(SamplingParams()),
    RowRule(SamplingParams(temperature=1.0, seed=1), logprobs=0),
    RowRule(SamplingParams(temperature=0.7, seed=2, top_p=0.9), logprobs=3),
    RowRule(SamplingParams(temperature=1.9, seed=2, top_p=0.5)),
    RowRule(SamplingParams(temperature=1.9, seed=2, top_p=0.1, min_p=0.01)),
    RowRule(SamplingParams(temperature=1.3, seed=3, top_k=5, min_p=0.01)),
    RowRule(SamplingParams(temperature=1.3, seed=3, top_k=30, top_p=0.8), logprobs=1),
    RowRule(SamplingParams(temperature=1e-40, seed=4), min_until=9, blocked=frozenset({TOP})),
    RowRule(SamplingParams(temperature=1.5, seed=5, xtc_probability=0.5, top_p=0.95)),
    RowRule(SamplingParams(temperature=1.5, xtc_probability=0.9, xtc_exempt=frozenset({TOP}))),
    RowRule(SamplingParams(temperature=1.2, seed=6, repetition_penalty=1.4), logprobs=5),
    RowRule(SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, penalty_window=3)),
    RowRule(SamplingParams(temperature=1.0, logit_bias=((3, 2.0), (4, -100.0)))),
    RowRule(SamplingParams(temperature=1.0, bad_words=((5, 6), (TOP,)), top_p=0.99)),
]


@pytest.mark.parametrize("size", [50, 1088])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_row_draws_the_same_whatever_shares_the_batch(size: int, order: int) -> None:
    random = np.random.default_rng(order)
    picked = random.permutation(len(WISHES))[: 4 * order + 2]
    rules = [WISHES[int(i)] for i in picked]
    together, alone = RowSampler(rules), [RowSampler([rule]) for rule in rules]
    histories: list[tuple[list[int], list[int]]] = [([5, TOP, 3], []) for _ in rules]
    for step in range(12):
        logits = mx.array(random.normal(size=(len(rules), size)) * 2, mx.float32)
        positions = [3 + step + row for row in range(len(rules))]
        batch = together.draw(logits, positions, histories)
        for row in range(len(rules)):
            one = alone[row].draw(
                logits[row : row + 1], positions[row : row + 1], histories[row : row + 1]
            )
            assert ids(one.tokens)[0] == ids(batch.tokens)[row]
            _same_logprobs(one, batch, rules, row)
            histories[row][1].append(ids(one.tokens)[0])


def _same_logprobs(one: Sampled, batch: Sampled, rules: Sequence[RowRule], row: int) -> None:
    top = rules[row].logprobs
    if top < 0:
        assert one.scores is None
        return
    scored = sum(rule.logprobs >= 0 for rule in rules[:row])
    assert one.scores is not None
    assert batch.scores is not None
    assert next(one.scores.read()) == list(batch.scores.read())[scored].best(top)


def test_masked_tokens_are_never_drawn() -> None:
    logits = np.tile(LOGITS, (2000, 1))
    logits[:, TOP] = -np.inf
    rules = [RowRule(SamplingParams(temperature=2.0, seed=9))] * 2000
    assert TOP not in set(ids(sampled(rules, logits, range(2000)).tokens))


@pytest.mark.parametrize("place", [0, 63, 64, 100, 127])
def test_a_row_without_a_distribution_is_broken_and_no_other(place: int) -> None:
    logits = np.zeros((5, 128), np.float32)
    logits[0, place], logits[1, place] = np.nan, -np.inf
    logits[2, place], logits[3] = np.inf, -np.inf
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_p=0.9)):
        drawn = sampled([RowRule(params, logprobs=2)] * 5, logits, [0] * 5)
        assert drawn.broken.tolist() == [True, False, True, True, False]
        assert max(ids(drawn.tokens)) < 128


def test_half_precision_logits_are_drawn_from_as_they_are() -> None:
    logits = mx.array(LOGITS)[None].astype(mx.bfloat16)
    for params in (SamplingParams(), SamplingParams(temperature=0.8, seed=3)):
        exact = RowSampler([RowRule(params)]).draw(logits.astype(mx.float32), [4])
        assert ids(RowSampler([RowRule(params)]).draw(logits, [4]).tokens) == ids(exact.tokens)


def test_no_row_pays_for_logprobs_that_nobody_asked_for() -> None:
    drawn = sampled([RowRule(SamplingParams())] * 2, np.tile(LOGITS, (2, 1)), [0, 0])
    assert len(drawn.arrays()) == 2


def test_inverting_takes_the_last_weight_where_the_point_rounds_up_to_the_sum() -> None:
    weights = np.zeros((1, 200), np.float32)
    weights[0, [3, 70]] = 1.0
    points = mx.array([[0.0, 0.4999, 0.5, 1.0]])
    assert invert(mx.array(weights), points).tolist() == [[3, 3, 70, 70]]


@pytest.mark.parametrize("sharpness", [LOG2_E, LOG2_E / 7.3, LOG2_E * 50])
def test_weights_are_the_exponential(sharpness: float) -> None:
    logits = np.random.default_rng(1).normal(size=(1, 4096)).astype(np.float32) * 9
    top = float(logits.max())
    found = floats(weigh(mx.array(logits), mx.array([[top]]), sharpness))
    exponents = (logits.astype(np.float64) - top) * sharpness
    right = np.where(exponents > -126, 2.0**exponents, 0)
    near = np.abs(found - right) <= right * (4e-6 + 1e-7 * np.abs(exponents)) + 2.0**-125
    assert near.all()
    assert found.max() == 1.0


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.2, 0.6])
@pytest.mark.parametrize("exempt", [frozenset[int](), frozenset({TOP, int(ORDER[5])})])
def test_xtc_leaves_what_mlx_lm_leaves(threshold: float, exempt: frozenset[int]) -> None:
    params = SamplingParams(
        temperature=1.0, xtc_probability=1.0, xtc_threshold=threshold, xtc_exempt=exempt
    )
    weights = mx.array(PROBABILITIES / PROBABILITIES.max())[None]
    left = floats(Filters([params], [False]).apply(weights, [0]))[0]
    mx.disable_compile()
    oracle = apply_xtc(mx.array(LOGITS)[None], 1.0, min(threshold, 0.5), sorted(exempt))
    mx.enable_compile()
    assert ((left > 0) == np.isfinite(floats(oracle)[0])).all()


def test_xtc_happens_as_often_as_asked() -> None:
    params = SamplingParams(temperature=1.0, xtc_probability=0.3, xtc_threshold=0.05, top_k=20)
    kept, _ = kept_by_sorting(PROBABILITIES / PROBABILITIES.max(), params)
    base = np.array([p if i in kept else 0 for i, p in enumerate(PROBABILITIES)])
    base /= base.sum()
    least = base[base >= 0.05].min()
    cut = np.where(base > least, 0, base)
    wanted = 0.7 * base + 0.3 * cut / cut.sum()
    assert follows(draw(params, 8_000), wanted)


def penalised(
    logits: Floats, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> Floats:
    first = max(len(prompt) + len(output) - params.penalty_window, 0)
    first = first if params.penalty_window else 0
    generated = Counter(output[max(first - len(prompt), 0) :])
    changed = logits.astype(np.float64)
    for token in {*prompt[first:], *generated}:
        value = changed[token]
        factor = params.repetition_penalty
        changed[token] = value / factor if value > 0 else value * factor
        changed[token] -= params.presence_penalty * (token in generated)
        changed[token] -= params.frequency_penalty * generated[token]
    return changed


@pytest.mark.parametrize("window", [0, 1, 4, 9, 1000])
@pytest.mark.parametrize("penalties", [(1.5, 0.0, 0.0), (1.0, 0.7, 0.3), (0.8, -0.5, 0.4)])
def test_penalties_follow_the_history_as_it_grows(
    window: int, penalties: tuple[float, float, float]
) -> None:
    params = SamplingParams(
        repetition_penalty=penalties[0],
        presence_penalty=penalties[1],
        frequency_penalty=penalties[2],
        penalty_window=window,
    )
    random = np.random.default_rng(window)
    sampler = RowSampler([RowRule(params)])
    prompt, output = random.integers(0, VOCABULARY, 7).tolist(), list[int]()
    for _ in range(30):
        logits = random.normal(size=VOCABULARY).astype(np.float32)
        position = len(prompt) + len(output)
        drawn = sampler.draw(mx.array(logits)[None], [position], [(prompt, output)])
        token = ids(drawn.tokens)[0]
        assert token == penalised(logits, params, prompt, output).argmax()
        output.append(token)


def test_bias_is_added_and_bans_are_absolute() -> None:
    second, third = int(ORDER[1]), int(ORDER[2])
    assert draw(SamplingParams(logit_bias=((third, 50.0),))) == [third]
    assert draw(SamplingParams(bad_words=((TOP,),))) == [second]
    both = SamplingParams(bad_words=((TOP,),), logit_bias=((TOP, 100.0),))
    assert draw(both) == [second]


def test_a_bad_word_is_not_completed_though_it_begins_in_the_prompt() -> None:
    params = SamplingParams(bad_words=((4, 8, TOP),))
    sampler = RowSampler([RowRule(params)])
    logits = mx.array(LOGITS)[None]
    for history, banned in [
        (((4,), (8,)), True),
        (((1, 4, 8), ()), True),
        (((), (4, 8)), True),
        (((8,), (4,)), False),
        (((), (8,)), False),
    ]:
        token = ids(sampler.draw(logits, [2], [history]).tokens)[0]
        assert (token != TOP) == banned


def test_blocked_ids_may_be_drawn_from_a_position_on() -> None:
    params = SamplingParams()
    drawn = draw(params, 6, first=10, min_until=13, blocked=frozenset({TOP}))
    assert drawn == [int(ORDER[1])] * 3 + [TOP] * 3


def test_bans_that_leave_nothing_are_lifted() -> None:
    every = SamplingParams(
        bad_words=tuple((token,) for token in range(VOCABULARY)), logit_bias=((7, 90.0),)
    )
    drawn = sampled([RowRule(every), RowRule(SamplingParams())], np.tile(LOGITS, (2, 1)), [0, 0])
    assert ids(drawn.tokens) == [7, TOP]
    assert drawn.broken.tolist() == [False, False]


def test_b044_logprobs_are_those_of_their_ids() -> None:
    logits = np.full((2, 128), -np.inf, np.float32)
    logits[:, 65:68] = np.log([0.5, 0.3, 0.2]) + 7
    rules = [
        RowRule(SamplingParams(temperature=3.0, top_k=1, logit_bias=((67, 9.0),)), logprobs=3),
        RowRule(SamplingParams(), logprobs=0),
    ]
    drawn = sampled(rules, logits, [0, 0])
    assert ids(drawn.tokens) == [67, 65]
    assert drawn.scores is not None
    first, second = drawn.scores.read()
    assert [first.logprob, second.logprob] == pytest.approx(np.log([0.2, 0.5]), abs=1e-5)
    assert first.top_ids == (65, 66, 67)
    assert first.top_logprobs == pytest.approx(np.log([0.5, 0.3, 0.2]), abs=1e-5)


def test_b043_logprobs_are_finite() -> None:
    logits = np.full((1, 64), -np.inf, np.float32)
    logits[0, 5] = 3
    drawn = sampled([RowRule(SamplingParams(), logprobs=4)], logits, [0])
    assert drawn.scores is not None
    (told,) = drawn.scores.read()
    assert told.top_logprobs == (0.0, LOGPROB_MIN, LOGPROB_MIN, LOGPROB_MIN)
    assert len(set(told.top_ids)) == 4


@pytest.mark.parametrize("on_host", [True, False])
def test_a_prompt_is_scored_token_by_token(*, on_host: bool) -> None:
    logits = np.random.default_rng(2).normal(size=(9, 1000)).astype(np.float32) * 4 + 900
    targets = list(range(9))
    exact = logits.astype(np.float64) - 900
    right = exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    told = list(score(mx.array(logits), mx.array(targets), 6, on_host=on_host).read())
    assert [one.logprob for one in told] == pytest.approx(right[range(9), targets], abs=1e-5)
    assert [list(one.top_ids) for one in told] == np.argsort(-logits)[:, :6].tolist()
    tops = np.array([one.top_logprobs for one in told])
    assert tops == pytest.approx(-np.sort(-right)[:, :6], abs=1e-5)
    bare = score(mx.array(logits), mx.array(targets), 0, on_host=on_host)
    assert [one.top_ids for one in bare.read()] == [()] * 9


@pytest.mark.parametrize("size", [1, 7, 64, 97, 1536])
@pytest.mark.parametrize("count", [1, 5, 60])
def test_the_best_are_the_largest_in_order(size: int, count: int) -> None:
    rows = np.random.default_rng(size).integers(0, 9, (3, size)).astype(np.float32)
    found_ids, found = best(mx.array(rows), min(count, size))
    right = -np.sort(-rows, axis=-1)[:, :count]
    assert (floats(found) == right).all()
    assert (floats(best_values(mx.array(rows), min(count, size))) == right).all()
    assert found_ids.tolist() == np.argsort(-rows, axis=-1, kind="stable")[:, :count].tolist()
