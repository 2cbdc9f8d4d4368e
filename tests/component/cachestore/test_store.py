"""A store and its clients on a temporary folder: what goes in comes out, and nothing else."""

from pathlib import Path

from bramley.cachestore.client import Published
from support.store import ids, local_store, settings, worker


async def test_what_one_worker_stores_another_reads(tmp_path: Path) -> None:
    async with (
        local_store(settings(folder=str(tmp_path / "disk"))) as (process, target),
        worker(target) as one,
        worker(target) as other,
    ):
        answers = await one.put(ids(1000))
        assert all(isinstance(answer, Published) for answer in answers)
        assert await other.read(ids(1000)) == 999
        assert await other.read(ids(2000)) == 1000
        await other.idle()
        flushed = await one.client.flush()
        assert flushed is not None
        assert flushed.ok
        process.store.check()
