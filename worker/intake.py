"""Checks a GenerateRequest: every field is honoured or refused by its path, none is ignored.

What a field may hold at all is in common/bounds.py, and what goes together in common/together.py.

Next in the walk: worker/translate.py, which makes the engine's requests of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from bramley.common import bounds
from bramley.common.errors import ContextTooLong, InvalidRequest
from bramley.common.together import check_together, shows_tools
from bramley.protos.v1 import generation_pb2, types_pb2

PROMPT_LOGPROBS_MAX = 1 << 20
KEY_CHARACTERS_MAX = 512  # of a session or a salt, before which the router may have put a name

# What is computed with; the router has checked all of a request by the same table.
_COMPUTED_WITH = frozenset(
    {
        "constraint",
        "logprobs",
        "n",
        "priority",
        "reasoning",
        "sampling",
        "session_key",
        "stop",
        "stream",
        "tool_choice",
        "tools",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a request is checked against.

    Attributes:
        token_characters_max: of the longest token.
        defaults: what its generation_config says of the sampling, by SamplingParams' names.
        reasoning_format: how it writes its reasoning; empty where it does not, or not known here.
        tool_format: how it writes calls of tools; empty as above.
    """

    context_tokens: int
    vocabulary: int
    token_characters_max: int
    eos_token_ids: frozenset[int]
    defaults: Mapping[str, float]
    reasoning_format: str = ""
    tool_format: str = ""


def check_fields(request: generation_pb2.GenerateRequest, model: ModelFacts | None = None) -> None:
    """Check all that needs no tokens.

    Args:
        request: to be checked.
        model: its abilities count too; None to leave them.

    Raises:
        InvalidRequest: names the field.
    """
    bounds.check(request, only=_COMPUTED_WITH)
    check_together(request)
    check_key("cache.salt", request.cache.salt)
    if model is not None:
        _check_abilities(request, model)


def _check_abilities(request: generation_pb2.GenerateRequest, model: ModelFacts) -> None:
    """Refuse what this model cannot do; that it shall not reason is no fault where it cannot."""
    if shows_tools(request) and not model.tool_format:
        raise InvalidRequest("tools", "this model has no format of calls that is known here")
    if model.reasoning_format:
        return
    for field, value in request.reasoning.ListFields():
        if field.name != "enabled" or value:
            raise InvalidRequest(f"reasoning.{field.name}", "this model does not reason")


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
        check_ids(path, ids, facts.vocabulary)
    _check_logprobs(request.logprobs, len(prompt), facts.vocabulary)
    return limit


def check_ids(path: str, ids: Sequence[int] | Mapping[int, float], vocabulary: int) -> None:
    """Refuse ids that no token has.

    Raises:
        InvalidRequest: names the first one.
    """
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
