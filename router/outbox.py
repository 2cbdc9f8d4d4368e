"""One stream's messages between the task that makes them and the one that sends them.

One producer, one consumer. The first token is fetched at once; Deltas that nobody has fetched
yet, since the last one is still being sent, are joined. What waits is bounded in bytes.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

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


@dataclass(slots=True)
class _Waiting:
    event: Event
    nbytes: int  # as they came, where it was joined of several


class Outbox:
    """A queue that the producer never waits for.

    Args:
        tokens_max: tokens in one Delta at most, where it is joined of several; 0 for any number.
        bytes_max: of events that wait, beside the newest one: that may be of any size.
    """

    def __init__(self, tokens_max: int, bytes_max: int) -> None:
        self._tokens_max = tokens_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: deque[_Waiting] = deque()
        self._last: dict[int, _Waiting] = {}  # Delta of each index
        self._arrived = asyncio.Event()
        self._is_closed = False

    def put(self, event: Event) -> None:
        """Add an event, or join a Delta to the last one of its index.

        Raises:
            SlowReader: too much waits already.
        """
        if self._bytes > self._bytes_max:
            raise SlowReader(f"{self._bytes} bytes of the answer wait to be read")
        nbytes = event.ByteSize()
        self._bytes += nbytes
        is_delta = isinstance(event, generation_pb2.Delta)
        if is_delta and self._is_joined(event, nbytes):
            return
        new = _Waiting(event, nbytes)
        if is_delta:
            self._last[event.index] = new
        self._events.append(new)
        self._arrived.set()

    def _is_joined(self, delta: generation_pb2.Delta, nbytes: int) -> bool:
        last = self._last.get(delta.index)
        if last is None or not isinstance(last.event, generation_pb2.Delta):
            return False
        if not coalesce.can_join(last.event, delta, self._tokens_max):
            return False
        coalesce.join(last.event, delta)
        last.nbytes += nbytes
        return True

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
        first = self._events.popleft()
        self._bytes -= first.nbytes
        event = first.event
        if isinstance(event, generation_pb2.Delta) and self._last.get(event.index) is first:
            del self._last[event.index]
        return event
