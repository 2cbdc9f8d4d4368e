"""The requests in flight: their ids, and how to end one from outside."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from bramley.common.errors import AlreadyExists
from bramley.common.ids import RequestId


class InFlight:
    """One request.

    Attributes:
        id: ours.
        is_aborted: whether somebody asked for its end through Abort.
        aborted_s: when, on the monotonic clock; 0 if nobody did.
        task: what produces its answer; cancelled to end it.
    """

    def __init__(self, request: RequestId) -> None:
        self.id = request
        self.is_aborted = False
        self.aborted_s = 0.0
        self.task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """End it; its stream tells its client."""
        self.is_aborted = True
        self.aborted_s = monotonic()
        if self.task is not None:
            self.task.cancel()


class Registry:
    """Every request in flight, under our id and its caller's."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._minted = 0
        self._count = 0
        self._by_id: dict[str, InFlight] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.ended_count = 0

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def enter(self, caller_id: str) -> Generator[InFlight]:
        """Register a request for the length of the block.

        Yields:
            The request, with an id of ours.

        Raises:
            AlreadyExists: a request in flight has the caller's id.
        """
        if caller_id in self._by_id:
            raise AlreadyExists(
                f"a request with the id {caller_id!r} is in flight",
                facts={"request_id": caller_id},
            )
        entry = InFlight(self._mint())
        names = {entry.id, caller_id or entry.id}
        self._by_id.update(dict.fromkeys(names, entry))
        self._count += 1
        self._idle.clear()
        try:
            yield entry
        finally:
            for name in names:
                del self._by_id[name]
            self._count -= 1
            self.ended_count += 1
            if not self._count:
                self._idle.set()

    def abort(self, request_id: str) -> bool:
        """End the request with that id, ours or its caller's.

        Returns:
            Whether there was one.
        """
        entry = self._by_id.get(request_id)
        if entry is None:
            return False
        entry.abort()
        return True

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def _mint(self) -> RequestId:
        while True:
            self._minted += 1
            minted = RequestId(f"r{self._epoch}-{self._minted}")
            if minted not in self._by_id:
                return minted
