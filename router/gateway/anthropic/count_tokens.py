"""Anthropic's count of a prompt's tokens: as many as a generation of the same body reads."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bramley.protos.v1 import router_pb2
from bramley.router.gateway.anthropic.messages import PromptBody, prompt_of
from bramley.router.gateway.anthropic.messages_answer import MessageWhole, Told
from bramley.router.gateway.anthropic.objects import refusal
from bramley.router.gateway.bodies import convert
from bramley.router.gateway.calls import Calls, remote_errors
from bramley.router.gateway.dialect import Asked, Dialect


class Count(msgspec.Struct, frozen=True):
    """What is answered."""

    input_tokens: int


def read(value: object, now: int) -> Asked:
    """Make of a body's plain values the request whose prompt is to be counted.

    Returns:
        It.

    Raises:
        InvalidRequest: names the field.
    """
    body = convert(value, PromptBody)
    return Asked([prompt_of(body)], MessageWhole(Told(body.model)))


DIALECT = Dialect(read, refusal)


class Counting:
    """Answers how long a prompt is.

    Args:
        calls: of the router.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def count(self, request: Request) -> Response:
        """Have a prompt made, and count it."""
        caller = self._calls.admit(request)
        (asked,) = (await self._calls.read(request, DIALECT)).requests
        with remote_errors():
            answer = await self._calls.stub.Tokenize(
                router_pb2.TokenizeRequest(
                    model=asked.model,
                    chat=asked.chat,
                    tools=asked.tools,
                    tool_choice=asked.tool_choice,
                    reasoning=asked.reasoning,
                ),
                metadata=caller.metadata,
                timeout=caller.timeout_s,
            )
        told = Count(len(answer.token_ids))
        return Response(msgspec.json.encode(told), media_type="application/json")
