"""Errors survive the wire: code, reason, facts, field and delay, for every class of the tree."""

from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from bramley.common import errors
from bramley.common.errors import BramleyError
from bramley.common.status import RemoteError, to_status

M = TypeVar("M", bound=Message)

EXAMPLES: list[BramleyError] = [
    errors.InvalidRequest("stop.max_tokens", "must be at least 1, not 0"),
    errors.ContextTooLong("text", prompt=60, max_tokens=10, limit=64),
    errors.UnknownResource("model", "llama"),
    errors.AlreadyExists("taken"),
    errors.NotLoaded("later"),
    errors.NeverFits("llama", needed=3 << 30, budget=2 << 30),
    errors.CannotEmbed("no hidden states"),
    errors.NoMemory("llama", needed=3 << 30, free=2 << 30),
    errors.Overloaded("full", facts={"depth": 3}, retry_after_s=1.5),
    errors.DeviceOom("no memory"),
    errors.SlowReader("unread"),
    errors.Aborted("ended"),
    errors.QueueTimeout("waited"),
    errors.DeadlineUnmeetable("too late", retry_after_s=5.0),
    errors.NoReadyWorker("none", retry_after_s=0.25),
    errors.WorkerLost("llama", tokens_emitted=2),
    errors.StoreLost("died"),
    errors.Draining("stopping"),
    errors.Unauthenticated("no token"),
    errors.PermissionDenied("not this model"),
    errors.Unsupported("absent"),
    errors.PoisonRequest("killed two"),
    errors.EngineFault("a bug"),
]


def over_the_wire(error: BramleyError) -> RemoteError:
    status = to_status(error)
    received = grpc.aio.AioRpcError(
        status.code,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(*(status.trailing_metadata or ())),
        details=status.details,
    )
    return RemoteError(received)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_wire(error: BramleyError) -> None:
    received = over_the_wire(error)
    assert received.status_code is grpc.StatusCode[error.code]
    assert received.code == error.code
    assert (received.message, received.reason) == (error.message, error.reason)
    assert received.facts == error.facts
    assert received.retry_after_s == error.retry_after_s
    assert received.field == getattr(error, "field", None)


def details(error: BramleyError, kind: type[M]) -> list[M]:
    """Those of a kind that a client of another language would find."""
    (value,) = [value for _, value in to_status(error).trailing_metadata or ()]
    assert isinstance(value, bytes)
    found: list[M] = []
    for packed in status_pb2.Status.FromString(value).details:
        unpacked = kind()
        if packed.Unpack(unpacked):
            found.append(unpacked)
    return found


def test_what_never_fits_names_the_precondition() -> None:
    error = errors.NeverFits("llama", needed=3 << 30, budget=2 << 30)
    (failure,) = details(error, error_details_pb2.PreconditionFailure)
    (violation,) = failure.violations
    assert (violation.type, violation.subject) == ("MEMORY_BUDGET", "llama")
    assert violation.description == error.message
    assert not details(error, error_details_pb2.RetryInfo)


@pytest.mark.parametrize(
    ("error", "subject"),
    [
        (errors.NoMemory("llama", needed=3, free=2), "MEMORY_IN_USE"),
        (errors.Overloaded("full", retry_after_s=1.0), "QUEUE_FULL"),
        (errors.Overloaded("often", reason="CLIENT_RATE", retry_after_s=1.0), "CLIENT_RATE"),
    ],
)
def test_what_is_too_much_now_names_the_quota_and_when_to_come_again(
    error: BramleyError, subject: str
) -> None:
    (failure,) = details(error, error_details_pb2.QuotaFailure)
    (violation,) = failure.violations
    assert (violation.subject, violation.description) == (subject, error.message)
    assert details(error, error_details_pb2.RetryInfo)


def test_no_other_error_speaks_of_quotas_or_preconditions() -> None:
    kinds = (errors.NeverFits, errors.NoMemory, errors.Overloaded)
    for error in EXAMPLES:
        if not isinstance(error, kinds):
            assert not details(error, error_details_pb2.QuotaFailure)
            assert not details(error, error_details_pb2.PreconditionFailure)


def test_every_class_of_the_tree_has_an_example_here_and_a_line_in_the_drawing() -> None:
    tree = {
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, BramleyError) and cls is not BramleyError
    }
    assert {type(error) for error in EXAMPLES} == tree
    assert all(cls.__name__ in (errors.__doc__ or "") for cls in tree)


def wordy(text: str) -> list[BramleyError]:
    """Errors with as much of a text as there is place for."""
    return [
        errors.InvalidRequest("f", text, facts={"fact": text}),
        errors.UnknownResource("model", text),
        errors.NeverFits(text, needed=1, budget=0),
        errors.NoMemory(text, needed=1, free=0),
        errors.Overloaded(text, facts={"client": text}, retry_after_s=1.0),
    ]


@pytest.mark.parametrize("character", ["x", "\U0001f600", "\ud800"])
@pytest.mark.parametrize("which", range(5))
def test_long_texts_are_cut_so_that_a_status_fits_the_trailers(character: str, which: int) -> None:
    error = wordy(character * 100_000)[which]
    status = to_status(error)
    assert len(status.details.encode()) <= 1000
    trailers = status.trailing_metadata or ()
    assert sum(len(value) for _, value in trailers) < 4096
