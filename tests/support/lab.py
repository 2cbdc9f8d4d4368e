"""A cluster whose workers fail on command, for the cases that need a real engine and a fault."""

import json
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bramley.common.rpc import open_channel
from bramley.protos.v1 import worker_pb2
from bramley.protos.v1.worker_pb2_grpc import WorkerServiceStub
from support.served import Served, serving

FAULTY = Path(__file__).with_name("faulty.py")
RESTING = """
[store]
ram_bytes = 50000000
disk_bytes = 100000000
staging_bytes = 20000000
[node]
settled_s = 0.1
"""


class Lab:
    """A served cluster, and the folder that its workers look into.

    Attributes:
        served: the cluster.
    """

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self._folder = folder

    @contextmanager
    def fault(self, name: str, content: str = "", worker: str = "") -> Generator[None]:
        """Have a fault of support/faulty.py for the length of the block.

        Args:
            name: of the fault.
            content: of its file.
            worker: that has it; empty for all.

        Yields:
            Nothing.
        """
        file = self._folder / worker / name
        file.parent.mkdir(exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(content)
        new.rename(file)
        try:
            yield
        finally:
            file.unlink()

    async def idle(self, worker: str) -> worker_pb2.Load:
        """Wait until a worker itself tells that it runs nothing, and return its load."""
        process = await self.served.cluster.running("worker", worker)
        async with open_channel(process.address) as channel:
            call = WorkerServiceStub(channel).WatchLoad(worker_pb2.WatchLoadRequest())
            try:
                async for response in call:
                    load = response.load
                    if not (load.requests_running or load.requests_waiting):
                        return load
            finally:
                call.cancel()
        raise AssertionError("it has gone")


@asynccontextmanager
async def lab(folder: Path, models: str, more: str = RESTING) -> AsyncGenerator[Lab]:
    """Serve models with faulty workers for the length of the block.

    Args:
        folder: a test's own.
        models: tables of ``cluster.toml``, in which {models} is the folder of the models.
        more: of the file; it ends with the table [node].

    Yields:
        The cluster, all models ready.
    """
    faults = folder / "faults"
    faults.mkdir()
    command = json.dumps([sys.executable, "-P", str(FAULTY), str(faults), "bramley.worker"])
    text = f"{models}{more}worker_command = {command}\n"
    async with serving(folder, lambda path: text.replace("{models}", str(path))) as served:
        yield Lab(served, faults)
