"""Anthropic's count of a prompt's tokens: as many as a generation of the same body reads."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router.gateway.anthropic.messages import PromptBody, prompt_of
from bramley.router.gateway.bodies import convert
from bramley.router.gateway.calls import Calls, remote_errors


class Count(msgspec.Struct, frozen=True):
    """What is answered."""

    input_tokens: int


def read(value: object) -> generation_pb2.GenerateRequest:
    """Make of a body's plain values the request whose prompt is to be counted.

    Returns:
        It.

    Raises:
        InvalidRequest: names the field.
    """
    return prompt_of(convert(value, PromptBody))


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
        asked = await self._calls.understand(request, read)
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
