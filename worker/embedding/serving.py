"""One call of Embed on the event loop: checked, tokenized, waited for, and put into words."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from bramley.common import bounds
from bramley.common.errors import CannotEmbed, ContextTooLong, InvalidRequest
from bramley.common.wire import unpack_ids
from bramley.protos.v1 import worker_pb2
from bramley.worker.embedding.declared import Declared
from bramley.worker.embedding.job import EmbedJob, Pooling
from bramley.worker.embedding.vectors import VALUE_BYTES, finish
from bramley.worker.engine.outputs import Embedded, Failed, Output
from bramley.worker.intake import ModelFacts, check_ids

Encode = Callable[[str], Awaitable[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Embeddable:
    """What is known of a model's embeddings.

    Attributes:
        width: values of a vector; 0 where the model's hidden states cannot be reached.
        declared: by its folder.
    """

    width: int
    declared: Declared


class Embedding:
    """One call.

    Args:
        request: of the router.
        model: that is asked.
        facts: of its tokens.

    Raises:
        CannotEmbed: the model has no embeddings.
        InvalidRequest: names the field.
    """

    def __init__(
        self, request: worker_pb2.WorkerServiceEmbedRequest, model: Embeddable, facts: ModelFacts
    ) -> None:
        self._request = request
        self._model = model
        self._facts = facts
        self._check()
        self._answer: asyncio.Future[Sequence[bytes]] = asyncio.get_running_loop().create_future()
        self._lengths: Sequence[int] = ()

    def _check(self) -> None:
        request, width = self._request, self._model.width
        problem = self._model.declared.problem
        if not width:
            problem = "its hidden states cannot be told from its scores"
        if problem:
            raise CannotEmbed(f"this model has no embeddings: {problem}")
        if request.dimensions > width:
            raise InvalidRequest("dimensions", f"{request.dimensions} is over the model's {width}")
        count = len(request.texts) + len(request.token_ids_le)
        if count * (request.dimensions or width) * VALUE_BYTES > bounds.REQUEST_BYTES_MAX:
            raise InvalidRequest(
                "texts", f"the vectors of {count} texts are too much for one answer"
            )

    @property
    def _pooling(self) -> Pooling:
        if self._request.last_token:
            return "last"
        return "mean" if self._request.mean else self._model.declared.pooling

    async def job(self, encode: Encode) -> EmbedJob:
        """Make what the engine is given.

        Args:
            encode: tokenizes a text, with the special tokens that the tokenizer adds itself.

        Returns:
            The job.

        Raises:
            InvalidRequest: names a text that is empty, too long, or no text of the model.
        """
        limit = self._facts.context_tokens
        texts: list[Sequence[int]] = []
        for index, text in enumerate(self._request.texts):
            path = f"texts[{index}]"
            fewest = -(-len(text) // self._facts.token_characters_max)
            if fewest > limit:  # before it is tokenized
                _refuse_too_long(path, fewest, limit)
            texts.append(await encode(text))
            _check_length(path, texts[-1], limit)
        for index, packed in enumerate(self._request.token_ids_le):
            path = f"token_ids[{index}]"
            texts.append(unpack_ids(packed))
            _check_length(path, texts[-1], limit)
            check_ids(path, texts[-1], self._facts.vocabulary)
        self._lengths = [len(ids) for ids in texts]
        return EmbedJob(id=self._request.internal_id, texts=texts, pooling=self._pooling)

    def put(self, output: Output) -> None:
        """Take what the engine says."""
        if self._answer.done():
            return
        match output:
            case Embedded(values=values):
                self._answer.set_result(values)
            case Failed(error=error):
                self._answer.set_exception(error)
            case _:
                raise AssertionError(f"{output} is not of embeddings")

    def tell(self) -> None:
        """Nothing gathers here."""

    async def answer(self) -> worker_pb2.WorkerServiceEmbedResponse:
        """Wait for the vectors.

        Returns:
            What the router is told.

        Raises:
            BramleyError: there are none.
        """
        values = await self._answer
        return await asyncio.to_thread(self._told, values)

    def _told(self, values: Iterable[bytes]) -> worker_pb2.WorkerServiceEmbedResponse:
        normalizes = self._request.normalize or self._model.declared.normalizes
        return worker_pb2.WorkerServiceEmbedResponse(
            values_le=[
                finish(each, dimensions=self._request.dimensions, normalize=normalizes)
                for each in values
            ],
            prompt_tokens=self._lengths,
        )


def _check_length(path: str, ids: Sequence[int], limit: int) -> None:
    if not ids:
        raise InvalidRequest(path, "is empty: it has no token")
    if len(ids) > limit:
        _refuse_too_long(path, len(ids), limit)


def _refuse_too_long(path: str, tokens: int, limit: int) -> NoReturn:
    raise InvalidRequest(
        path,
        f"{tokens} tokens exceed the context of {limit}",
        reason=ContextTooLong.default_reason,
        facts={"prompt": tokens, "max_tokens": 0, "limit": limit},
    )
