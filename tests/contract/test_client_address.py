"""The command line with a router elsewhere: its address, a token from a file, certificates."""

import asyncio
import json
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from bramley.client import cli
from bramley.common.auth import digest_of
from support.certificates import Authority
from support.fake_router import MODEL, serving
from support.routing import routed
from support.script import Script
from support.tokens import Tokens


def run(patch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run a command in this process, and return its exit code."""
    patch.setattr(sys, "argv", ["bramley", "--state-dir", "/nonexistent", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


async def bramley(*arguments: str) -> tuple[int | None, str, str]:
    """Run a command in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bramley.client", "--state-dir", "/nonexistent", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_a_router_behind_tls_and_tokens_answers_the_command_line(tmp_path: Path) -> None:
    tokens, authority = Tokens(tmp_path), Authority(tmp_path)
    tokens.add("alice")
    file = tmp_path / "alice.token"
    file.touch(0o600)
    file.write_text(tokens.of["alice"] + "\n")
    mine = authority.issue("mine", "mine")
    tls = authority.server(authority.file)
    async with routed(Script(tokens=2), auth=tokens.settings, tls=tls) as bench:
        two = ["--max-tokens", "2"]
        door = ["--address", bench.router.addresses["grpc"], "--ca", authority.file]
        door += ["--certificate", mine.certificate, "--key", mine.key]
        code, out, err = await bramley(
            *door, "--token-file", str(file), "generate", "fake", "hi", *two
        )
        assert (code, out, err) == (0, "0 1 \n", "")
        code, out, err = await bramley(*door, "models")
        assert (code, out) == (1, "")
        assert "[UNAUTHENTICATED]" in err


def test_the_state_folder_is_not_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as (_, target):
        assert run(monkeypatch, "--address", target, "models", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == MODEL


def test_an_address_where_nobody_answers_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--address", "127.0.0.1:1", "models") == 1
    assert "no router answers at 127.0.0.1:1" in capsys.readouterr().err


# eval becomes another program, which opens the door itself.
COMMANDS = sorted({*getattr(get_command(cli.app), "commands")} - {"eval"})  # noqa: B009
MORE = {
    "cache": ["list"],
    "session": ["close", MODEL, "s"],
    "generate": [MODEL, "hi"],
    "embed": [MODEL, "hi"],
    "token": ["alice"],
    **{name: [MODEL] for name in ("chat", "load", "unload", "pin", "unpin")},
}
ASK_THE_ROUTER = {
    "chat",
    "drain",
    "embed",
    "generate",
    "load",
    "models",
    "pin",
    "session",
    "unload",
    "unpin",
}


def leave(_prompt: str) -> str:
    return "/exit"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_asks_that_router_or_says_that_it_is_of_this_machine(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", leave)
    with serving() as (_, target):
        code = run(monkeypatch, "--address", target, name, *MORE.get(name, []))
    said = capsys.readouterr().err
    if name in ASK_THE_ROUTER:
        assert "--address" not in said
        assert code == 0 or "UNIMPLEMENTED" in said or "not loaded" in said
    else:
        assert code == 2
        assert "--address" in said


class Became(Exception):
    """Another program took this one's place."""


def test_an_evaluation_is_told_of_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def become(_path: str, command: list[str]) -> None:
        raise Became(command)

    monkeypatch.setattr("os.execv", become)
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("secret")
    door = ["--address", "127.0.0.1:1", "--token-file", str(token)]
    monkeypatch.setattr(sys, "argv", ["bramley", *door, "eval", "tasks", "--help"])
    with pytest.raises(Became) as became:
        cli.main()
    command = became.value.args[0]
    assert command[command.index("--address") + 1] == "127.0.0.1:1"
    assert command[command.index("--token-file") + 1] == str(token)
    assert command[-2:] == ["tasks", "--help"]
    assert "secret" not in command


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ca", "x"], "--address"),
        (["--token-file", "x"], "--address"),
        (["--address", "127.0.0.1:1", "--token-file", "/nowhere"], "--token-file: /nowhere"),
        (["--address", "127.0.0.1:1", "--ca", "/nowhere"], "ca: /nowhere"),
        (["--address", "127.0.0.1:1", "--certificate", __file__], "key: is missing"),
    ],
)
def test_what_cannot_be_shown_is_bad_input(
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *options, "models") == 2
    assert said in capsys.readouterr().err


def test_a_token_file_that_others_can_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o644)
    options = ["--address", "127.0.0.1:1", "--token-file", str(file)]
    assert run(monkeypatch, *options, "models") == 2
    said = capsys.readouterr().err
    assert "chmod 600" in said
    assert "secret" not in said


def test_no_option_takes_the_token_itself() -> None:
    options = {name for each in get_command(cli.app).params for name in each.opts}
    assert "--token-file" in options
    assert "--token" not in options


@pytest.mark.parametrize("name", ["alice", "a.b", "1.5-x"])
def test_a_new_token_is_shown_apart_from_the_table_that_a_router_may_know(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "token", name) == 0
    shown = capsys.readouterr()
    token = shown.err.strip().rpartition(" ")[2]
    assert tomllib.loads(shown.out) == {"tokens": {name: {"sha256": digest_of(token)}}}
    assert run(monkeypatch, "token", "a/b") == 2
