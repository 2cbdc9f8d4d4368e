"""Reasoning, calls of tools and constraints: both clients and the command line."""

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from bramley.client import AsyncClient, Client
from bramley.client.events import ToolCall
from bramley.protos.v1 import generation_pb2, types_pb2
from support.fake_router import MODEL, FakeRouter, serving, told, write_state
from support.shell import Shell

Part = types_pb2.ToolCallDelta
CALLED = types_pb2.FINISH_REASON_TOOL_CALLS
DELTAS = [
    generation_pb2.Delta(reasoning_text="I ", reasoning_tokens=1),
    generation_pb2.Delta(reasoning_text="think", reasoning_tokens=4),
    generation_pb2.Delta(text="Let me look.", reasoning_tokens=4),
    generation_pb2.Delta(tool_calls=[Part(index=0, id="c1", name="look")]),
    generation_pb2.Delta(
        tool_calls=[
            Part(index=0, arguments_json='{"at": '),
            Part(index=0, arguments_json='"é"}', ended=True),
            Part(index=1, id="c2", name="look", arguments_json="{at", malformed=True, ended=True),
        ]
    ),
    generation_pb2.Delta(tool_calls=[Part(index=2, id="c3", name="wait", arguments_json="{")]),
]
CALLS = [
    ToolCall(id="c1", name="look", arguments='{"at": "é"}'),
    ToolCall(id="c2", name="look", arguments="{at", is_malformed=True),
    ToolCall(id="c3", name="wait", arguments="{", is_ended=False),
]


@pytest.fixture
def served() -> Generator[tuple[FakeRouter, str]]:
    with serving() as (router, target):
        router.script = told(*DELTAS, reason=CALLED)
        yield router, target


async def test_parts_of_calls_are_joined_by_their_index(served: tuple[FakeRouter, str]) -> None:
    with Client(served[1]) as client:
        answer = client.complete(MODEL, "hi")
    async with AsyncClient(served[1]) as client:
        assert await client.complete(MODEL, "hi") == answer
    assert (answer.reasoning_text, answer.text) == ("I think", "Let me look.")
    assert answer.tool_calls == answer.choices[0].tool_calls == CALLS
    assert answer.finish_reason == "tool_calls"
    assert (answer.usage.completion_tokens, answer.usage.reasoning_tokens) == (9, 4)


@pytest.fixture
def shell(served: tuple[FakeRouter, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    shell = Shell(tmp_path / "state", monkeypatch)
    write_state(shell.state_dir, router=served[1], node=served[1])
    return shell


def test_reasoning_goes_to_stderr_and_calls_to_stdout(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run("generate", MODEL, "hi") == 0
    out, err = capsys.readouterr()
    assert err == "I think\n"
    lines = ["Let me look.", 'look {"at": "é"}', "look {at (malformed)", "wait { (cut short)"]
    assert out.splitlines() == lines


def test_json_holds_reasoning_and_calls(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run("generate", MODEL, "hi", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["reasoning_text"] == "I think"
    assert [call["id"] for call in printed["tool_calls"]] == ["c1", "c2", "c3"]


def of(shell: Shell) -> list[str]:
    """Begin a command line of its own process."""
    return [sys.executable, "-m", "bramley.client", "--state-dir", str(shell.state_dir)]


TOOLS = [{"name": "look", "parameters": {"type": "object"}}]


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_options_reach_the_router(
    served: tuple[FakeRouter, str], shell: Shell, tmp_path: Path, command: str
) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    options = ["--tools", str(tmp_path / "tools.json"), "--tool-choice", "look"]
    options += ["--reasoning", "off", "--reasoning-budget", "0", "--reasoning-effort", "low"]
    words = [command, MODEL, *(["hi"] if command == "generate" else []), *options]
    bramley = [*of(shell), *words]
    subprocess.run(bramley, input="hi\n", text=True, check=True, stdout=subprocess.PIPE)
    (request,) = served[0].requests
    assert [tool.name for tool in request.tools] == ["look"]
    assert request.tool_choice.name == "look"
    reasoning = types_pb2.ReasoningOptions(enabled=False, budget_tokens=0, effort="low")
    assert request.reasoning == reasoning


@pytest.mark.parametrize(
    ("options", "constraint"),
    [
        (["--json-schema", ' {"type": "object"}'], {"json_schema": ' {"type": "object"}'}),
        (["--json-schema", "FILE"], {"json_schema": "inside"}),
        (["--grammar", "FILE"], {"grammar": "inside"}),
        (["--grammar", 'start: "a" | "b"'], {"grammar": 'start: "a" | "b"'}),
        (["--regex", "[0-9]"], {"regex": "[0-9]"}),
        (["--choice", "a", "--choice", "b"], {"choice": {"values": ["a", "b"]}}),
    ],
)
def test_constraints_are_given_as_text_or_in_a_file(
    served: tuple[FakeRouter, str],
    shell: Shell,
    tmp_path: Path,
    options: list[str],
    constraint: dict[str, str],
) -> None:
    (tmp_path / "file").write_text("inside")
    words = [word.replace("FILE", str(tmp_path / "file")) for word in options]
    assert shell.run("generate", MODEL, "hi", *words) == 0
    made = types_pb2.Constraint(**constraint)  # pyright: ignore[reportArgumentType]
    assert served[0].requests[0].constraint == made


@pytest.mark.parametrize(
    ("options", "told_of"),
    [
        (["--reasoning", "maybe"], "--reasoning"),
        (["--tools", "/nowhere"], "--tools"),
        (["--grammar", "/nowhere"], "--grammar"),
        (["--json-schema", "/nowhere"], "--json-schema"),
        (["--tools", "FILE"], "--tools"),
        (["--regex", "a", "--choice", "b"], "constraint"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_option(
    shell: Shell,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    told_of: str,
) -> None:
    (tmp_path / "file").write_text('{"name": "f"}')
    words = [word.replace("FILE", str(tmp_path / "file")) for word in options]
    assert shell.run("generate", MODEL, "hi", *words) == 2
    assert f"bramley: {told_of}: " in capsys.readouterr().err


def test_a_conversation_keeps_what_was_reasoned_and_called(
    served: tuple[FakeRouter, str], shell: Shell
) -> None:
    bramley = [*of(shell), "chat", MODEL]
    subprocess.run(bramley, input="one\ntwo\n", text=True, check=True, stdout=subprocess.PIPE)
    _, reply, _ = served[0].requests[1].chat.messages
    assert (reply.content, reply.reasoning_content) == ("Let me look.", "I think")
    assert [call.id for call in reply.tool_calls] == ["c1", "c2", "c3"]
