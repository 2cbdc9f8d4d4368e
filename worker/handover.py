"""Brings what the engine says to the event loop, which is not woken for what can wait there.

Each waking costs both threads: they take turns at Python, and on a small machine at its cores.
While streams rest (worker/telling.py), tokens that would only gather on the loop stay here.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence

from bramley.worker.engine.outputs import Output, Token
from bramley.worker.telling import Telling


class Handover:
    """From one engine to one loop.

    Args:
        loop: that is woken.
        deliver: told on the loop each step's outputs, in order.
        telling: rests, and has what was given meanwhile taken after that.

    Attributes:
        patient: ids of sequences whose next token can wait, unless it is their last.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        deliver: Callable[[Sequence[Output]], None],
        telling: Telling,
    ) -> None:
        self.patient: set[str] = set()
        self._loop = loop
        self._deliver = deliver
        self._telling = telling
        telling.collect = self.take
        self._given: deque[Sequence[Output]] = deque()

    def give(self, outputs: Sequence[Output]) -> None:
        """Hand a step's outputs over, on the engine's thread."""
        # Given first and asked after that: who stops resting takes what is given then.
        self._given.append(outputs)
        if not (self._telling.rests and all(map(self._can_wait, outputs))):
            self._loop.call_soon_threadsafe(self.take)

    def take(self) -> None:
        """Deliver what was given, on the loop."""
        while self._given:
            self._deliver(self._given.popleft())

    def _can_wait(self, output: Output) -> bool:
        return (
            isinstance(output, Token)
            and output.finish is None
            and output.request_id in self.patient
        )
