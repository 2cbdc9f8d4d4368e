"""Each error has one status of HTTP."""

import pytest

from bramley.common import errors
from bramley.common.errors import BramleyError, InvalidRequest, Overloaded
from bramley.router.gateway import failures
from bramley.router.gateway.failures import failure_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("n", "is 0"), 400),
        (errors.ContextTooLong("text", prompt=9, max_tokens=9, limit=9), 400),
        (errors.Unauthenticated("x"), 401),
        (errors.PermissionDenied("x"), 403),
        (errors.UnknownResource("model", "x"), 404),
        (failures.NoSuchPath("x"), 404),
        (failures.NoSuchResponse("x"), 404),
        (failures.NoSuchPrevious("previous_response_id", "x"), 400),
        (failures.NoSuchMethod("x"), 405),
        (errors.AlreadyExists("x"), 409),
        (errors.NotLoaded("x"), 409),
        (errors.NeverFits("m", needed=2, budget=1), 409),
        (failures.BodyTooLarge("x"), 413),
        (failures.NotJson("x"), 415),
        (Overloaded("x"), 429),
        (Overloaded("x", reason="CLIENT_RATE"), 429),
        (errors.Aborted("x"), 499),
        (errors.SlowReader("x"), 499),
        (errors.EngineFault("x"), 500),
        (errors.PoisonRequest("x"), 500),
        (errors.Unsupported("x"), 501),
        (errors.DeviceOom("x"), 503),
        (errors.NoMemory("m", needed=2, free=1), 503),
        (errors.NoReadyWorker("x"), 503),
        (errors.WorkerLost("m"), 503),
        (errors.Draining("x"), 503),
        (errors.QueueTimeout("x"), 504),
        (errors.DeadlineUnmeetable("x"), 504),
    ],
)
def test_an_error_has_its_status(error: BramleyError, status: int) -> None:
    failure = failure_of(error)
    assert (failure.status, failure.reason) == (status, error.reason)


def test_the_field_and_the_time_are_told() -> None:
    assert failure_of(InvalidRequest("n", "is 0")).field == "n"
    assert failure_of(Overloaded("x", retry_after_s=0.1)).retry_after_s == 1
    assert failure_of(Overloaded("x", retry_after_s=1.2)).retry_after_s == 2
    assert failure_of(Overloaded("x")).retry_after_s is None
