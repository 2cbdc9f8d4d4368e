"""What came and went, numbered, for those who keep a view of it: the last ones are kept."""

import asyncio
from collections import deque
from typing import Literal

import msgspec

from bramley.cachestore.objects import StoredObject

KEPT = 4096

Tier = Literal["ram", "ssd"]


class Event(msgspec.Struct, frozen=True):
    """One object's change.

    Attributes:
        tier: where it came to; None where it is gone from both.
    """

    sequence: int
    stored: StoredObject
    tier: Tier | None


class Events:
    """The log."""

    def __init__(self) -> None:
        self.last = 0
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._more = asyncio.Event()

    def add(self, stored: StoredObject, tier: Tier | None) -> None:
        """Note a change."""
        self.last += 1
        self._kept.append(Event(self.last, stored, tier))
        self._more.set()
        self._more = asyncio.Event()

    def after(self, sequence: int) -> list[Event] | None:
        """What happened since; None if that is not known any more."""
        if sequence > self.last or self.last - sequence > len(self._kept):
            return None
        return [event for event in self._kept if event.sequence > sequence]

    async def more(self) -> None:
        """Wait for the next change."""
        await self._more.wait()
