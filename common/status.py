"""Errors to gRPC statuses with rich details, and back."""

from collections.abc import Iterable

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from bramley.common.errors import (
    BramleyError,
    InvalidRequest,
    NeverFits,
    NoMemory,
    Overloaded,
    UnknownResource,
)
from bramley.common.wire import to_duration, to_seconds

DOMAIN = "bramley"
_DESCRIPTION_MAX = 500  # the message says the same once more


def to_status(error: BramleyError) -> grpc.Status:
    """Build the status that ``context.abort_with_status`` takes; details stay below 4 KB."""
    code = grpc.StatusCode[error.code]
    status = status_pb2.Status(code=code.value[0], message=_cut(error.message, 1000))
    status.details.extend(_packed(_details(error)))
    return rpc_status.to_status(status)


def _details(error: BramleyError) -> Iterable[Message]:
    facts = {key: _cut(value, 256) for key, value in error.facts.items()}
    yield error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=facts)
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=_cut(error.problem, 1000)
        )
        yield error_details_pb2.BadRequest(field_violations=[violation])
    if isinstance(error, UnknownResource):
        yield error_details_pb2.ResourceInfo(
            resource_type=error.kind, resource_name=_cut(error.name, 256)
        )
    if isinstance(error, NeverFits):
        unmet = error_details_pb2.PreconditionFailure.Violation(
            type=error.reason,
            subject=facts.get("model", ""),
            description=_cut(error.message, _DESCRIPTION_MAX),
        )
        yield error_details_pb2.PreconditionFailure(violations=[unmet])
    if isinstance(error, NoMemory | Overloaded):
        exceeded = error_details_pb2.QuotaFailure.Violation(
            subject=error.reason, description=_cut(error.message, _DESCRIPTION_MAX)
        )
        yield error_details_pb2.QuotaFailure(violations=[exceeded])
    if error.retry_after_s is not None:
        yield error_details_pb2.RetryInfo(retry_delay=to_duration(error.retry_after_s))


def _cut(text: str, bytes_max: int) -> str:
    # A lone surrogate, which no message can hold, is shown as a question mark.
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def _packed(messages: Iterable[Message]) -> Iterable[any_pb2.Any]:
    for message in messages:
        packed = any_pb2.Any()
        packed.Pack(message)
        yield packed


class RemoteError(BramleyError):
    """An error that another process answered with, as far as its details tell.

    Attributes:
        status_code: the gRPC code; ``code`` is its name.
        field: the field at fault, if the other side named one.
    """

    def __init__(self, rpc_error: grpc.RpcError) -> None:
        call = rpc_error if isinstance(rpc_error, grpc.Call) else None
        aio = rpc_error if isinstance(rpc_error, grpc.aio.AioRpcError) else None
        source = aio or call
        self.status_code = source.code() if source else grpc.StatusCode.UNKNOWN
        self.code = self.status_code.name
        text = source.details() if source else str(rpc_error)
        info = error_details_pb2.ErrorInfo()
        violations = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        retry_after_s: float | None = None
        for detail in _details_of(rpc_error):
            detail.Unpack(info)
            detail.Unpack(violations)
            if detail.Unpack(retry):
                retry_after_s = to_seconds(retry.retry_delay)
        super().__init__(
            text or self.status_code.name,
            reason=info.reason or self.status_code.name,
            facts=dict(info.metadata),
            retry_after_s=retry_after_s,
        )
        fields = [violation.field for violation in violations.field_violations]
        self.field = fields[0] if fields else None


def _details_of(rpc_error: grpc.RpcError) -> Iterable[any_pb2.Any]:
    if not isinstance(rpc_error, grpc.aio.AioRpcError | grpc.Call):
        return ()
    for _, value in details_trailers(rpc_error):
        return status_pb2.Status.FromString(value).details
    return ()


def details_trailers(error: grpc.aio.AioRpcError | grpc.Call) -> tuple[tuple[str, bytes], ...]:
    """Find what carries an error's rich details; empty if it has none: it is gRPC's own."""
    return tuple(
        (key, value)
        for key, value in error.trailing_metadata() or ()
        if key == "grpc-status-details-bin" and isinstance(value, bytes)
    )
