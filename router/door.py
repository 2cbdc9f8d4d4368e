"""The router's door: asks who calls before a message is read, and looks at it before it runs.

An interceptor. access.py decides who may do what, common/bounds.py what a field may hold. A call
without a good token is refused with nothing of its message read. What passes is made the
caller's own, by its salt; and what it is told of are the models that it may use.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

import grpc

from bramley.common import auth, bounds, settings
from bramley.common.errors import BramleyError, InvalidRequest, SettingsError
from bramley.common.logs import facts
from bramley.common.reload import Reloaded
from bramley.common.status import to_status
from bramley.protos.v1 import generation_pb2, router_pb2
from bramley.router import access
from bramley.router.access import Identity, Tokens, TokensFile
from bramley.router.classes import Priority

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not generic at run time
MaybeHandler: TypeAlias = "Handler | None"
Refused = Callable[[str, BramleyError], None]

_HEALTH = "/grpc.health.v1.Health/"
_OTHERS = 0o077
_TELL_EVERY_S = 10.0
_METHOD_MAX = 100


class TokenTables:
    """The tokens of a file, as it is now.

    Raises:
        SettingsError: it cannot be used.
    """

    def __init__(self, file: str) -> None:
        self._tokens = Reloaded([file], lambda: read_tokens(Path(file)))

    def identify(self, token: str | None) -> Identity:
        """Tell who holds a token.

        Returns:
            The holder.

        Raises:
            Unauthenticated: nobody, or not any more.
        """
        return self._tokens.now().identify(token, datetime.now(UTC))


def read_tokens(file: Path) -> Tokens:
    """Read and check a tokens file.

    Returns:
        Its tokens.

    Raises:
        SettingsError: there is none, others may touch it, or it is not right.
    """
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise SettingsError("router.auth.tokens_file", f"{file}: {error.strerror}") from error
    if mode & _OTHERS:
        raise SettingsError("router.auth.tokens_file", f"{file} is open to others: chmod 600")
    try:
        return Tokens(settings.load(file, TokensFile))
    except SettingsError as error:
        problem = error.problem if error.key == str(file) else f"{error.key}: {error.problem}"
        raise SettingsError("router.auth.tokens_file", f"{file}: {problem}") from error


class Door(grpc.aio.ServerInterceptor):
    """Lets in who may.

    Args:
        tokens: that calls need; None asks for none.
        refused: counts a refused Generate, by its model where that was read.
    """

    def __init__(self, tokens: TokenTables | None, refused: Refused) -> None:
        self._tokens = tokens
        self._refused = refused
        self._untold = 0
        self._quiet_until_s = 0.0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """Ask who calls, and watch what is asked."""
        method = handler_call_details.method
        if method.startswith(_HEALTH):
            return await continuation(handler_call_details)
        call = method.rpartition("/")[2]
        try:
            identity = self._identify(handler_call_details)
            access.check_call(identity, call)
        except BramleyError as error:
            return self._refusal(method, error)
        access.caller.set(identity)  # of this call's task
        handler = await continuation(handler_call_details)
        return None if handler is None else self._watched(call, handler, identity)

    def _identify(self, details: grpc.HandlerCallDetails) -> Identity:
        if self._tokens is None:
            return access.ANYBODY
        return self._tokens.identify(auth.token_in(details.invocation_metadata or ()))

    def _refusal(self, method: str, error: BramleyError) -> Handler:
        async def refuse(_messages: object, context: Context) -> None:
            if method.endswith("/Generate"):
                self._refused("", error)
            self._tell(method, error, context.peer())
            await context.abort_with_status(to_status(error))

        return grpc.stream_stream_rpc_method_handler(refuse)  # which reads nothing by itself

    def _tell(self, method: str, error: BramleyError, peer: str) -> None:
        """Log refusals, but not as many lines as somebody likes to cause."""
        self._untold += 1
        if monotonic() < self._quiet_until_s:
            return
        last = facts(calls=self._untold, last=method[:_METHOD_MAX], reason=error.reason, peer=peer)
        log.warning("refused at the door", extra=last)
        self._untold = 0
        self._quiet_until_s = monotonic() + _TELL_EVERY_S

    def _watched(self, call: str, handler: Handler, identity: Identity) -> Handler:
        behaviour: Any
        if behaviour := handler.unary_stream:

            def stream(request: Any, context: Any) -> Any:  # noqa: ANN401
                self._admit(call, request, identity)
                return behaviour(request, context)

            return grpc.unary_stream_rpc_method_handler(
                stream, _bounded(handler.request_deserializer), handler.response_serializer
            )
        if behaviour := handler.unary_unary:

            async def once(request: Any, context: Any) -> Any:  # noqa: ANN401
                self._admit(call, request, identity)
                response = await behaviour(request, context)
                _hide(response, identity)
                return response

            return grpc.unary_unary_rpc_method_handler(
                once, _bounded(handler.request_deserializer), handler.response_serializer
            )
        return handler

    def _admit(self, call: str, request: Any, identity: Identity) -> None:  # noqa: ANN401
        """Check a message, and make it its caller's.

        Raises:
            BramleyError: InvalidRequest or PermissionDenied; names what is wrong.
        """
        try:
            bounds.check(request)
            access.check_use(identity, getattr(request, "model", ""), _priority(request))
        except BramleyError as error:
            if call == "Generate":
                self._refused(request.model, error)
            raise
        _make_own(request, identity)


def _bounded(deserializer: Any) -> Any:  # noqa: ANN401
    # Here the size costs nothing; what is raised would be UNKNOWN, so that it is handed on.
    def deserialize(data: bytes) -> Any:  # noqa: ANN401
        if len(data) > bounds.REQUEST_BYTES_MAX:
            problem = f"{len(data)} bytes are over {bounds.REQUEST_BYTES_MAX}"
            return InvalidRequest("request", problem)
        return deserializer(data)

    return deserialize


def _priority(request: object) -> Priority | None:
    if not isinstance(request, generation_pb2.GenerateRequest | router_pb2.EmbedRequest):
        return None
    return Priority.of(request.priority)


def _make_own(request: object, identity: Identity) -> None:
    match request:
        case generation_pb2.GenerateRequest():
            if salt := access.salt(identity, request.cache.salt):
                request.cache.salt = salt
        case router_pb2.ExplainCacheRequest() | router_pb2.CloseSessionRequest():
            request.salt = access.salt(identity, request.salt)
        case _:
            pass


def _hide(response: object, identity: Identity) -> None:
    """Leave out of an answer the models that its caller may not use."""
    if identity.models is None:
        return
    match response:
        case router_pb2.ListModelsResponse():
            _keep_own(response, identity)
        case router_pb2.GetStatusResponse():
            _keep_own(response, identity)
            response.requests_running = sum(one.requests_running for one in response.models)
            response.requests_waiting = sum(one.requests_waiting for one in response.models)
            response.ClearField("memory")
        case _:
            pass


def _keep_own(
    response: router_pb2.ListModelsResponse | router_pb2.GetStatusResponse, identity: Identity
) -> None:
    own = [model for model in response.models if access.may_use(identity, model.name)]
    response.ClearField("models")
    response.models.extend(own)
