"""What each running process has loaded, and how the cluster tells of them."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from support.served import Served

HEAVY = ("mlx", "torch", "transformers", "tokenizers", "numpy")

needs_maps = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="only Linux tells another process's maps"
)


def mapped(pid: int) -> set[str]:
    """Return which of the heavy packages have a library in a process's memory."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {name for name in HEAVY if f"/site-packages/{name}" in maps}


@needs_maps
async def test_only_workers_have_mlx_loaded(served: Served) -> None:
    children = served.cluster.children()
    assert mapped(children["worker", "tiny"]) >= {"mlx", "tokenizers"}
    assert mapped(children["router", "router"]) == set()
    assert mapped(children["store", "store"]) == set()
    assert mapped(served.cluster.supervisor.pid) == set()


@needs_maps
async def test_nobody_has_torch_loaded(served: Served) -> None:
    assert not any("torch" in mapped(pid) for pid in served.cluster.children().values())


async def test_children_are_in_sessions_of_their_own(served: Served) -> None:
    for pid in served.cluster.children().values():
        assert os.getsid(pid) == pid


async def test_sockets_lie_in_a_folder_that_only_the_owner_enters(served: Served) -> None:
    folder = Path(served.cluster.node.run_dir)
    assert folder.stat().st_mode & 0o777 == 0o700  # noqa: ASYNC240 a moment
    assert len(str(folder)) < 60


async def test_processes_run_this_interpreter(served: Served) -> None:
    for pid in served.cluster.children().values():
        assert psutil.Process(pid).cmdline()[0] == sys.executable
