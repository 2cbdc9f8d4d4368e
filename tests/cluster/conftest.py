"""One cluster of real workers for all tests that only ask it things."""

from collections.abc import AsyncGenerator

import pytest

from support.served import Served, cluster_toml, serving


@pytest.fixture(scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    """Serve the models of support/served.py, all of them ready."""
    async with serving(tmp_path_factory.mktemp("served"), cluster_toml) as made:
        yield made
