"""A store without its server, on a disk in memory: small, quick, and crashed at will."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bramley.cachestore.files import Files
from bramley.cachestore.process import StoreProcess
from bramley.cachestore.store import Store
from support.store import settings


class CoreProcess(StoreProcess):
    """Opens its tiers and runs what writes to the disk; nobody can connect.

    Args:
        mount: of the disk.
        files: to reach it by.
        epoch: of this incarnation.
        budgets: of the settings.
    """

    def __init__(self, mount: Path, files: Files, epoch: int, **budgets: int) -> None:
        chosen = settings(folder=str(mount), **budgets)
        super().__init__(chosen, f"unix:{mount}.sock", epoch, files=files)
        self._stack: Any = None

    @asynccontextmanager
    async def _running(self, store: Store, data: object) -> AsyncGenerator[None]:
        assert store.spiller is not None
        spilling = asyncio.create_task(store.spiller.run())
        try:
            yield
        finally:
            spilling.cancel()
            await asyncio.gather(spilling, return_exceptions=True)

    async def start(self) -> Store:
        """Open it."""
        self._stack = self.serve()
        await self._stack.__aenter__()
        return self.store

    async def stop(self) -> None:
        """Close it; what waits for the disk is given up."""
        await self._stack.__aexit__(None, None, None)
