"""One stream's messages between the task that makes them and the one that sends them.

One producer, one consumer. The first token is fetched at once; Deltas that nobody has fetched
yet, since the last one is still being sent, are joined. What waits is bounded in bytes.
"""

import asyncio
from collections import deque

from bramley.common.errors import SlowReader
from bramley.protos.v1 import generation_pb2
from bramley.router import coalesce

Event = (
    generation_pb2.Accepted
    | generation_pb2.Started
    | generation_pb2.Progress
    | generation_pb2.Delta
    | generation_pb2.Finished
)


class Outbox:
    """A queue that the producer never waits for.

    Args:
        tokens_max: tokens in one Delta at most, where it is joined of several; 0 for any number.
        bytes_max: of events that wait.
    """

    def __init__(self, tokens_max: int, bytes_max: int) -> None:
        self._tokens_max = tokens_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: deque[Event] = deque()
        self._last: dict[int, generation_pb2.Delta] = {}  # of each index, while it waits
        self._arrived = asyncio.Event()
        self._is_closed = False

    def put(self, event: Event) -> None:
        """Add an event, or join a Delta to the last one of its index.

        Raises:
            SlowReader: too much waits already.
        """
        self._bytes += event.ByteSize()
        if self._bytes > self._bytes_max:
            raise SlowReader(f"{self._bytes} bytes of the answer wait to be read")
        if isinstance(event, generation_pb2.Delta):
            last = self._last.get(event.index)
            if last is not None and coalesce.can_join(last, event, self._tokens_max):
                coalesce.join(last, event)
                return
            self._last[event.index] = event
        self._events.append(event)
        self._arrived.set()

    def close(self) -> None:
        """Say that nothing more comes."""
        self._is_closed = True
        self._arrived.set()

    async def get(self) -> Event | None:
        """Wait for the next event; None once all were fetched and nothing more comes."""
        while not self._events:
            if self._is_closed:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        self._bytes -= event.ByteSize()  # less than was added, where it was joined of several
        if not self._events:
            self._bytes = 0
        if isinstance(event, generation_pb2.Delta) and self._last.get(event.index) is event:
            del self._last[event.index]
        return event
