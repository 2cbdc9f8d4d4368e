"""A Prometheus of its own for a test: our configuration, real ports, short times."""

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bramley.bench.panels import Prometheus

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
_MISSING = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
needs_prometheus = pytest.mark.skipif(
    bool(_MISSING), reason=f"needs Debian's package prometheus: {_MISSING} not found"
)
ROUTER, STORE = "127.0.0.1:7411", "127.0.0.1:7412"  # as the file has them

_LISTENS = re.compile(r'msg="Listening on" address=(\S+)')
_DURATION = re.compile(
    r"^( *)(for|scrape_interval|scrape_timeout|evaluation_interval): \d+[sm]$", re.M
)
PATIENCE_S = 30.0


def shortened(text: str) -> str:
    """Make every pause of a configuration or of rules one second."""
    return _DURATION.sub(r"\1\2: 1s", text)


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, str]) -> AsyncGenerator[Prometheus]:
    """Run one for the length of the block, on a free port of loopback.

    Args:
        folder: a test's own.
        targets: what stands in the place of each address of the file.

    Yields:
        Its interface, once it answers.
    """
    for file in FOLDER.glob("*.yml"):
        text = shortened(file.read_text())
        for ours, real in targets.items():
            text = text.replace(ours, real)
        (folder / file.name).write_text(text)
    process = await asyncio.create_subprocess_exec(
        *("prometheus", f"--config.file={folder}/prometheus.yml"),
        *(f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    address = ""
    async with asyncio.timeout(PATIENCE_S):
        while not address and (line := await process.stderr.readline()):
            said.append(line.decode())
            if found := _LISTENS.search(said[-1]):
                address = found[1]
    drain = asyncio.create_task(process.stderr.read())  # or it blocks when the pipe is full
    try:
        assert address, "".join(said)
        made = Prometheus(address)
        await until(lambda: bool(_answers(made)))
        yield made
    finally:
        process.terminate()
        await process.wait()
        await drain


async def until(claim: Callable[[], object], timeout_s: float = PATIENCE_S) -> Any:
    """Ask again and again, until the answer is true: that answer."""
    async with asyncio.timeout(timeout_s):
        while True:
            answer = await asyncio.to_thread(claim)
            if answer:
                return answer
            await asyncio.sleep(0.2)


def _answers(made: Prometheus) -> bool:
    try:
        made.get("status/buildinfo")
    except (OSError, ValueError):
        return False
    return True
