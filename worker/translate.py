"""A checked request as the engine runs it: one sequence for each answer."""

import random
import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from bramley.common.wire import unpack_ids
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2
from bramley.worker.intake import ModelFacts, given
from bramley.worker.request import LogprobRule, Priority, Request, StopRule
from bramley.worker.sampling.params import SamplingParams

TEMPERATURE = 0.7  # where neither the request nor the model's generation_config says one

_PRIORITIES: dict[types_pb2.PriorityClass.ValueType, Priority] = {
    types_pb2.PRIORITY_CLASS_UNSPECIFIED: Priority.DEFAULT,
    types_pb2.PRIORITY_CLASS_BULK: Priority.BULK,
    types_pb2.PRIORITY_CLASS_DEFAULT: Priority.DEFAULT,
    types_pb2.PRIORITY_CLASS_INTERACTIVE: Priority.INTERACTIVE,
    types_pb2.PRIORITY_CLASS_SYSTEM: Priority.SYSTEM,
}
# Of the message and of SamplingParams alike: taken as they are.
_SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "penalty_window",
)


def to_requests(
    asked: worker_pb2.WorkerServiceGenerateRequest,
    prompt: Sequence[int],
    max_tokens: int,
    facts: ModelFacts,
    newline_ids: frozenset[int],
) -> list[Request]:
    """Make the sequences of a request that passed every check of intake.py.

    Args:
        asked: with the ids of its bad words.
        prompt: all of them start from it; the first computes it for the others.
        max_tokens: of each.
        facts: of the model.
        newline_ids: tokens that XTC spares, beside the end tokens.

    Returns:
        One for each answer, by index.
    """
    request = asked.request
    stop = StopRule(
        max_tokens=max_tokens,
        min_tokens=request.stop.min_tokens,
        end_ids=frozenset() if request.stop.ignore_eos else facts.eos_token_ids,
        stop_ids=frozenset(request.stop.token_ids),
    )
    sampling = _sampling(asked, facts, newline_ids)
    works: list[Request] = []
    for index in range(request.n or 1):
        works.append(
            Request(
                id=f"{asked.internal_id}#{index}",
                prompt=prompt,
                stop=stop,
                sampling=SamplingParams(**sampling, seed=_seed(request.sampling, index)),
                logprobs=_logprobs(request, index),
                priority=_PRIORITIES[request.priority],
                leader=works[0] if works else None,
                wants_progress=request.stream.progress and not index,
            )
        )
    return works


def _seed(sampling: types_pb2.SamplingParams, index: int) -> int:
    if not sampling.HasField("seed"):
        return random.getrandbits(64)
    if not index:
        return sampling.seed
    return int.from_bytes(sha256(struct.pack("<QI", sampling.seed, index)).digest()[:8])


def _logprobs(request: generation_pb2.GenerateRequest, index: int) -> LogprobRule | None:
    if not request.HasField("logprobs"):
        return None
    return LogprobRule(request.logprobs.top, request.logprobs.prompt and not index)


def _sampling(
    asked: worker_pb2.WorkerServiceGenerateRequest,
    facts: ModelFacts,
    newline_ids: frozenset[int],
) -> dict[str, Any]:
    """All but the seed; a field that nobody set keeps the default of SamplingParams."""
    sampling = asked.request.sampling
    wanted: dict[str, Any] = {"temperature": TEMPERATURE, **facts.defaults, **given(sampling)}
    top_k = int(wanted.get("top_k", 0))
    return {
        **{name: wanted[name] for name in _SAME_NAME if name in wanted},
        "top_k": 0 if top_k < 0 or top_k >= facts.vocabulary else top_k,
        "xtc_exempt": facts.eos_token_ids | newline_ids,
        "logit_bias": tuple(sorted(sampling.logit_bias.items())),
        "bad_words": tuple(tuple(unpack_ids(ids)) for ids in asked.prepared.bad_words_le),
    }
