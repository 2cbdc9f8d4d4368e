"""What a client shows to a router, and how it looks at what the router shows.

One rule, the router's own: what is not on this machine's loopback, and no unix socket, is called
with TLS, always. On loopback it is where ``ca`` is given. So a token never leaves the machine in
the clear.
"""

from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

import grpc

from bramley.common.auth import metadata_of
from bramley.common.errors import InvalidRequest
from bramley.common.rpc import CHANNEL_OPTIONS, open_channel
from bramley.common.tls import is_local


class Login(TypedDict, total=False):
    """Keywords of a client.

    Attributes:
        token: that the router knows; none is sent without.
        ca: PEM file of the authority that signed the router's certificate; without it those of
            the system are trusted.
        certificate: PEM file of the client's own, where the router asks for one.
        key: PEM file of the certificate's.
    """

    token: str
    ca: str | Path
    certificate: str | Path
    key: str | Path


C = TypeVar("C", grpc.Channel, grpc.aio.Channel)


def connect(target: str, login: Login) -> grpc.Channel:
    """Open a channel for threads.

    Returns:
        The channel.

    Raises:
        InvalidRequest: what cannot be shown; names the keyword.
    """
    if (credentials := _credentials(target, login)) is None:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def connect_async(target: str, login: Login) -> grpc.aio.Channel:
    """Open a channel for an event loop.

    Returns:
        The channel.

    Raises:
        InvalidRequest: what cannot be shown; names the keyword.
    """
    return open_channel(target, _credentials(target, login))


def showing(channel: C, login: Login) -> C:
    """Have the calls of a stub on ``channel`` carry the token.

    Returns:
        What the stub takes for its channel.

    Raises:
        InvalidRequest: it is no token.
    """
    token = login.get("token")
    if token is None:
        return channel
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise InvalidRequest("token", "is none: it has no spaces and only ASCII characters")
    return cast("C", _Showing(channel, token))


class _Showing:
    """What a stub needs of a channel."""

    def __init__(self, channel: Any, token: str) -> None:  # noqa: ANN401
        self._channel = channel
        self._more = metadata_of(token)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        """Make a call with one answer."""
        return partial(self._channel.unary_unary(*arguments, **options), metadata=self._more)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        """Make a call with a stream of answers."""
        return partial(self._channel.unary_stream(*arguments, **options), metadata=self._more)


def _credentials(target: str, login: Login) -> grpc.ChannelCredentials | None:
    shown = {name: _read(name, login) for name in ("ca", "certificate", "key")}
    for name, other in (("certificate", "key"), ("key", "certificate")):
        if shown[name] is None and shown[other] is not None:
            raise InvalidRequest(name, f"is missing: there is a {other}")
    if is_local(target) and shown["ca"] is None:
        if shown["key"] is not None:
            raise InvalidRequest("ca", "is missing: on this machine there is no TLS without it")
        return None
    return grpc.ssl_channel_credentials(shown["ca"], shown["key"], shown["certificate"])


def _read(name: str, login: Login) -> bytes | None:
    file = cast("str | Path | None", login.get(name))
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(name, f"{file}: {error.strerror}") from error
