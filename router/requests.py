"""The requests in flight: their ids, and how to end one from outside."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from bramley.common.errors import AlreadyExists
from bramley.common.ids import RequestId
from bramley.router.access import ANYBODY, Identity, may_end


class InFlight:
    """One request.

    Attributes:
        id: ours.
        owner: name of the token that it came with; empty without one.
        is_aborted: whether somebody asked for its end through Abort.
        aborted_s: when, on the monotonic clock; 0 if nobody did.
        task: what produces its answer; cancelled to end it.
    """

    def __init__(self, request: RequestId, owner: str) -> None:
        self.id = request
        self.owner = owner
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
    """Every request in flight, under our id, and under its caller's: each owner has its own."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._minted = 0
        self._count = 0
        self._by_name: dict[tuple[str, str], InFlight] = {}  # owner and id; ours have no owner
        self._idle = asyncio.Event()
        self._idle.set()
        self.ended_count = 0

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def enter(self, caller_id: str, owner: str = "") -> Generator[InFlight]:
        """Register a request for the length of the block.

        Yields:
            The request, with an id of ours.

        Raises:
            AlreadyExists: a request in flight has the caller's id.
        """
        if (owner, caller_id) in self._by_name:
            raise AlreadyExists(
                f"a request with the id {caller_id!r} is in flight",
                facts={"request_id": caller_id},
            )
        entry = InFlight(self._mint(), owner)
        names = {("", str(entry.id)), (owner, caller_id or entry.id)}
        self._by_name.update(dict.fromkeys(names, entry))
        self._count += 1
        self._idle.clear()
        try:
            yield entry
        finally:
            for name in names:
                del self._by_name[name]
            self._count -= 1
            self.ended_count += 1
            if not self._count:
                self._idle.set()

    def abort(self, request_id: str, identity: Identity = ANYBODY) -> bool:
        """End what somebody means by an id, ours or a caller's; an admin may mean others' ids.

        Returns:
            Whether there was any that it may end.
        """
        found = [
            entry for entry in self._meant(request_id, identity) if may_end(identity, entry.owner)
        ]
        for entry in found:
            entry.abort()
        return bool(found)

    def _meant(self, request_id: str, identity: Identity) -> list[InFlight]:
        for owner in (identity.name, ""):
            if entry := self._by_name.get((owner, request_id)):
                return [entry]
        if not identity.is_admin:
            return []
        return [entry for (_, known), entry in self._by_name.items() if known == request_id]

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def _mint(self) -> RequestId:
        while True:
            self._minted += 1
            minted = RequestId(f"r{self._epoch}-{self._minted}")
            if ("", minted) not in self._by_name:
                return minted
