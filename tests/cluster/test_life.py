"""A model's life by the command line, over supervisor and router as they are; workers are fake."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support import fake_worker
from support.cluster import Cluster

TESTS = Path(fake_worker.__file__).parents[1]


def _toml(folder: Path, b: str, more: str = "") -> str:
    script = folder / "script.json"
    script.write_text("{}")
    run = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from support import fake_worker as w; "
    command = json.dumps(
        [sys.executable, "-c", f"{run}sys.exit(w.main())", "--script", str(script)]
    )
    return f"""
[models.a]
path = "none"
[models.b]
path = "none"
{b}
[store]
enabled = false
[node]
worker_command = {command}
{more}
"""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[Cluster]:
    cluster = Cluster(tmp_path, _toml(tmp_path, 'load = "manual"'))
    await cluster.up()
    await cluster.running("worker", "a")
    yield cluster
    await cluster.close()


async def _bramley(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    command = (sys.executable, "-m", "bramley.client", "--state-dir", str(cluster.state_dir))
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await cluster.within(process.communicate())
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_a_model_is_loaded_pinned_changed_and_unloaded(cluster: Cluster) -> None:
    assert set(cluster.children()) == {("router", "router"), ("worker", "a")}
    assert await _bramley(cluster, "load", "b", "--pin") == (0, "model b is ready\n")
    first = await cluster.running("worker", "b")
    assert first.pinned
    assert (await _bramley(cluster, "unpin", "b"))[0] == 0
    assert not (await cluster.running("worker", "b")).pinned

    cluster.rewrite(_toml(cluster.folder, 'load = "manual"\nmax_rows = 3'))
    assert await _bramley(cluster, "reload") == (0, "models.b.max_rows\n")
    await cluster.gone(first.pid)  # its settings are others now
    assert await _bramley(cluster, "load", "b") == (0, "model b is ready\n")
    second = await cluster.running("worker", "b", after=first.epoch)
    assert await _bramley(cluster, "unload", "b") == (0, "model b is unloaded\n")
    assert second.pid not in cluster.children().values()

    cluster.rewrite(_toml(cluster.folder, 'load = "manual"', 'router_command = ["other"]'))
    code, said = await _bramley(cluster, "reload")
    assert (code, said[:29]) == (2, "bramley: node.router_command:")
    assert (await _bramley(cluster, "drain"))[0] == 0
    code, said = await _bramley(cluster, "load", "b")
    assert (code, said.endswith("[DRAINING]\n")) == (1, True)
