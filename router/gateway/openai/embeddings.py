"""OpenAI's embeddings: a body to the router's request, and vectors to what its clients read."""

import asyncio
import base64
import struct
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bramley.common.errors import BramleyError, InvalidRequest
from bramley.protos.v1 import router_pb2, types_pb2
from bramley.router.gateway.bodies import convert
from bramley.router.gateway.calls import Caller, Calls, remote_errors
from bramley.router.gateway.failures import Failure, failure_of, named
from bramley.router.gateway.openai import objects
from bramley.router.gateway.openai.options import Int32, TokenId
from bramley.router.gateway.replies import SEND_S, hurry, refused, while_there

Input = str | list[str | TokenId | list[TokenId]]
_VALUE_BYTES = 4


class EmbeddingBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A body."""

    model: str
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int32 | None = None
    user: str | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """A vector: numbers, or the bytes of their float32, little-endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: msgspec.Raw


class Usage(msgspec.Struct, frozen=True):
    """Counts of tokens."""

    prompt_tokens: int
    total_tokens: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All vectors."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


def read(value: object) -> EmbeddingBody:
    """Make a body of plain values.

    Returns:
        It.

    Raises:
        InvalidRequest: names the field.
    """
    body = convert(value, EmbeddingBody)
    if not body.input:
        raise InvalidRequest("input", "is empty")
    if isinstance(body.input, list) and len({type(one) for one in body.input}) > 1:
        raise InvalidRequest("input", "mixes texts, ids and lists of ids")
    if body.dimensions is not None and body.dimensions < 1:
        raise InvalidRequest("dimensions", f"{body.dimensions} is less than 1")
    return body


def request_of(body: EmbeddingBody, request_id: str = "") -> router_pb2.EmbedRequest:
    """Make the router's request: vectors are normalised, as OpenAI's are."""
    made = router_pb2.EmbedRequest(
        model=body.model,
        normalize=True,
        dimensions=body.dimensions,
        fairness_key=body.user or "",
        request_id=request_id,
    )
    if isinstance(body.input, str):
        made.texts.append(body.input)
        return made
    ids = [one for one in body.input if isinstance(one, int)]
    if ids:
        made.token_ids.append(types_pb2.TokenIds(ids=ids))
    for one in body.input:
        if isinstance(one, str):
            made.texts.append(one)
        elif isinstance(one, list):
            made.token_ids.append(types_pb2.TokenIds(ids=one))
    return made


def said(body: EmbeddingBody, answer: router_pb2.EmbedResponse) -> bytes:
    """Say the vectors."""
    is_base64 = body.encoding_format == "base64"
    tokens = sum(one.prompt_tokens for one in answer.embeddings)
    data = [
        Embedding(index=index, embedding=_said(one.values_le, is_base64=is_base64))
        for index, one in enumerate(answer.embeddings)
    ]
    return msgspec.json.encode(Answer(data=data, model=body.model, usage=Usage(tokens, tokens)))


def _said(values_le: bytes, *, is_base64: bool) -> msgspec.Raw:
    """Say one vector; one at a time, so that streams are forwarded between two."""
    if is_base64:
        return msgspec.Raw(msgspec.json.encode(base64.b64encode(values_le).decode()))
    values = struct.unpack(f"<{len(values_le) // _VALUE_BYTES}f", values_le)
    return msgspec.Raw(msgspec.json.encode(values))


def refusal(failure: Failure) -> bytes:
    """Say a failure: the router's texts[3] is what a body calls input[3]."""
    field = failure.field
    name = "input" + field[field.find("[") :] if "[" in field else "input"
    is_input = field.startswith(("texts", "token_ids"))
    return objects.refusal(named(failure, {field: name}) if is_input else failure)


class Embeddings:
    """Answers for texts.

    Args:
        calls: of the router.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create(self, request: Request) -> ASGIApp:
        """Read what is asked."""
        caller = self._calls.admit(request)
        body = await self._calls.understand(request, read)
        return partial(self._answer, caller, body)

    async def _answer(
        self, caller: Caller, body: EmbeddingBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await while_there(receive, self._embed(caller, body, scope, receive, send))

    async def _embed(
        self, caller: Caller, body: EmbeddingBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        call: Any = self._calls.stub.Embed(
            request_of(body, caller.request_id), metadata=caller.metadata, timeout=caller.timeout_s
        )
        try:
            with remote_errors():
                answer = await call
            told = await asyncio.to_thread(said, body, answer)  # millions of numbers, maybe
            headers = {"cache-control": "no-store"}
            if caller.request_id:
                headers["x-request-id"] = caller.request_id
            reply = Response(told, headers=headers, media_type="application/json")
        except BramleyError as error:
            failure = failure_of(error, caller.request_id)
            reply = refused(failure, refusal(failure))
        finally:
            call.cancel()
        hurry(scope, SEND_S)
        await reply(scope, receive, send)
