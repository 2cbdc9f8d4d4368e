"""Finds out, when a model is loaded, how its rows may share forwards without becoming wrong.

Some model files go wrong without an error where rows differ in length. So a few short sequences
are run as they would be served, and each alone on the model's own caches, and the scores of
their next tokens compared. The first lane is taken whose scores agree.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import mlx.core as mx

from bramley.common.logs import facts
from bramley.worker.cache.build import build_states, model_caches
from bramley.worker.cache.table import RowTable
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.faults import MODEL_FAULTS
from bramley.worker.models.contract import Lane, LanguageModel, ModelParts

log = logging.getLogger(__name__)

_LENGTHS = (11, 2, 1)  # some files treat a row's first token otherwise, or the first few
_PIECE = 7  # of the longest one; the others are done then, and idle
_WHOLE = max(_LENGTHS)
# Of the spread of the scores, how far they may be apart: what rounding makes of other shapes.
_NEAR, _NEAR_IN_HALF = 1e-3, 0.02
_NOISE = 4  # times as far as pieces alone are from the whole, in half precision


def choose_lane(parts: ModelParts, sum_panel: int = 0) -> Lane:
    """Choose the best lane in which a model is right.

    Args:
        parts: of the model.
        sum_panel: of the BLAS (models/blas.py).

    Returns:
        The first one whose scores are the model's own.
    """
    sequences = [_tokens(length, parts.vocabulary) for length in _LENGTHS]

    @functools.cache  # each takes a forward a piece, and most models need one of the two
    def alone(piece: int) -> list[mx.array]:
        return [_alone(parts, tokens, piece) for tokens in sequences]

    bound = _bound(alone)
    lanes = list(Lane)
    for lane in lanes[lanes.index(parts.best_lane) : -1]:
        # One row alone is whatever the model makes of it in as many pieces.
        tried = {_PIECE: _PIECE, _WHOLE: _WHOLE} if lane is Lane.SERIAL else {_PIECE: _WHOLE}
        try:
            apart = max(
                _distance(scores, right)
                for piece, right_piece in tried.items()
                for scores, right in zip(
                    _served(parts, sequences, lane, piece, sum_panel),
                    alone(right_piece),
                    strict=True,
                )
            )
        except MODEL_FAULTS as error:
            log.info("a lane is not for this model", extra=facts(lane=lane.value, error=error))
            continue
        if apart <= bound:
            return lane
        log.info("a lane is not for this model", extra=facts(lane=lane.value, apart=apart))
    return Lane.OWN


def _tokens(count: int, vocabulary: int) -> list[int]:
    return [(7919 * (place + 1) * (count + place) + 13) % vocabulary for place in range(count)]


def _bound(alone: Callable[[int], Sequence[mx.array]]) -> float:
    whole = alone(_WHOLE)
    if whole[0].dtype == mx.float32:
        return _NEAR
    return max(_NEAR_IN_HALF, _NOISE * max(map(_distance, alone(_PIECE), whole)))


def _alone(parts: ModelParts, tokens: Sequence[int], piece: int) -> mx.array:
    """Scores after a sequence, its last token a step of its own, (V,)."""
    caches = parts.own_caches()
    for (part,) in _pieces([list(tokens[:-1])], piece):
        parts.model(mx.array([part]), cache=caches)
    logits = parts.model(mx.array([tokens[-1:]]), cache=caches)[0, -1]
    mx.eval(logits)
    return logits


def _served(
    parts: ModelParts, sequences: Sequence[Sequence[int]], lane: Lane, piece: int, sum_panel: int
) -> list[mx.array]:
    if lane is Lane.SERIAL and len(sequences) > 1:
        served = [_served(parts, [tokens], lane, piece, sum_panel) for tokens in sequences]
        return [scores for (scores,) in served]
    table = RowTable(sum_panel=sum_panel)
    states = build_states(table, parts.layers)
    cohort = Cohort(table, states, lambda: model_caches(states, parts.layers))
    for slot, _ in enumerate(sequences):
        cohort.join(slot)
    prompts = [list(tokens[:-1]) for tokens in sequences]
    if lane is Lane.APART:
        for row, prompt in enumerate(prompts):
            for part in _pieces([prompt], piece):
                _forward(parts.model, cohort, row, part)
    else:
        for part in _pieces(prompts, piece):
            _forward(parts.model, cohort, 0, part)
    logits = _forward(parts.model, cohort, 0, [[tokens[-1]] for tokens in sequences])
    return [logits[row, -1] for row, _ in enumerate(sequences)]


def _pieces(prompts: Sequence[list[int]], piece: int) -> Iterator[list[list[int]]]:
    for start in range(0, max(map(len, prompts)), piece):
        yield [prompt[start : start + piece] for prompt in prompts]


def _forward(
    model: LanguageModel, cohort: Cohort, first: int, rows: Sequence[Sequence[int]]
) -> mx.array:
    counts = [len(row) for row in rows]
    columns = max(counts)
    ids = mx.array([[*row, *[0] * (columns - len(row))] for row in rows])
    with cohort.forward(model, ids, range(first, first + len(rows)), counts) as logits:
        cohort.evaluate(logits)
    return logits


def _distance(scores: mx.array, right: mx.array) -> float:
    """How far scores are apart, as a share of how far the right ones are spread."""
    scores, right = scores.astype(mx.float32), right.astype(mx.float32)
    told = mx.isfinite(right)  # some rule tokens out
    right = mx.where(told, right, mx.mean(mx.where(told, right, 0)))
    apart = mx.max(mx.where(told, mx.abs(scores - right), 0))
    spread = mx.maximum(mx.max(right) - mx.min(right), 1e-30)
    share = cast("float", (apart / spread).item())
    return math.inf if math.isnan(share) else share
