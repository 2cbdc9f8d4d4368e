"""OpenAI's completions, of raw text or exact ids: a body to a request (pure).

openai/completions_answer.py says the answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bramley.common import bounds
from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.bodies import convert
from bramley.router.gateway.dialect import Asked, Dialect
from bramley.router.gateway.failures import BodyTooLarge
from bramley.router.gateway.openai.completions_answer import CompletionStream, CompletionWhole
from bramley.router.gateway.openai.objects import Told, refusal
from bramley.router.gateway.openai.options import (
    Int32,
    Options,
    TokenId,
    constrain,
    constraints_of,
    start,
)

MAX_TOKENS = 16  # OpenAI's, where a body does not say
PROMPTS_MAX = 32  # of one body: each is a request that runs beside the others

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
        One for each prompt, and what says their answer.

    Raises:
        InvalidRequest: names the field.
        BodyTooLarge: for all its prompts it is.
    """
    body = convert(value, CompletionBody)
    common = start(body)
    names = {"logprobs.top": "logprobs", **constrain(common, constraints_of(body))}
    if body.max_tokens is None:
        common.stop.max_tokens = MAX_TOKENS
    if body.logprobs is not None:
        common.logprobs.top = body.logprobs
        common.logprobs.bytes = True
    prompts = _prompts(body.prompt)
    if common.ByteSize() * len(prompts) > bounds.REQUEST_BYTES_MAX:  # before it is there so often
        raise BodyTooLarge(f"what is asked of {len(prompts)} prompts is too much for one body")
    requests = [_asking(common, prompt) for prompt in prompts]
    told = Told(body.model, now, body.answers, len(requests), tells_usage=body.tells_usage)
    answer = CompletionStream(told) if body.streams else CompletionWhole(told)
    return Asked(requests, answer, names)


def _prompts(given: Prompt) -> Sequence[str | Sequence[int]]:
    if isinstance(given, str):
        return [given]
    ids = [each for each in given if isinstance(each, int)]
    prompts = [each for each in given if not isinstance(each, int)]
    if not prompts:
        return [ids]
    if ids:
        raise InvalidRequest("prompt", "is ids and prompts at once")
    if len(prompts) > PROMPTS_MAX:
        raise InvalidRequest("prompt", f"{len(prompts)} prompts are over {PROMPTS_MAX}")
    return prompts


def _asking(
    common: generation_pb2.GenerateRequest, prompt: str | Sequence[int]
) -> generation_pb2.GenerateRequest:
    request = generation_pb2.GenerateRequest()
    request.CopyFrom(common)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.CopyFrom(types_pb2.TokenIds(ids=prompt))
    return request


DIALECT = Dialect(read, refusal)
