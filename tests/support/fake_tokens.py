"""A fake worker's tokens, which are bytes, and vectors of four numbers that tell of them."""

import struct

from bramley.common.errors import InvalidRequest
from bramley.common.wire import unpack_ids
from bramley.protos.v1 import generation_pb2, worker_pb2


def token_ids(request: generation_pb2.GenerateRequest) -> list[int]:
    """Tell the tokens of what a request says."""
    match request.WhichOneof("input"):
        case "token_ids":
            return list(request.token_ids.ids)
        case "chat":
            lines = (f"{message.role}: {message.content}\n" for message in request.chat.messages)
            return list("".join(lines).encode())
        case _:
            return list(request.text.encode())


def embed(request: worker_pb2.WorkerServiceEmbedRequest) -> worker_pb2.WorkerServiceEmbedResponse:
    """Say of each text how many tokens it has, what they add up to, the first and the last.

    Returns:
        It.

    Raises:
        InvalidRequest: a text has none.
    """
    texts = [[*text.encode()] for text in request.texts]
    texts += [[*unpack_ids(packed)] for packed in request.token_ids_le]
    for index, ids in enumerate(texts):
        if not ids:
            raise InvalidRequest(f"texts[{index}]", "is empty: it has no token")
    vectors = [[len(ids), sum(ids), ids[0], ids[-1]] for ids in texts]
    width = request.dimensions or len(vectors[0])
    return worker_pb2.WorkerServiceEmbedResponse(
        values_le=[struct.pack(f"<{width}f", *one[:width]) for one in vectors],
        prompt_tokens=map(len, texts),
    )
