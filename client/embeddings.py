"""Embeddings: what may be asked for, as messages, and vectors as values."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from bramley.client.fields import field
from bramley.client.requests import Priority, check_names, priority_of
from bramley.common.choices import none_of
from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import router_pb2, types_pb2

Pooling = Literal["mean", "last"]


class EmbedOptions(TypedDict, total=False):
    """What embeddings may be asked for.

    Attributes:
        token_ids: exact ids, of each text; they come after the texts.
        pooling: how a text's tokens become one vector; absent, as the model's files say.
        normalize: bring vectors to length 1, also where the model's files do not.
        dimensions: the first so many values alone.
        priority: "bulk", "default", "interactive" or "system".
        fairness_key: names the client: of one class, clients take turns.
        request_id: the caller's name for it, unique among those in flight.
    """

    token_ids: Sequence[Sequence[int]]
    pooling: Pooling | None
    normalize: bool
    dimensions: int | None
    priority: Priority
    fairness_key: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Embedding:
    """One text's vector.

    Attributes:
        values: float32.
        prompt_tokens: of the text, special tokens that the tokenizer adds among them.
    """

    values: Sequence[float]
    prompt_tokens: int


def embed_request(
    model: str, texts: str | Sequence[str], options: EmbedOptions
) -> router_pb2.EmbedRequest:
    """Build the request.

    Returns:
        The message.

    Raises:
        InvalidRequest: a value that its field cannot hold.
    """
    check_names(options, EmbedOptions)
    request = router_pb2.EmbedRequest()
    with field("model"):
        request.model = model
    with field("texts"):
        request.texts.extend([texts] if isinstance(texts, str) else texts)
    for index, ids in enumerate(options.get("token_ids", ())):
        with field(f"token_ids[{index}]"):
            request.token_ids.append(types_pb2.TokenIds(ids=ids))
    if (pooling := options.get("pooling")) is not None:
        if pooling not in get_args(Pooling):
            raise InvalidRequest("pooling", none_of(pooling, get_args(Pooling)))
        request.pooling = router_pb2.EmbedRequest.Pooling.Value(f"POOLING_{pooling.upper()}")
    if (dimensions := options.get("dimensions")) is not None:
        with field("dimensions"):
            request.dimensions = dimensions
    with field("normalize"):
        request.normalize = options.get("normalize", False)
    for name in ("fairness_key", "request_id"):
        with field(name):
            setattr(request, name, options.get(name, ""))
    request.priority = priority_of(options.get("priority"))
    return request


def embeddings(reply: router_pb2.EmbedResponse) -> list[Embedding]:
    """Read the vectors."""
    return [Embedding(_floats(one.values_le), one.prompt_tokens) for one in reply.embeddings]


def _floats(values_le: bytes) -> "array[float]":
    values = array("f", values_le)
    if sys.byteorder == "big":
        values.byteswap()
    return values
