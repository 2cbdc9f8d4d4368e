"""How a supervised child starts, and with which code it ends when it cannot."""

import asyncio
import logging
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from bramley.common.child import ChildContext
from bramley.common.errors import CannotListen
from bramley.common.main import run_child

CONTEXT = ChildContext(
    role="worker", name="llama", epoch=2, run_dir="/r", lease_file="/l", ready_fd=3, owner_fd=4
)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a process."""

    rows: int


@pytest.fixture(autouse=True)
def logging_as_before() -> Generator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


async def run(
    settings: Path, content: str, child: str = "", error: Exception | None = None
) -> tuple[int, list[object]]:
    """Run a child beside the test's own loop: its exit code, and what it was given."""
    given: list[object] = []

    async def serve(context: ChildContext, settings: Settings) -> None:
        await asyncio.sleep(0)
        given.extend([context, settings])
        if error is not None:
            raise error

    settings.write_text(content)  # noqa: ASYNC240  a few bytes
    arguments = ["--child", child or CONTEXT.argument(), "--settings", str(settings)]
    return await asyncio.to_thread(run_child, "worker", Settings, serve, arguments), given


async def test_it_is_told_who_it_is_and_its_settings(tmp_path: Path) -> None:
    assert await run(tmp_path / "s", '{"rows": 4}') == (0, [CONTEXT, Settings(4)])


@pytest.mark.parametrize(
    ("content", "child", "named"),
    [
        ('{"row": 4}', "", "row"),
        ("{", "", "settings.json"),
        ('{"rows": 4}', "{}", "--child"),
    ],
)
async def test_a_fault_of_what_it_is_told_is_code_2_and_one_line(
    tmp_path: Path, content: str, child: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(tmp_path / "settings.json", content, child) == (2, [])
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


async def test_a_taken_address_is_code_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = await run(tmp_path / "s", '{"rows": 4}', error=CannotListen("h:1", "in use"))
    assert code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("CRITICAL worker/llama cannot listen on h:1: in use")


async def test_any_other_fault_keeps_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space"):
        await run(tmp_path / "s", '{"rows": 4}', error=OSError("no space"))


async def test_its_log_is_of_the_format_that_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = msgspec.structs.replace(CONTEXT, log_format="json").argument()
    error = CannotListen("h:1", "in use")
    await run(tmp_path / "s", '{"rows": 4}', child, error)
    (line,) = capsys.readouterr().err.splitlines()
    told = msgspec.json.decode(line, type=dict[str, object])
    assert (told["process"], told["message"]) == ("worker/llama", "cannot listen on h:1: in use")
