"""Finds out, when a model is loaded, how its rows may share forwards without becoming wrong.

Some model files go wrong without an error where rows differ in length. So two short sequences
are run as they would be served, and each alone on the model's own caches, and the scores of
their next tokens compared. The first lane is taken whose scores agree.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import cast

import mlx.core as mx

from bramley.common.logs import facts
from bramley.worker.cache.build import build_states, model_caches
from bramley.worker.cache.table import RowTable
from bramley.worker.engine.cohort import Cohort
from bramley.worker.models.contract import Lane, LanguageModel, ModelParts

log = logging.getLogger(__name__)

_LENGTHS = (11, 5)
_PIECE = 7  # of the longer one; the shorter one is done then, and idles
# Of the spread of the scores, how far they may be apart: what rounding makes of other shapes.
_NEAR = {mx.float32: 1e-3}
_NEAR_IN_HALF = 0.1
# What a model file's code may raise where it does not fit.
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def choose_lane(parts: ModelParts, sum_panel: int = 0) -> Lane:
    """Choose the best lane in which a model is right.

    Args:
        parts: of the model.
        sum_panel: of the BLAS (models/blas.py).

    Returns:
        The first one whose scores are the model's own.
    """
    sequences = [_tokens(length, parts.vocabulary) for length in _LENGTHS]
    right = [_alone(parts, tokens) for tokens in sequences]
    for lane in (Lane.BATCHED, Lane.APART, Lane.SERIAL):
        try:
            scores = _served(parts, sequences, lane, sum_panel)
            apart = max(map(_distance, scores, right))
        except _FAULTS as error:
            log.info("a lane is not for this model", extra=facts(lane=lane.value, error=error))
            continue
        bound = _NEAR.get(right[0].dtype, _NEAR_IN_HALF)
        if apart <= bound:
            return lane
        log.info("a lane is not for this model", extra=facts(lane=lane.value, apart=apart))
    return Lane.OWN


def _tokens(count: int, vocabulary: int) -> list[int]:
    return [(7919 * (place + 1) * (count + place) + 13) % vocabulary for place in range(count)]


def _alone(parts: ModelParts, tokens: Sequence[int]) -> mx.array:
    """Scores after a sequence, its last token a step of its own, (V,)."""
    caches = parts.own_caches()
    parts.model(mx.array([tokens[:-1]]), cache=caches)
    logits = parts.model(mx.array([tokens[-1:]]), cache=caches)[0, -1]
    mx.eval(logits)
    return logits


def _served(
    parts: ModelParts, sequences: Sequence[Sequence[int]], lane: Lane, sum_panel: int
) -> list[mx.array]:
    if lane is Lane.SERIAL:
        return [
            scores
            for tokens in sequences
            for scores in _served(parts, [tokens], Lane.APART, sum_panel)
        ]
    table = RowTable(sum_panel=sum_panel)
    states = build_states(table, parts.layers)
    cohort = Cohort(table, states, lambda: model_caches(states, parts.layers))
    for slot, _ in enumerate(sequences):
        cohort.join(slot)
    prompts = [list(tokens[:-1]) for tokens in sequences]
    if lane is Lane.APART:
        for row, prompt in enumerate(prompts):
            for piece in _pieces([prompt]):
                _forward(parts.model, cohort, row, piece)
    else:
        for piece in _pieces(prompts):
            _forward(parts.model, cohort, 0, piece)
    logits = _forward(parts.model, cohort, 0, [[tokens[-1]] for tokens in sequences])
    return [logits[row, -1] for row, _ in enumerate(sequences)]


def _pieces(prompts: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    for start in range(0, max(map(len, prompts)), _PIECE):
        yield [prompt[start : start + _PIECE] for prompt in prompts]


def _forward(
    model: LanguageModel, cohort: Cohort, first: int, rows: Sequence[Sequence[int]]
) -> mx.array:
    counts = [len(row) for row in rows]
    columns = max(counts)
    cohort.table.begin(range(first, first + len(rows)), columns, counts)
    cohort.prepare()
    ids = mx.array([[*row, *[0] * (columns - len(row))] for row in rows])
    logits = model(ids, cache=cohort.caches)
    cohort.evaluate(logits)
    cohort.table.commit()
    return logits


def _distance(scores: mx.array, right: mx.array) -> float:
    """How far scores are apart, as a share of how far the right ones are spread."""
    scores, right = scores.astype(mx.float32), right.astype(mx.float32)
    apart = mx.max(mx.abs(scores - right))
    spread = mx.maximum(mx.max(right) - mx.min(right), 1e-30)
    share = cast("float", (apart / spread).item())
    return math.inf if math.isnan(share) else share
