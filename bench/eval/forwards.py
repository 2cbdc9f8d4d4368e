"""A model's logits at every position of given texts: whole, or as its worker serves it.

One model at a time is in memory, and of its logits one piece.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.executor import Executor
from bramley.worker.loading import Numerics, load
from bramley.worker.models.contract import Lane, ModelParts
from bramley.worker.models.mlx_lm import load_model, model_parts
from bramley.worker.request import Request, StopRule
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.settings import WorkerSettings

Ids = Sequence[int]

CHUNK = 256  # positions of one forward
PROMPT_TOKENS = 32  # of a text that are prefilled, as served; the others are decode steps


@dataclass(frozen=True, slots=True)
class Piece:
    """Logits of neighbouring positions of one text.

    Attributes:
        text: its number.
        first: position; its logits are of the token after it.
        bits: (positions, vocabulary), as kept.py stores them.
    """

    text: int
    first: int
    bits: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Source:
    """What gives pieces, and what is known of it before the first one."""

    vocabulary: int
    dtype: str
    pieces: Iterator[Piece]


def whole(folder: Path, texts: Sequence[Ids]) -> Source:
    """Run a model over whole texts, on the caches that it makes for itself.

    Args:
        folder: of the model.
        texts: two tokens or more each; the last one is not run.

    Returns:
        The source of all positions that have a next token.
    """
    loaded = load_model(folder, dequantize=_on_cpu())
    parts = model_parts(loaded.model, vocabulary=loaded.vocabulary, heads=loaded.heads)
    return Source(loaded.vocabulary, loaded.dtype, _whole(parts, texts))


def _whole(parts: ModelParts, texts: Sequence[Ids]) -> Iterator[Piece]:
    for number, ids in enumerate(texts):
        caches = parts.own_caches()
        for first in range(0, len(ids) - 1, CHUNK):
            some = ids[first : min(first + CHUNK, len(ids) - 1)]
            logits = parts.model(mx.array([some]), cache=caches)[0]
            yield Piece(number, first, _bits(logits))


def served(settings: WorkerSettings, numerics: Numerics, texts: Sequence[Ids]) -> Source:
    """Run a model as its worker would, and feed it the texts token by token.

    The loading, the cohort with its states, the prefill of several prompts at a time and the
    decode steps are the worker's own; only what is drawn is not used.

    Args:
        settings: of the worker; ``import_dir`` is where it may write.
        numerics: what computes.
        texts: two tokens or more each.

    Returns:
        The source of the positions that are decode steps: from the last one of each prompt on.
    """
    executor, loaded = load(settings, numerics, lambda _, __: None)
    rows = min(settings.max_rows, executor.lane.rows_max or settings.max_rows)
    return Source(loaded.facts.vocabulary, loaded.dtype, _served(executor, rows, texts))


def _served(executor: Executor, rows: int, texts: Sequence[Ids]) -> Iterator[Piece]:
    for start in range(0, len(texts), rows):
        yield from _together(executor, texts, range(start, min(start + rows, len(texts))))


def _together(executor: Executor, texts: Sequence[Ids], numbers: range) -> Iterator[Piece]:
    cohort = executor.cohort()
    requests = [_request(texts[number]) for number in numbers]
    for slot, request in enumerate(requests):
        request.slot = slot
        cohort.join(slot)
    prefill(executor, cohort, requests)
    decoder = executor.decoder(cohort)
    while cohort.decoding:
        slots = list(cohort.slots[: cohort.decoding])
        decoder.launch([requests[slot] for slot in slots])
        flight = decoder.land()
        assert flight is not None
        assert flight.logits is not None, "it was drawn without a history"
        bits = _bits(flight.logits)
        for row, slot in enumerate(slots):
            request, number = requests[slot], numbers[slot]
            yield Piece(number, request.next_position - 1, bits[row : row + 1])
            request.output.append(texts[number][request.next_position])
            if request.next_position == len(texts[number]):
                cohort.leave(slot)


def _request(ids: Ids) -> Request:
    # With a penalty a step's logits wait for the token before to be known: here it is the text's.
    return Request(
        id="",
        prompt=list(ids[: min(PROMPT_TOKENS, len(ids) - 1)]),
        stop=StopRule(max_tokens=len(ids) + 1),
        sampling=replace(SamplingParams(), presence_penalty=1.0),
    )


def prefill(executor: Executor, cohort: Cohort, requests: Sequence[Request]) -> None:
    """Compute all prompts but for their last tokens, as far as the lane allows it together."""
    waiting = [request for request in requests if request.prompt_left]
    together = executor.lane is Lane.BATCHED
    for group in [waiting] if together and waiting else [[request] for request in waiting]:
        executor.prefill(cohort, group, [request.prompt_left for request in group])
    for request in requests:
        cohort.start_decoding(request.slot)


def _bits(logits: mx.array) -> NDArray[Any]:
    if logits.dtype == mx.bfloat16:
        logits = logits.view(mx.uint16)
    mx.eval(logits)
    return cast("NDArray[Any]", np.array(logits))


def forget() -> None:
    """Give back the memory of a model that nobody holds any more."""
    gc.collect()
    mx.clear_cache()


def _on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu
