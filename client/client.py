"""The client of a router for asyncio programs."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Self, Unpack

from bramley.client import replies
from bramley.client.cache import Explanation, Flushed
from bramley.client.cluster import Model, Status
from bramley.client.embeddings import Embedding, EmbedOptions, embed_request, embeddings
from bramley.client.events import Completion, Event, Gathering
from bramley.client.login import Login, connect_async, showing
from bramley.client.requests import (
    CacheOptions,
    Message,
    Options,
    PromptOptions,
    Turn,
    close_session_request,
    explain_request,
    generate_request,
    tokenize_request,
    unload_request,
)
from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub


class AsyncClient:
    """Talks to one router; make it inside the event loop, and close it.

    Every call may raise RemoteError (bramley.common.status), which has the status code, the
    reason and the field at fault.

    Attributes:
        target: "host:port" or "unix:/path".

    Raises:
        InvalidRequest: a file or a token cannot be used.
    """

    def __init__(self, target: str, **login: Unpack[Login]) -> None:
        self.target = target
        self._channel = connect_async(target, login)
        self._stub = RouterServiceStub(showing(self._channel, login))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; what still streams is cancelled."""
        await self._channel.close()

    def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Event]:
        """Stream one generation.

        The call is cancelled as soon as the generator is closed or dropped. A loop that may
        leave early closes it at a known time: ``async with aclosing(client.generate(...))``.

        Returns:
            Accepted, Started, any Progress, Deltas and Finished, in that order.

        Raises:
            InvalidRequest: at once, for what cannot be sent.
        """
        return self._stream(generate_request(model, prompt, options), timeout_s)

    async def complete(
        self,
        model: str,
        prompt: str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Wait for the whole answer; see ``generate``."""
        gathering = Gathering()
        request = generate_request(model, prompt, options)
        async with aclosing(self._stream(request, timeout_s)) as events:
            async for event in events:
                gathering.add(event)
        return gathering.completion()

    async def list_models(self) -> list[Model]:
        """List the models of the cluster, loaded or not."""
        with replies.remote_errors():
            reply = await self._stub.ListModels(router_pb2.ListModelsRequest())
        return [replies.model(each) for each in reply.models]

    async def get_model(self, name: str) -> Model:
        """Look one model up."""
        with replies.remote_errors():
            reply = await self._stub.GetModel(router_pb2.GetModelRequest(model=name))
        return replies.model(reply.model)

    async def load_model(
        self, name: str, *, pin: bool = False, timeout_s: float | None = None
    ) -> AsyncGenerator[Model]:
        """Have a model loaded, and follow it; what reads no further does not stop the load.

        Args:
            name: of the model.
            pin: whether it shall not be unloaded to make room, nor for being idle.
            timeout_s: longest wait.

        Yields:
            The model at each change; the last one serves or has failed.

        Raises:
            RemoteError: MEMORY_BUDGET if it never fits, MEMORY_IN_USE if it does not fit now.
        """
        call = self._stub.LoadModel(
            router_pb2.LoadModelRequest(model=name, pin=pin), timeout=timeout_s
        )
        try:
            with replies.remote_errors():
                async for response in call:
                    yield replies.model(response.model)
        finally:
            call.cancel()

    async def unload_model(
        self, name: str, *, drain_timeout_s: float | None = None, timeout_s: float | None = None
    ) -> None:
        """Have a model unloaded, and wait until it is.

        Args:
            name: of the model.
            drain_timeout_s: what its running requests are given; the router's own, if absent.
            timeout_s: longest wait.
        """
        request = unload_request(name, drain_timeout_s)
        with replies.remote_errors():
            await self._stub.UnloadModel(request, timeout=timeout_s)

    async def pin_model(
        self, name: str, *, pinned: bool = True, timeout_s: float | None = None
    ) -> Model:
        """Keep a model loaded once it is, or let it go again; nothing is loaded for it."""
        request = router_pb2.PinModelRequest(model=name, pinned=pinned)
        with replies.remote_errors():
            reply = await self._stub.PinModel(request, timeout=timeout_s)
        return replies.model(reply.model)

    async def drain(self, *, timeout_s: float | None = None) -> int:
        """Have the router admit nothing more, for good, and wait until nothing runs.

        Returns:
            How many requests ended meanwhile.
        """
        with replies.remote_errors():
            reply = await self._stub.Drain(router_pb2.DrainRequest(), timeout=timeout_s)
        return reply.requests_finished

    async def tokenize(
        self,
        model: str,
        text: str | None = None,
        *,
        messages: Sequence[Message | Turn] | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[int]:
        """Tell the ids that ``generate`` would use for the same input and options."""
        request = tokenize_request(model, text, messages, options)
        with replies.remote_errors():
            reply = await self._stub.Tokenize(request)
        return list(reply.token_ids)

    async def embed(
        self,
        model: str,
        texts: str | Sequence[str] = (),
        *,
        timeout_s: float | None = None,
        **options: Unpack[EmbedOptions],
    ) -> list[Embedding]:
        """Ask for the vector of each text, and then of each of ``token_ids``.

        Returns:
            The vectors, in that order.

        Raises:
            InvalidRequest: at once, for what cannot be sent.
            RemoteError: NO_EMBEDDINGS of a model that has none.
        """
        request = embed_request(model, texts, options)
        with replies.remote_errors():
            return embeddings(await self._stub.Embed(request, timeout=timeout_s))

    async def detokenize(
        self, model: str, token_ids: Sequence[int], *, skip_special_tokens: bool = False
    ) -> str:
        """Tell the text of ``token_ids``."""
        request = router_pb2.DetokenizeRequest(
            model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
        )
        with replies.remote_errors():
            reply = await self._stub.Detokenize(request)
        return reply.text

    async def status(self) -> Status:
        """Ask the router for its account of itself."""
        with replies.remote_errors():
            return replies.status(await self._stub.GetStatus(router_pb2.GetStatusRequest()))

    async def abort(self, *request_ids: str, reason: str = "") -> dict[str, bool]:
        """End requests by the caller's ids or the router's; False where none such runs."""
        request = router_pb2.AbortRequest(request_ids=request_ids, reason=reason)
        with replies.remote_errors():
            reply = await self._stub.Abort(request)
        return replies.aborted(reply)

    async def flush_cache(
        self, model: str | None = None, *, timeout_s: float | None = None
    ) -> Flushed:
        """Have what is stored of ``model``, or of all, written to the medium.

        Returns:
            What is there now. What could not be written is told, not raised: look at ``ok``.

        Raises:
            RemoteError: NO_STORE where the node runs none; STORE_LOST may be tried again.
        """
        request = router_pb2.FlushCacheRequest(model=model or "")
        with replies.remote_errors():
            return replies.flushed(await self._stub.FlushCache(request, timeout=timeout_s))

    async def explain_cache(
        self,
        model: str,
        prompt: str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[CacheOptions],
    ) -> Explanation:
        """Ask how much of a prompt is stored, and why not more; nothing is generated.

        Returns:
            What ``generate`` would find now.

        Raises:
            InvalidRequest: at once, for what cannot be sent.
            RemoteError: NO_STORE where the node runs none.
        """
        request = explain_request(model, prompt, options)
        with replies.remote_errors():
            return replies.explanation(await self._stub.ExplainCache(request, timeout=timeout_s))

    async def close_session(
        self, model: str, session_key: str, *, salt: str = "", timeout_s: float | None = None
    ) -> bool:
        """End a conversation: what is cached of it is kept no longer than anything else.

        Args:
            model: that it was held with.
            session_key: as in its requests.
            salt: as in its requests.
            timeout_s: longest wait.

        Returns:
            Whether anything was kept of it.
        """
        request = close_session_request(model, session_key, salt)
        with replies.remote_errors():
            return (await self._stub.CloseSession(request, timeout=timeout_s)).found

    async def _stream(
        self, request: generation_pb2.GenerateRequest, timeout_s: float | None
    ) -> AsyncGenerator[Event]:
        call = self._stub.Generate(request, timeout=timeout_s)
        try:
            with replies.remote_errors():
                async for response in call:
                    if (event := replies.event(response)) is not None:
                        yield event
        finally:
            call.cancel()  # gRPC does not, when its reader leaves
