"""Load, unload, pin, drain and reload: both clients and the command line, on a scripted router."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import grpc
import pytest

from bramley.client import AsyncClient, Client, cli
from bramley.common.errors import InvalidRequest, NeverFits, NoMemory
from bramley.common.status import RemoteError
from bramley.protos.v1 import router_pb2, types_pb2
from support.fake_router import MODEL, FakeRouter, serving, write_state

Output = pytest.CaptureFixture[str]


def _model(state: types_pb2.ModelState.ValueType, **facts: object) -> router_pb2.Model:
    model = router_pb2.Model(name=MODEL, state=state)
    for name, value in facts.items():
        setattr(model, name, value)
    return model


LOADING = _model(types_pb2.MODEL_STATE_LOADING, load_progress=0.5)
WARMING = _model(types_pb2.MODEL_STATE_WARMING, load_progress=0.8)
FAILED = _model(types_pb2.MODEL_STATE_FAILED, reason="exit code 4: no such file")
UNLOADED = _model(types_pb2.MODEL_STATE_UNLOADED)
TOO_LARGE = NeverFits(MODEL, needed=9, budget=5)


class Shell:
    """Runs ``bramley`` in this process, on one state folder."""

    def __init__(self, state_dir: Path, patch: pytest.MonkeyPatch, output: Output) -> None:
        self.state_dir = state_dir
        self._patch = patch
        self._output = output

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command; its exit code, and what it printed."""
        command = ["bramley", "--state-dir", str(self.state_dir), *arguments]
        self._patch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        said = self._output.readouterr()
        return ended.value.code, said.out, said.err


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> Shell:
    return Shell(tmp_path / "state", monkeypatch, capsys)


@pytest.fixture
def served() -> Generator[tuple[FakeRouter, str]]:
    with serving() as served:
        yield served


@pytest.fixture
def router(shell: Shell, served: tuple[FakeRouter, str]) -> FakeRouter:
    router, target = served
    write_state(shell.state_dir, router=target, node=target)
    return router


async def test_a_load_is_followed_to_its_end_by_both_clients(
    served: tuple[FakeRouter, str],
) -> None:
    router, target = served
    router.loading = [LOADING, WARMING]
    with Client(target) as client:
        told = list(client.load_model(MODEL, pin=True))
    async with AsyncClient(target) as client:
        assert [each async for each in client.load_model(MODEL)] == told
    assert [each.state for each in told] == ["loading", "warming", "ready"]
    assert (told[0].load_progress, told[-1].reserved_bytes, told[-1].idle_s) == (0.5, 3 << 20, 1.5)
    assert told[0].idle_s is None
    assert [(each.model, each.pin) for each in router.loads] == [(MODEL, True), (MODEL, False)]


async def test_a_load_that_is_refused_tells_both_numbers(served: tuple[FakeRouter, str]) -> None:
    router, target = served
    router.refusal = TOO_LARGE
    with Client(target) as client, pytest.raises(RemoteError) as raised:
        list(client.load_model(MODEL))
    assert (raised.value.reason, raised.value.code) == ("MEMORY_BUDGET", "FAILED_PRECONDITION")
    assert (raised.value.facts["needed"], raised.value.facts["budget"]) == ("9", "5")
    router.refusal = NoMemory(MODEL, needed=9, free=5)
    async with AsyncClient(target) as client:
        with pytest.raises(RemoteError) as again:
            _ = [each async for each in client.load_model(MODEL)]
    assert (again.value.reason, again.value.retry_after_s) == ("MEMORY_IN_USE", 5.0)


async def test_unload_pin_and_drain_are_the_same_for_both_clients(
    served: tuple[FakeRouter, str],
) -> None:
    router, target = served
    with Client(target) as client:
        client.unload_model(MODEL, drain_timeout_s=1.5)
        client.unload_model(MODEL)
        assert client.pin_model(MODEL).pinned
        assert client.drain() == 3
    async with AsyncClient(target) as client:
        await client.unload_model(MODEL, drain_timeout_s=1.5)
        await client.unload_model(MODEL)
        assert not (await client.pin_model(MODEL, pinned=False)).pinned
        assert await client.drain() == 3
    timeout, absent, *others = router.unloads
    assert [timeout, absent] == others
    assert (timeout.drain_timeout.seconds, timeout.drain_timeout.nanos) == (1, 500_000_000)
    assert not absent.HasField("drain_timeout")


def test_what_a_field_cannot_hold_is_refused_at_once(served: tuple[FakeRouter, str]) -> None:
    router, target = served
    with Client(target) as client, pytest.raises(InvalidRequest) as raised:
        client.unload_model(MODEL, drain_timeout_s=float("inf"))
    assert raised.value.field == "drain_timeout"
    assert not router.unloads


def test_load_ends_well_once_the_model_serves(shell: Shell, router: FakeRouter) -> None:
    router.loading = [LOADING, WARMING]
    assert shell.run("load", MODEL) == (0, f"model {MODEL} is ready\n", "")
    assert shell.run("load", MODEL, "--pin")[0] == 0
    assert [each.pin for each in router.loads] == [False, True]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (FAILED, f"bramley: model {MODEL} is failed: exit code 4: no such file\n"),
        (UNLOADED, f"bramley: model {MODEL} is unloaded\n"),
    ],
)
def test_load_ends_with_1_and_the_reason_where_the_model_does_not_serve(
    shell: Shell, router: FakeRouter, last: router_pb2.Model, said: str
) -> None:
    router.loading, router.model = [LOADING], last
    assert shell.run("load", MODEL) == (1, "", said)


def test_a_load_that_is_refused_ends_with_1_and_an_unknown_model_with_2(
    shell: Shell, router: FakeRouter
) -> None:
    router.refusal = TOO_LARGE
    assert shell.run("load", MODEL) == (1, "", f"bramley: {TOO_LARGE.message} [MEMORY_BUDGET]\n")
    for command in ("load", "unload", "pin", "unpin"):
        said = "bramley: no model is named 'nobody' [NOT_FOUND]\n"
        assert shell.run(command, "nobody") == (2, "", said)


def test_a_load_shows_its_progress_on_a_terminal(shell: Shell, router: FakeRouter) -> None:
    router.loading = [LOADING, WARMING]
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "bramley.client", "--state-dir", str(shell.state_dir)]
    with subprocess.Popen([*command, "load", MODEL], stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while chunk := _read(ours):
            seen += chunk
        assert process.wait() == 0
    os.close(ours)
    assert b"ready fake" in seen  # drawn last, and then erased
    assert b"100%" in seen


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:  # its other end is closed
        return b""


def test_unload_pin_unpin_and_drain_say_what_they_did(shell: Shell, router: FakeRouter) -> None:
    assert shell.run("unload", MODEL) == (0, f"model {MODEL} is unloaded\n", "")
    assert shell.run("unload", MODEL, "--drain-timeout", "2.5")[0] == 0
    assert shell.run("unload", MODEL, "--drain-timeout", "-1")[0] == 2
    assert [each.drain_timeout.seconds for each in router.unloads] == [0, 2]
    assert shell.run("pin", MODEL) == (0, f"model {MODEL} is pinned\n", "")
    assert router.model.pinned
    assert shell.run("unpin", MODEL) == (0, f"model {MODEL} is no longer pinned\n", "")
    assert not router.model.pinned
    code, said, _ = shell.run("drain")
    assert (code, said[:30]) == (0, "drained: 3 requests have ended")


def test_reload_prints_the_keys_that_have_changed(shell: Shell, router: FakeRouter) -> None:
    assert shell.run("reload") == (0, "nothing has changed\n", "")
    router.node.changed = ["models.a", "router.backlog_bytes"]
    assert shell.run("reload") == (0, "models.a\nrouter.backlog_bytes\n", "")


def test_a_reload_that_is_refused_names_the_keys_and_ends_with_2(
    shell: Shell, router: FakeRouter
) -> None:
    router.node.changed = InvalidRequest("router.grpc, store.enabled", "takes a restart")
    said = "bramley: router.grpc, store.enabled: takes a restart [INVALID_FIELD]\n"
    assert shell.run("reload") == (2, "", said)


def test_a_reload_without_a_supervisor_is_no_cluster(shell: Shell) -> None:
    said = f"bramley: no cluster runs in {shell.state_dir}: start one with `bramley up`\n"
    assert shell.run("reload") == (1, "", said)
    write_state(shell.state_dir, router="unix:/nonexistent/r", node="unix:/nonexistent/n")
    assert shell.run("reload") == (1, "", said)


def test_status_shows_what_is_reserved_and_pinned_in_a_line_that_fits(
    shell: Shell, router: FakeRouter
) -> None:
    router.model.pinned = True
    code, said, _ = shell.run("status")
    *_, header, row, memory = said.splitlines()
    assert code == 0
    assert header.split()[-4:] == ["memory", "reserved", "pinned", "reason"]
    assert row.split()[-5:] == ["1", "MiB", "3", "MiB", "yes"]
    assert max(len(header), len(row)) <= 80
    assert memory == "memory: 3 MiB of 6.0 GiB reserved, store 1.0 GiB"
    router.ledger = router_pb2.MemoryLedger()
    assert "memory:" not in shell.run("status")[1]


def test_a_status_that_tells_nothing_of_memory_is_understood(
    served: tuple[FakeRouter, str],
) -> None:
    router, target = served
    with Client(target) as client:
        memory = client.status().memory
        assert memory is not None
        assert memory.budget_bytes == 6 << 30
        router.ledger = None
        assert client.status().memory is None


def test_leaving_a_load_cancels_the_call_alone(served: tuple[FakeRouter, str]) -> None:
    router, target = served
    router.loading = [LOADING] * 1000
    with Client(target) as client:
        changes = client.load_model(MODEL)
        assert next(changes).state == "loading"
        changes.close()
        assert client.get_model(MODEL).name == MODEL
        with pytest.raises(RemoteError) as raised:
            list(client.load_model("nobody"))
    assert raised.value.status_code is grpc.StatusCode.NOT_FOUND
