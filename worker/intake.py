"""Checks a GenerateRequest: every field is honoured or refused by its path, none is ignored.

Next in the walk: worker/translate.py, which makes the engine's requests of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from bramley.common.errors import ContextTooLong, InvalidRequest
from bramley.common.wire import is_span, to_seconds
from bramley.protos.v1 import generation_pb2, types_pb2

N_MAX = 16
STOP_STRINGS_MAX = 64
STOP_STRING_CHARACTERS_MAX = 1024
STOP_IDS_MAX = 1024
BAD_WORDS_MAX = 128
BAD_WORD_CHARACTERS_MAX = 256
LOGIT_BIAS_MAX = 1024
TOP_LOGPROBS_MAX = 20
PROMPT_LOGPROBS_MAX = 1 << 20
MAX_DELAY_S = 10.0
KEY_CHARACTERS_MAX = 256  # of what is kept beyond the request

# Fields that nothing here serves yet, each by its path.
_UNSERVED = (
    "constraint",
    "tools",
    "tool_choice",
    "reasoning",
    "adapter",
    "speculation",
)
_SAMPLING_RANGES = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "repetition_penalty": (0.1, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
_BIAS_RANGE = (-100, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a request is checked against.

    Attributes:
        token_characters_max: of the longest token.
        defaults: what its generation_config says of the sampling, by SamplingParams' names.
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
    said = given(request)
    for path in _UNSERVED:
        if path in said:
            raise InvalidRequest(path, "not supported by this version")
    if request.HasField("n"):
        _check_range("n", request.n, 1, N_MAX)
    _check_sampling(request.sampling)
    _check_stop(request.stop)
    _check_range("logprobs.top", request.logprobs.top, 0, TOP_LOGPROBS_MAX)
    if request.priority not in types_pb2.PriorityClass.values():
        raise InvalidRequest("priority", f"{request.priority} is no class")
    check_key("cache.salt", request.cache.salt)
    check_key("session_key", request.session_key)
    delay = request.stream.max_delay
    if not (is_span(delay) and to_seconds(delay) <= MAX_DELAY_S):
        raise InvalidRequest("stream.max_delay", f"is not from 0 to {MAX_DELAY_S:g} s")


def check_key(path: str, key: str) -> None:
    """Check a name that is kept beyond its request.

    Raises:
        InvalidRequest: it is too long.
    """
    if len(key) > KEY_CHARACTERS_MAX:
        raise InvalidRequest(path, f"{len(key)} characters is over {KEY_CHARACTERS_MAX}")


def given(message: Message) -> dict[str, Any]:
    """Return the fields that the caller set, a zero of an optional one included."""
    return {field.name: value for field, value in message.ListFields()}


def _check_range(path: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(path, f"{value:g} is not from {low:g} to {high:g}")


def _check_count(path: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(path, f"{count} of them is over {most}")


def _check_texts(path: str, texts: Sequence[str], most: int, characters_max: int) -> None:
    _check_count(path, len(texts), most)
    for text in texts:
        if not 0 < len(text) <= characters_max:
            problem = f"one of {len(text)} characters is not from 1 to {characters_max}"
            raise InvalidRequest(path, problem)


def _check_sampling(sampling: types_pb2.SamplingParams) -> None:
    said = given(sampling)
    for name, (low, high) in _SAMPLING_RANGES.items():
        if name in said:
            _check_range(f"sampling.{name}", said[name], low, high)
    if sampling.top_k < -1:
        raise InvalidRequest("sampling.top_k", f"{sampling.top_k} is below -1")
    _check_count("sampling.logit_bias", len(sampling.logit_bias), LOGIT_BIAS_MAX)
    for value in sampling.logit_bias.values():
        _check_range("sampling.logit_bias", value, *_BIAS_RANGE)


def _check_stop(stop: types_pb2.StopConditions) -> None:
    if stop.HasField("max_tokens") and stop.max_tokens < 1:
        raise InvalidRequest("stop.max_tokens", f"must be at least 1, not {stop.max_tokens}")
    if stop.min_tokens < 0:
        raise InvalidRequest("stop.min_tokens", f"{stop.min_tokens} is below 0")
    _check_texts("stop.strings", stop.strings, STOP_STRINGS_MAX, STOP_STRING_CHARACTERS_MAX)
    _check_count("stop.token_ids", len(stop.token_ids), STOP_IDS_MAX)
    _check_texts("stop.bad_words", stop.bad_words, BAD_WORDS_MAX, BAD_WORD_CHARACTERS_MAX)


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
    """Check the prompt's ids and length, and what else is about the model's tokens.

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
    limit = asked or room
    if request.stop.min_tokens > limit:
        problem = f"{request.stop.min_tokens} is over the {limit} that the answer may take"
        raise InvalidRequest("stop.min_tokens", problem)
    for path, ids in (
        (name, prompt),
        ("stop.token_ids", request.stop.token_ids),
        ("sampling.logit_bias", request.sampling.logit_bias),
    ):
        _check_ids(path, ids, facts.vocabulary)
    _check_logprobs(request.logprobs, len(prompt), facts.vocabulary)
    return limit


def _check_ids(path: str, ids: Sequence[int] | Mapping[int, float], vocabulary: int) -> None:
    if max(ids, default=0) >= vocabulary:
        wrong = next(token for token in ids if token >= vocabulary)
        raise InvalidRequest(path, f"id {wrong} is outside the vocabulary of {vocabulary}")


def _check_logprobs(options: types_pb2.LogprobOptions, prompt_tokens: int, vocabulary: int) -> None:
    if options.top > vocabulary:
        raise InvalidRequest("logprobs.top", f"{options.top} is over the vocabulary's {vocabulary}")
    values = prompt_tokens * (options.top + 1)
    if options.prompt and values > PROMPT_LOGPROBS_MAX:
        problem = f"{values} values of the prompt are over {PROMPT_LOGPROBS_MAX}"
        raise InvalidRequest("logprobs.prompt", problem)
