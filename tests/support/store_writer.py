"""A worker to be killed: ``python store_writer.py TARGET``.

It does one step for each line on its standard input, and says so: ``stage``, ``reserve``,
``write`` (half of an inline payload), ``scribble`` (over its staging), ``seal``, ``acquire``.
"""

import asyncio
import sys

import grpc

from bramley.cachestore import keys, wire
from bramley.cachestore.copying import checksums_of
from bramley.cachestore.lease import Lease
from bramley.cachestore.objects import padded
from bramley.cachestore.staging import Staged
from bramley.protos.v1 import cachestore_pb2 as pb
from support.store import PART_BYTES, Worker, ids, payload, worker

TOKENS = 512
SEED = 77


class Writer:
    """The steps, and what they hand on."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._chains = keys.chain(worker.root, ids(TOKENS, SEED))
        self._sizes = [PART_BYTES, PART_BYTES]
        self._staged: Staged | None = None
        self._checksums = b""
        self._reserved = pb.Reservation()
        self._lease: Lease | None = None

    async def stage(self) -> str:
        """Fill staging."""
        staged = self._staged = self._worker.client.stage(sum(map(padded, self._sizes)))
        assert staged is not None
        for at, size in enumerate(self._sizes):
            chain = self._chains[at * 32 : at * 32 + 32]
            staged.view[at * padded(size) : at * padded(size) + size] = payload(chain, size)
        self._checksums = b"".join(checksums_of(staged.view, self._sizes))
        return "ok"

    async def reserve(self) -> str:
        """Reserve."""
        link = self._worker.client.link
        assert link is not None
        request = pb.ReserveRequest(
            root=self._worker.root,
            connection_id=link.id,
            kind=wire.KINDS["extent"],
            group="kv",
            tokens=TOKENS,
            bytes=sum(self._sizes),
        )
        answer = await link.stub.Reserve(request)
        self._reserved = answer.reservation
        return "ok" if answer.HasField("reservation") else str(answer.WhichOneof("answer"))

    async def scribble(self) -> str:
        """Write all over the staging."""
        assert self._staged is not None
        view = self._staged.staging.view
        view[:] = b"\xff" * len(view)
        return "ok"

    async def seal(self) -> str:
        """Seal."""
        link, staged = self._worker.client.link, self._staged
        assert link is not None
        assert staged is not None
        size = len(staged.view)
        source = pb.Segment(segment_id=staged.staging.segment_id, offset=staged.offset, bytes=size)
        request = pb.SealRequest(
            lease_id=self._reserved.lease_id,
            generation=self._reserved.generation,
            block_hashes=self._chains,
            token_ids_le=ids(TOKENS, SEED),
            checksums=self._checksums,
            source=source,
        )
        try:
            await link.stub.Seal(request)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "ok"

    async def acquire(self) -> str:
        """Acquire what there is."""
        match = await self._worker.match(ids(TOKENS + 1, SEED))
        assert match is not None
        self._lease = await self._worker.client.acquire(match)
        return "ok" if self._lease is not None else "miss"


async def main() -> None:
    """Do as told."""
    async with worker(sys.argv[1]) as one:
        writer = Writer(one)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while line := await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(await getattr(writer, line.strip())() + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
