"""No field of any request breaks the router: what is odd is refused by its path, before a queue."""

import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bramley.common.status import RemoteError
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from support.odd_requests import LEADING_SOMEWHERE, odd
from support.routing import Bench, ask, routed
from support.script import Script

SERVICE = router_pb2.DESCRIPTOR.services_by_name["RouterService"]
METHODS = {method.name: method for method in SERVICE.methods}
BYTES_MAX = 1 << 20  # larger ones are told apart in tests/unit/common/test_bounds.py
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bench() -> AsyncGenerator[Bench]:
    """A router whose model never gets ready: what waits for it would wait for long."""
    async with routed(Script(load_s=-1), is_ready=False) as made:
        yield made


async def send(
    bench: Bench, name: str, message: Message | bytes, timeout_s: float = 10.0
) -> RemoteError | None:
    """Send a message, or any bytes, and answer with the error that comes back."""
    channel: Any = bench.channel
    kind = channel.unary_stream if METHODS[name].server_streaming else channel.unary_unary
    data = message if isinstance(message, bytes) else message.SerializeToString()
    call = kind(f"/{SERVICE.full_name}/{name}")(data, timeout=timeout_s)
    try:
        if METHODS[name].server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return RemoteError(error)
    return None


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_each_field_that_is_out_of_its_bounds_is_refused_by_its_path(
    bench: Bench, name: str
) -> None:
    for path, message in odd(METHODS[name].input_type):
        if message.ByteSize() > BYTES_MAX:
            continue
        if hasattr(message, "model") and path != "model":
            message.model = "fake"  # pyright: ignore[reportAttributeAccessIssue]
        error = await send(bench, name, message)
        assert error is not None, path
        assert (error.status_code, error.field) == (INVALID, path)


LONG_TEXTS = ["model", "request_id", "session_key", "fairness_key"]


@pytest.mark.parametrize("field", LONG_TEXTS)
async def test_what_is_refused_is_counted_and_is_in_no_queue(bench: Bench, field: str) -> None:
    error = await send(bench, "Generate", ask(**{field: "x" * 257}))
    assert error is not None
    assert error.field == field
    assert len(bench.router.server.registry) == 0


async def test_a_request_over_the_whole_of_a_message_is_refused(bench: Bench) -> None:
    part = types_pb2.ChatMessage(content="x" * (16 << 20))
    chat = types_pb2.ChatInput(messages=[part, part, part, types_pb2.ChatMessage(role="r")])
    chat.messages[3].content = "x" * ((15 << 20) + 1000)
    error = await send(bench, "Generate", generation_pb2.GenerateRequest(model="fake", chat=chat))
    assert error is not None
    assert (error.status_code, error.field) == (INVALID, "request")


GOOD = ask(
    request_id="mine",
    n=2,
    sampling=types_pb2.SamplingParams(temperature=0.5, logit_bias={1: 2.0}),
    stop=types_pb2.StopConditions(strings=["a"], max_tokens=3),
    tools=[types_pb2.Tool(name="f")],
    constraint=types_pb2.Constraint(choice=types_pb2.Constraint.Choice(values=["a"])),
    cache=types_pb2.CacheHints(salt="s"),
    labels={"a": "b"},
).SerializeToString()
# What a client is told of its own doing; of ours it would be INTERNAL or UNKNOWN.
ITS_OWN = {"INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED", "UNAVAILABLE"}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_no_bytes_at_all_are_a_fault_of_ours(bench: Bench, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(GOOD)))
    upto = data.draw(st.integers(at, len(GOOD)))
    damaged = GOOD[:at] + data.draw(st.binary(max_size=12)) + GOOD[upto:]
    name = data.draw(st.sampled_from(["Tokenize", "ExplainCache", "Abort", "GetModel", "Embed"]))
    error = await send(bench, name, damaged)
    assert error is None or error.code in {*ITS_OWN, "UNIMPLEMENTED", "FAILED_PRECONDITION"}


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(damage=st.binary(max_size=12), at=st.integers(0, len(GOOD)))
async def test_no_bytes_make_generate_fault(bench: Bench, damage: bytes, at: int) -> None:
    error = await send(bench, "Generate", GOOD[:at] + damage + GOOD[at:], timeout_s=0.05)
    assert error is None or error.code in ITS_OWN


class Opened:
    """Files that this process is asked to open, or look for."""

    def __init__(self) -> None:
        self.is_watching = False
        self.names: list[str] = []

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_watching and event.startswith(("open", "os.", "shutil", "subprocess", "socket")):
            self.names += [str(argument) for argument in arguments]

    @contextmanager
    def watched(self) -> Generator[None]:
        self.is_watching = True
        try:
            yield
        finally:
            self.is_watching = False


OPENED = Opened()
sys.addaudithook(OPENED.heard)  # for good: it listens where it is told to


@pytest.mark.parametrize("name", LEADING_SOMEWHERE)
async def test_no_name_leads_to_a_file_or_anywhere_else(name: str) -> None:
    calls: dict[str, dict[str, Any]] = {
        "Generate": {"text": "x"},
        "GetModel": {},
        "LoadModel": {},
        "UnloadModel": {},
        "PinModel": {},
        "Tokenize": {"text": "x"},
        "Detokenize": {},
        "LoadAdapter": {},
        "UnloadAdapter": {},
        "FlushCache": {},
        "ExplainCache": {"text": "x"},
        "CloseSession": {"session_key": "s"},
        "Embed": {"texts": ["x"]},
    }
    async with routed(Script(tokens=1)) as bench:
        with OPENED.watched():
            for call, fields in calls.items():
                for field in ("model", "adapter"):
                    kind: Any = getattr(router_pb2, f"{call}Request", None)
                    kind = kind or generation_pb2.GenerateRequest
                    if field not in kind.DESCRIPTOR.fields_by_name:
                        continue
                    asked = {"model": "fake", **fields, field: name}
                    error = await send(bench, call, kind(**asked))
                    assert error is not None
                    assert error.code in {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"} or (
                        error.reason == "NO_STORE"
                    )
        told = name.strip("./~") or name
    assert not [each for each in OPENED.names if told in each]


async def test_a_name_that_is_no_model_is_not_found(bench: Bench) -> None:
    for name in ("../fake", "fake/", "/fake", "fake\x00", "FAKE", " fake", "fake@2"):
        error = await send(bench, "Generate", ask(model=name))
        assert error is not None
        assert error.code == "NOT_FOUND"
