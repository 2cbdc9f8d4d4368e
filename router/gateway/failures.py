"""Errors to HTTP: which status, and what every dialect has to say of them (pure)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from bramley.common.errors import BramleyError, InvalidRequest
from bramley.common.status import RemoteError

# By the code, which says who must act.
_STATUS: Final = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
# By the reason, where the code alone says too little: it is not the caller who asks too much.
_STATUS_OF_REASON: Final = {
    "DEVICE_OOM": 503,
    "MEMORY_IN_USE": 503,
    "SLOW_READER": 499,
    "BODY_TOO_LARGE": 413,
    "NOT_JSON": 415,
    "NO_EMBEDDINGS": 400,
    "METHOD_NOT_ALLOWED": 405,
    "WRONG_HOST": 421,
    "RESOURCE_EXHAUSTED": 413,  # gRPC's own, without a reason of ours: a message is too large
}
_SERVER_FAULT = 500


class BodyTooLarge(BramleyError):
    """More bytes than a request may have."""

    code = "INVALID_ARGUMENT"
    default_reason = "BODY_TOO_LARGE"


class NotJson(BramleyError):
    """The body is of another type, or is encoded."""

    code = "INVALID_ARGUMENT"
    default_reason = "NOT_JSON"


class NoSuchPath(BramleyError):
    """Nothing is served there."""

    code = "NOT_FOUND"
    default_reason = "UNKNOWN_PATH"


class NoSuchResponse(BramleyError):
    """No answer of that id is kept, for whoever asks."""

    code = "NOT_FOUND"
    default_reason = "RESPONSE_NOT_FOUND"


class NoSuchPrevious(InvalidRequest):
    """The answer that is to be gone on from is not kept, or not for whoever asks."""

    default_reason = "PREVIOUS_RESPONSE_NOT_FOUND"


class NoSuchMethod(BramleyError):
    """The path is not called so."""

    code = "INVALID_ARGUMENT"
    default_reason = "METHOD_NOT_ALLOWED"


@dataclass(frozen=True, slots=True)
class Failure:
    """What is told of an error.

    Attributes:
        status: of HTTP.
        message: for a person.
        reason: UPPER_SNAKE: why.
        field: that is at fault; empty if none is.
        is_router: whether the router named it, by its own request and not the body.
        retry_after_s: whole seconds; None where trying again does not help.
        request_id: ours; empty where the request was not accepted.
    """

    status: int
    message: str
    reason: str
    field: str = ""
    is_router: bool = False
    retry_after_s: int | None = None
    request_id: str = ""


def failure_of(error: BramleyError, request_id: str = "") -> Failure:
    """Say an error of a request in HTTP's words."""
    field = error.field if isinstance(error, InvalidRequest | RemoteError) else None
    after_s = error.retry_after_s
    return Failure(
        status=_STATUS_OF_REASON.get(error.reason) or _STATUS.get(error.code, _SERVER_FAULT),
        message=error.message,
        reason=error.reason,
        field=field or "",
        is_router=isinstance(error, RemoteError),
        retry_after_s=None if after_s is None else max(1, math.ceil(after_s)),
        request_id=request_id,
    )


def named(failure: Failure, names: Mapping[str, str]) -> Failure:
    """Name a failure's field as its body does.

    Args:
        failure: what is to be told.
        names: the body's names, by the router's: of a field, or of all that is part of one.

    Returns:
        It, unchanged where no name fits.
    """
    whole, _, _ = failure.field.partition(".")
    name = names.get(failure.field) or names.get(whole)
    if name is None or not failure.is_router:
        return failure
    message = failure.message
    if message.startswith(f"{failure.field}: "):
        message = f"{name}{message.removeprefix(failure.field)}"
    return replace(failure, field=name, message=message, is_router=False)
