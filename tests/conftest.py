"""The BLAS of this process, and fixtures that need taking down."""

import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.blas import BLAS  # loaded before anything imports mlx

from bramley.worker.models.blas import REFERENCE  # isort: skip

if TYPE_CHECKING:
    from support.cluster import Cluster

# A background job ignores SIGINT, and its children inherit that: those we interrupt must not.
signal.signal(signal.SIGINT, signal.default_int_handler)


# What takes long where MKL has no strict mode, and MLX's own BLAS multiplies.
_LONG_BY_REFERENCE = (
    "differential/",
    "component/worker/test_memory.py",
    "component/worker/test_parking.py",
    "component/worker/test_prefix.py",
    "component/worker/test_saving.py",
    "component/worker/test_state_laws.py",
    "property/test_engine.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the slow tests what would be slow with this BLAS."""
    if BLAS == REFERENCE:
        here = Path(__file__).parent
        for item in items:
            if item.path.relative_to(here).as_posix().startswith(_LONG_BY_REFERENCE):
                item.add_marker(pytest.mark.slow)


def pytest_report_header() -> str:
    """Say what the bits depend on."""
    return f"matrices by {BLAS.name}"


@pytest.fixture
async def make_cluster(tmp_path: Path) -> "AsyncGenerator[Callable[[str], Cluster]]":
    """Make a cluster from the text of a ``cluster.toml``; the test brings it ``up``."""
    from support.cluster import Cluster  # gRPC: not for those who need no process

    made: list[Cluster] = []

    def make(toml: str) -> Cluster:
        folder = tmp_path / f"cluster-{len(made)}"
        folder.mkdir()
        made.append(Cluster(folder, toml))
        return made[-1]

    yield make
    for cluster in made:
        await cluster.close()
