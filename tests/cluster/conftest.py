"""One cluster of real workers for all tests that only ask it things.

Making the models needs MLX, which stays out of the test's own process here: the fixture has
a process of its own write them.
"""

import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bramley.client.client import AsyncClient
from support.cluster import Cluster
from support.served import Served, cluster_toml

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    """Serve the models of support/served.py, all of them ready."""
    folder = tmp_path_factory.mktemp("served")
    write = [sys.executable, str(TESTS / "support" / "served_models.py"), str(folder / "models")]
    subprocess.run(write, check=True, timeout=60, env={"PYTHONPATH": str(TESTS)})  # noqa: ASYNC221
    cluster = Cluster(folder, cluster_toml(folder / "models"))
    await cluster.up()
    try:
        async with AsyncClient(cluster.node.addresses["grpc"]) as client:
            made = Served(cluster, client)
            await made.ready()
            yield made
    finally:
        await cluster.close()
