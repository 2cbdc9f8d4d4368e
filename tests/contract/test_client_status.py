"""What the command line tells of models and processes, against a scripted router."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from support.fake_router import MODEL, FakeRouter, serving, write_state
from support.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path / "state", monkeypatch)


@pytest.fixture
def router(shell: Shell) -> Generator[FakeRouter]:
    with serving() as (router, target):
        write_state(shell.state_dir, router=target, node=target)
        yield router


Output = pytest.CaptureFixture[str]


def printed(capsys: Output) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("router")
def test_models_are_listed(shell: Shell, capsys: Output) -> None:
    assert shell.run("models") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:6] == ["model", "state", "context", "template", "reasoning", "tools"]
    assert row.split() == [MODEL, "ready", "2048", "yes", "no", "json_tools"]


MODEL_JSON: dict[str, object] = {
    "name": MODEL,
    "state": "ready",
    "reason": "",
    "revision": "abc",
    "load_progress": 1.0,
    "context_tokens": 2048,
    "max_rows": 8,
    "has_chat_template": True,
    "requests_running": 0,
    "requests_waiting": 0,
    "pinned": False,
    "memory_bytes": 1 << 20,
    "reserved_bytes": 3 << 20,
    "needed_bytes": 5 << 20,
    "idle_s": 1.5,
    "reasoning_format": "",
    "tool_format": "json_tools",
}


@pytest.mark.usefixtures("router")
def test_models_json_is_a_list_of_exactly_these_facts(shell: Shell, capsys: Output) -> None:
    assert shell.run("models", "--json") == 0
    assert printed(capsys) == [MODEL_JSON]


@pytest.mark.usefixtures("router")
def test_status_json_has_exactly_the_documented_shape(shell: Shell, capsys: Output) -> None:
    assert shell.run("status", "--json") == 0
    status = printed(capsys)
    addresses = status.pop("addresses")
    assert addresses.keys() == {"grpc", "http", "socket", "node"}
    assert status == {
        "state": "running",
        "processes": [
            {
                "role": "router",
                "name": "router",
                "pid": 4242,
                "state": "running",
                "epoch": 3,
                "address": "unix:/r.sock",
                "restarts": 1,
                "last_exit": "signal SIGKILL",
            }
        ],
        "models": [MODEL_JSON],
        "memory": {"budget_bytes": 6 << 30, "store_bytes": 1 << 30, "reserved_bytes": 3 << 20},
        "version": "1.2.3",
    }


def test_status_works_without_a_router(shell: Shell, capsys: Output) -> None:
    with serving() as (_, target):
        write_state(shell.state_dir, router="unix:/nonexistent/r", node=target)
        assert shell.run("status", "--json") == 0
        status = printed(capsys)
        assert (status["state"], status["models"], status["version"]) == ("running", [], None)
        assert len(status["processes"]) == 1
        assert shell.run("status") == 0
    assert "the router does not answer" in capsys.readouterr().out


def test_status_of_no_cluster_is_stopped_in_the_same_shape(shell: Shell, capsys: Output) -> None:
    assert shell.run("status", "--json") == 0
    assert printed(capsys) == {
        "state": "stopped",
        "addresses": {"grpc": None, "http": None, "socket": None, "node": None},
        "processes": [],
        "models": [],
        "memory": None,
        "version": None,
    }
