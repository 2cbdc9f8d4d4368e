"""Checks a GenerateRequest and turns it into what the engine runs.

Every field is either honoured or refused by its path: none is ignored.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from bramley.common.errors import ContextTooLong, InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.request import Request, StopRule
from bramley.worker.sampling.params import SamplingParams

STOP_STRINGS_MAX = 64
STOP_STRING_CHARACTERS_MAX = 1024
TEMPERATURE = 0.7  # where neither the request nor the model's generation_config says one

# Fields that nothing here serves yet, each by its path.
_UNSERVED = (
    "constraint",
    "tools",
    "tool_choice",
    "reasoning",
    "logprobs",
    "adapter",
    "speculation",
    "stream.max_delay",
    "stop.min_tokens",
    "stop.bad_words",
    "sampling.xtc_probability",
    "sampling.xtc_threshold",
    "sampling.repetition_penalty",
    "sampling.presence_penalty",
    "sampling.frequency_penalty",
    "sampling.penalty_window",
    "sampling.logit_bias",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a request is checked against.

    Attributes:
        token_characters_max: of the longest token.
        defaults: of its generation_config: temperature, top_p, top_k, min_p.
    """

    context_tokens: int
    vocabulary: int
    token_characters_max: int
    eos_token_ids: frozenset[int]
    defaults: Mapping[str, float]


def check_fields(request: generation_pb2.GenerateRequest) -> None:
    """Check all that needs no tokens.

    Raises:
        InvalidRequest: names the field.
    """
    for path in _UNSERVED:
        if _is_set(request, path):
            raise InvalidRequest(path, "not supported by this version")
    if request.HasField("n") and request.n != 1:
        raise InvalidRequest("n", f"must be 1, not {request.n}")
    _check_sampling(request.sampling)
    _check_stop(request.stop)


def _given(message: Message) -> dict[str, Any]:
    """Return the fields that the caller set, a zero of an optional one included."""
    return {field.name: value for field, value in message.ListFields()}


def _is_set(message: Message, path: str) -> bool:
    head, _, rest = path.partition(".")
    given = _given(message)
    return head in given and (not rest or _is_set(given[head], rest))


def _check_sampling(sampling: types_pb2.SamplingParams) -> None:
    given = _given(sampling)
    for name, low, high in (("temperature", 0, 100), ("top_p", 0, 1), ("min_p", 0, 1)):
        value = given.get(name, low)
        if not (math.isfinite(value) and low <= value <= high):
            raise InvalidRequest(f"sampling.{name}", f"{value} is not from {low} to {high}")
    if given.get("top_k", 0) < -1:
        raise InvalidRequest("sampling.top_k", f"{sampling.top_k} is below -1")


def _check_stop(stop: types_pb2.StopConditions) -> None:
    if stop.HasField("max_tokens") and stop.max_tokens < 1:
        raise InvalidRequest("stop.max_tokens", f"must be at least 1, not {stop.max_tokens}")
    if len(stop.strings) > STOP_STRINGS_MAX:
        raise InvalidRequest("stop.strings", f"{len(stop.strings)} is over {STOP_STRINGS_MAX}")
    for string in stop.strings:
        if not 0 < len(string) <= STOP_STRING_CHARACTERS_MAX:
            raise InvalidRequest(
                "stop.strings",
                f"one of {len(string)} characters is not from 1 to {STOP_STRING_CHARACTERS_MAX}",
            )


def check_text(characters: int, field: str, facts: ModelFacts) -> None:
    """Refuse a text that cannot fit the context, before it is tokenized.

    Args:
        characters: of the whole input.
        field: where it came in.
        facts: of the model; the longest token bounds how few tokens a text can be.

    Raises:
        ContextTooLong: even if every token were the longest.
    """
    fewest = -(-characters // facts.token_characters_max)
    if fewest > facts.context_tokens:
        raise ContextTooLong(field, prompt=fewest, max_tokens=1, limit=facts.context_tokens)


def check_tokens(
    request: generation_pb2.GenerateRequest, prompt: Sequence[int], facts: ModelFacts
) -> int:
    """Check the prompt's ids and length.

    Returns:
        Tokens that the answer may take at most: what was asked for, or the room left. A
        limit that was asked for is kept or refused, never cut.

    Raises:
        InvalidRequest: names the field.
        ContextTooLong: the prompt and what was asked for do not fit.
    """
    name = request.WhichOneof("input") or "input"
    if not prompt:
        raise InvalidRequest(name, "is empty: there is no token to go on from")
    room = facts.context_tokens - len(prompt)
    asked = request.stop.max_tokens if request.stop.HasField("max_tokens") else None
    if room < (asked or 1):
        raise ContextTooLong(
            name, prompt=len(prompt), max_tokens=asked or 1, limit=facts.context_tokens
        )
    if max(prompt) >= facts.vocabulary:
        wrong = next(token for token in prompt if token >= facts.vocabulary)
        raise InvalidRequest(name, f"id {wrong} is outside the vocabulary of {facts.vocabulary}")
    for token in request.stop.token_ids:
        if token >= facts.vocabulary:
            raise InvalidRequest(
                "stop.token_ids", f"id {token} is outside the vocabulary of {facts.vocabulary}"
            )
    return asked or room


def to_request(
    request: generation_pb2.GenerateRequest,
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int,
    facts: ModelFacts,
) -> Request:
    """Make what the engine runs of a request that passed both checks."""
    stop = request.stop
    return Request(
        id=request_id,
        prompt=prompt,
        stop=StopRule(
            max_tokens=max_tokens,
            end_ids=frozenset() if stop.ignore_eos else facts.eos_token_ids,
            stop_ids=frozenset(stop.token_ids),
        ),
        sampling=_sampling(request.sampling, facts),
        wants_progress=request.stream.progress,
    )


def _sampling(asked: types_pb2.SamplingParams, facts: ModelFacts) -> SamplingParams:
    given: dict[str, Any] = {**facts.defaults, **_given(asked)}
    top_k = int(given.get("top_k", 0))
    return SamplingParams(
        temperature=given.get("temperature", TEMPERATURE),
        top_p=given.get("top_p", 1.0),
        top_k=0 if top_k < 0 or top_k >= facts.vocabulary else top_k,
        min_p=given.get("min_p", 0.0),
        seed=given.get("seed", random.getrandbits(64)),
    )
