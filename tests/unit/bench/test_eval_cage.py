"""Programs that would do harm are ended, and leave no process, no file and no trace."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from bramley.bench.eval import cage
from bramley.bench.eval.cage import Caged, CannotCage, Limits, run_caged
from bramley.bench.eval.tasks import humaneval
from bramley.bench.eval.tasks.command import SHIPPED, read_items
from bramley.bench.eval.tasks.contract import Answer, Setting, Verdict

TIGHT = Limits(cpu_s=1, memory_bytes=256 << 20, file_bytes=1 << 16, files=16, processes=8)
BOMB = """
import os, time
made = refused = 0
while refused < 100:
    try:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
    except OSError:
        refused += 1
print(made, flush=True)
"""
ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where cages are made; empty again after each."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def caged(program: str, timeout_s: float = 20.0) -> Caged:
    """Run under tight limits; nothing that was started is left."""
    before = set(psutil.pids())
    try:
        return run_caged(program, timeout_s=timeout_s, limits=TIGHT)
    finally:
        for pid in set(psutil.pids()) - before:
            try:
                assert "program.py" not in psutil.Process(pid).cmdline()
            except psutil.NoSuchProcess:
                continue
        assert not list(Path(tempfile.gettempdir()).iterdir())


@pytest.mark.usefixtures("folder")
def test_a_good_program_runs_to_its_end_and_is_heard() -> None:
    told = caged("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (told.code, told.ended) == (0, "")
    assert sorted(told.said.split()) == ["err", "out"]


@pytest.mark.usefixtures("folder")
def test_it_sees_no_packages_no_environment_and_an_empty_folder() -> None:
    told = caged(
        "import os, sys\n"
        "print(sorted(os.environ), os.listdir(), sys.flags.isolated, sys.flags.no_site)\n"
        "import numpy\n"
    )
    assert "['CAGE'" in told.said
    assert "['program.py'] 1 1" in told.said
    assert told.code == 1
    assert "ModuleNotFoundError" in told.said


@pytest.mark.usefixtures("folder")
def test_a_loop_is_ended_by_its_processor_time() -> None:
    told = caged("while True: pass")
    assert told.code in {137, 152}
    assert "processor" in told.ended


@pytest.mark.usefixtures("folder")
def test_a_sleeper_is_ended_by_the_clock() -> None:
    start_s = time.monotonic()
    told = caged("import time\ntime.sleep(60)", timeout_s=0.5)
    assert (told.code, told.ended) == (137, "ended after 0.5 s")
    assert time.monotonic() - start_s < 10


@pytest.mark.usefixtures("folder")
def test_a_fork_bomb_stays_small_and_is_swept_away() -> None:
    told = caged(BOMB)
    assert told.code == 0, told
    assert int(told.said) <= TIGHT.processes


@pytest.mark.usefixtures("folder")
def test_a_child_that_leaves_its_session_is_ended_as_well() -> None:
    assert caged(ESCAPE).code == 0


def test_what_got_away_is_found_by_its_mark(tmp_path: Path) -> None:
    program = tmp_path / "asleep.py"
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(program)],
        env={"CAGE": "a-mark-of-this-test"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [one.pid for one in cage.marked("a-mark-of-this-test")] == [process.pid]
        assert not cage.marked("another-mark")
        cage.sweep("a-mark-of-this-test")
        assert process.wait(10) == -9


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("f = open('x', 'wb')\nwhile True: f.write(bytes(4096))", "File too large"),
        ("bytearray(1 << 30)", "MemoryError"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "MemoryError"),
        ("kept = [open('program.py') for _ in range(100)]", "Too many open files"),
        ("while True: print('x' * 1000)", "File too large"),
    ],
)
def test_what_is_too_much_is_refused(program: str, error: str) -> None:
    told = caged(program)
    assert told.code != 0
    assert error in told.said or not told.said.isprintable(), told


@pytest.mark.usefixtures("folder")
def test_nobody_can_be_called() -> None:
    told = caged(
        "import socket\n"
        "server = socket.socket()\n"
        "try:\n"
        "    socket.create_connection(('127.0.0.1', 9), 2)\n"
        "except ConnectionRefusedError: print('there is a network')\n"
        "except OSError as error: print(error)\n"
    )
    if "no network" in told.isolation:
        assert "unreachable" in told.said
    else:  # where namespaces are not permitted, the run says so
        assert told.isolation in {"limits alone", "user nobody"}


@pytest.mark.usefixtures("folder")
def test_limits_that_cannot_be_set_are_no_verdict_on_the_program() -> None:
    with pytest.raises(CannotCage, match="not started"):
        run_caged("print(1)", limits=Limits(cpu_s=1 << 80))
    assert caged("raise SystemExit(97)").code == 97


@pytest.mark.usefixtures("folder")
def test_a_crash_of_the_interpreter_is_a_code() -> None:
    assert caged("import ctypes\nctypes.string_at(0)").code == 139


def function(name: str) -> humaneval.Function:
    items = read_items(humaneval.TASK, SHIPPED / "humaneval.jsonl", None)
    found = next(item for item in items if item.id == name)
    assert isinstance(found, humaneval.Function)
    return found


def answered(text: str, *, raw: bool = False) -> Verdict:
    setting = Setting(style="raw" if raw else "chat")
    return humaneval.judge(function("humaneval-02"), Answer(text=text), setting)


RIGHT = "    return [b - a for a, b in zip(numbers, numbers[1:])]\n"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\ndef gaps(numbers):\n{RIGHT}```\nIt subtracts neighbours.",
        f"def gaps(numbers):\n{RIGHT}",
        f"```\n{RIGHT}```",
        f"Use this helper:\n```python\nx = 1\n```\nand\n```python\ndef gaps(numbers):\n{RIGHT}```",
    ],
)
def test_a_right_function_passes_however_it_is_wrapped(text: str) -> None:
    assert answered(text).is_right, answered(text)


def test_plain_text_goes_on_where_the_item_ends() -> None:
    assert answered(RIGHT, raw=True).is_right


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```python\ndef gaps(numbers):\n    return []\n```", "AssertionError"),
        ("```python\ndef gaps(numbers)\n    return []\n```", "SyntaxError"),
        ("I cannot do that.", "Error"),
        ("", "Error"),
        ("```python\nimport sys\ndef gaps(numbers):\n    sys.exit(0)\n```", "exit code 0"),
        ("```python\nimport os\ndef gaps(numbers):\n    os._exit(0)\n```", "without a word"),
        ("```python\ndef gaps(numbers):\n    return gaps(numbers)\n```", "RecursionError"),
    ],
)
def test_a_wrong_function_fails_and_says_why(text: str, why: str) -> None:
    verdict = answered(text)
    assert not verdict.is_right
    assert why in verdict.why
