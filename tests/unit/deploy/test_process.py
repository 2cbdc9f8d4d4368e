"""How an end is put into words."""

import asyncio
import logging
import os
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from bramley.common.logs import Format, formatter
from bramley.deploy import process as process_module
from bramley.deploy.process import Incarnation, how_it_ended, last_words, target_of
from bramley.deploy.state import Record
from bramley.deploy.supervisor import Level


@pytest.mark.parametrize(
    ("code", "words", "said"),
    [
        (3, "no such model", "exit code 3: no such model"),
        (3, "", "exit code 3"),
        (0, "bye", "exit code 0"),
        (-9, "whatever", "signal SIGKILL"),
        (-60, "", "signal 60"),
        (None, "bye", "exit code unknown"),
    ],
)
def test_an_end_is_told(code: int | None, words: str, said: str) -> None:
    assert how_it_ended(code, words) == said


def test_last_words_are_the_last_line_that_is_not_empty(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\nlast \xff\n\n \n")
    assert last_words(log, 0) == "last \ufffd"


def test_last_words_are_not_a_predecessors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of another\n")
    assert last_words(log, log.stat().st_size) == ""


def test_last_words_are_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x" * 100_000)
    assert len(last_words(log, 0)) == 300


def test_a_missing_log_has_no_last_words(tmp_path: Path) -> None:
    assert last_words(tmp_path / "log", 0) == ""


def test_a_childs_own_socket_is_its_target() -> None:
    assert target_of({"grpc": "h:1", "socket": "unix:s"}) == "unix:s"
    assert target_of({"grpc": "h:1"}) == "h:1"
    assert target_of({}) == ""


async def test_a_process_that_may_not_be_signalled_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(process: psutil.Process, _: int) -> NoReturn:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "send_signal", refuse)
    record = Record(role="worker", name="a", epoch=1, pid=os.getpid(), spec="")
    one = Incarnation(record, 0.0, tmp_path / "log", lambda: None).adopt(psutil.Process())
    one.send(Level.TERMINATE, 1.0)
    assert one.is_stopping


async def test_what_openmp_keeps_of_a_killed_process_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_OPENMP_FILE", str(tmp_path / "{pid}_{uid}"))
    ended = asyncio.Event()
    child = await asyncio.create_subprocess_exec("sleep", "60")
    kept = tmp_path / f"{child.pid}_{os.getuid()}"
    kept.touch()
    record = Record(role="worker", name="a", epoch=1, pid=child.pid, spec="")
    one = Incarnation(record, 0.0, tmp_path / "log", ended.set)
    one.adopt(psutil.Process(child.pid))
    child.kill()
    await child.wait()
    await asyncio.wait_for(ended.wait(), 10)
    assert one.exit
    assert not kept.exists()


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_last_words_of_our_own_log_are_its_message(tmp_path: Path, form: Format) -> None:
    log = tmp_path / "log"
    record = logging.makeLogRecord({"levelname": "CRITICAL", "msg": "no such folder"})
    log.write_text(formatter("worker/m", form).format(record) + "\n")
    assert last_words(log, 0) == "no such folder"
