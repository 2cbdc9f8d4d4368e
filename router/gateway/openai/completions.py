"""OpenAI's completions, of raw text or exact ids: a body to a request (pure).

openai/completions_answer.py says the answer.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.bodies import convert
from bramley.router.gateway.dialect import Asked, Dialect
from bramley.router.gateway.failures import Failure
from bramley.router.gateway.openai.completions_answer import CompletionStream, CompletionWhole
from bramley.router.gateway.openai.objects import Told, refusal
from bramley.router.gateway.openai.options import Int32, Options, TokenId, start

MAX_TOKENS = 16  # OpenAI's, where a body does not say


Prompt = str | list[str | TokenId | list[TokenId]]


class CompletionBody(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A body."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
    }

    prompt: Prompt
    logprobs: Int32 | None = None
    best_of: Any = None
    echo: Any = None
    suffix: Any = None


def read(value: object, now: int) -> Asked:
    """Make a request of a body's plain values.

    Args:
        value: them.
        now: seconds since 1970.

    Returns:
        It, and what says its answer.

    Raises:
        InvalidRequest: names the field.
    """
    body = convert(value, CompletionBody)
    request = start(body)
    _put_prompt(request, body.prompt)
    if body.max_tokens is None:
        request.stop.max_tokens = MAX_TOKENS
    if body.logprobs is not None:
        request.logprobs.top = body.logprobs
        request.logprobs.bytes = True
    told = Told(body.model, now, body.answers, tells_usage=body.tells_usage)
    return Asked(request, CompletionStream(told) if body.streams else CompletionWhole(told))


def _put_prompt(request: generation_pb2.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
        return
    first = prompt[0] if len(prompt) == 1 else None
    if isinstance(first, str | list):  # a list of one prompt is that prompt
        _put_prompt(request, [*first] if isinstance(first, list) else first)
        return
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) != len(prompt):
        raise InvalidRequest("prompt", "is several prompts: send a request for each")
    request.token_ids.CopyFrom(types_pb2.TokenIds(ids=ids))


def _refusal(failure: Failure) -> bytes:
    return refusal(failure, {"logprobs.top": "logprobs", "constraint": "structured_outputs"})


DIALECT = Dialect(read, _refusal)
