"""``bramley session``, against a scripted router."""

import sys
from pathlib import Path

import pytest

from bramley.client import cli
from support.fake_router import MODEL, serving, write_state


def run(state_dir: Path, patch: pytest.MonkeyPatch, *arguments: str) -> int:
    patch.setattr(sys, "argv", ["bramley", "--state-dir", str(state_dir), "session", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_closing_a_session_says_whether_it_was_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as (router, target):
        write_state(tmp_path, router=target, node=target)
        assert run(tmp_path, monkeypatch, "close", MODEL, "k", "--salt", "s") == 0
        assert run(tmp_path, monkeypatch, "close", MODEL, "k") == 0
    assert capsys.readouterr().out == "closed\nnothing was kept of it\n"
    assert [(one.model, one.session_key, one.salt) for one in router.closed] == [
        (MODEL, "k", "s"),
        (MODEL, "k", ""),
    ]


def test_a_session_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, "close", MODEL) == 2
