"""A log line is one line, for people or for machines, with its facts and whose it is."""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bramley.common import logs
from bramley.common.logs import facts

Written = Callable[[], list[str]]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """Reads the lines that went to stderr; the handlers from before come back."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()

    def read() -> list[str]:
        return capsys.readouterr().err.splitlines()

    yield read
    root.handlers[:] = before
    root.setLevel(level)


def only(written: Written) -> dict[str, Any]:
    (line,) = written()
    return json.loads(line)


def test_text_is_one_line_with_facts(written: Written) -> None:
    logs.setup("router")
    logging.info("two\nlines\r", extra=facts(model="a", count=2))
    (line,) = written()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} INFO router ", line)
    assert line.endswith(r"two\nlines\r model=a count=2")


def test_what_callers_write_moves_no_cursor_of_a_terminal(written: Written) -> None:
    logs.setup("router")
    logging.info("asked", extra=facts(id="\x1b[2K\x85\u2028\x7f\x0bé"))
    (line,) = written()
    assert line.endswith(r"asked id=\x1b[2K\x85\u2028\x7f\x0bé")


def test_json_says_when_who_and_what(written: Written) -> None:
    logs.setup("worker/a", "json")
    logging.warning("not %s", "stored", extra=facts(tokens=2, share=0.5, why=ValueError("no")))
    told = only(written)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {
        "level": "WARNING",
        "process": "worker/a",
        "pid": os.getpid(),
        "message": "not stored",
        "tokens": 2,
        "share": 0.5,
        "why": "no",
    }


def test_a_fact_never_hides_what_every_line_has(written: Written) -> None:
    logs.setup("x", "json")
    logging.info("m", extra=facts(pid=1, message="other", level="none"))
    told = only(written)
    assert (told["pid"], told["fact_pid"]) == (os.getpid(), 1)
    assert (told["message"], told["fact_message"]) == ("m", "other")
    assert (told["level"], told["fact_level"]) == ("INFO", "none")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_names_its_request_and_its_trace(form: logs.Format, written: Written) -> None:
    logs.setup("x", form)
    request, trace = logs.request_id.set("r7-1"), logs.trace_id.set("ab" * 16)
    try:
        logging.info("m")
    finally:
        logs.request_id.reset(request)
        logs.trace_id.reset(trace)
    logging.info("later")
    first, second = written()
    if form == "json":
        told = json.loads(first)
        assert (told["request_id"], told["trace_id"]) == ("r7-1", "ab" * 16)
        assert not {"request_id", "trace_id"} & json.loads(second).keys()
    else:
        assert f" request=r7-1 trace={'ab' * 16} m" in first
        assert "request=" not in second
        assert "trace=" not in second


def test_the_engine_s_lines_name_the_request_in_the_same_field(written: Written) -> None:
    logs.setup("x", "json")
    logging.info("m", extra=facts(request="r7-1"))
    told = only(written)
    assert told["request_id"] == "r7-1"
    assert "request" not in told


def test_an_exception_is_a_field_of_the_line(written: Written) -> None:
    logs.setup("x", "json")
    logging.error("failed", exc_info=ValueError("first\nsecond"))
    told = only(written)
    assert told["message"] == "failed"
    assert told["exception"] == "ValueError: first\nsecond"


@given(st.text(), st.dictionaries(st.text(), st.floats() | st.text() | st.integers(-9, 9)))
def test_whatever_is_said_is_one_object(message: str, told: dict[str, Any]) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (message,), None)
    record.facts = told
    line = logs.formatter("x", "json").format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == message


def test_what_a_line_says_is_found_in_either_form() -> None:
    assert logs.words_of("2026 ERROR it broke") == "2026 ERROR it broke"
    assert logs.words_of('{"level": "ERROR", "message": "it broke"}') == "it broke"
    traced = {"message": "failed", "exception": "Traceback\n  at x\nValueError: no"}
    assert logs.words_of(json.dumps(traced)) == "ValueError: no"
    for other in ("", "{", "{}", "[1]", "1", "null"):
        assert logs.words_of(other) == other
