"""One of an arm's turns: asks for the phases, keeps every request, and samples once they hold."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from bramley.bench.cluster import Failed
from bramley.bench.serve import metrics
from bramley.bench.serve.arithmetic import Unmeasurable
from bramley.bench.serve.arms import Server
from bramley.bench.serve.dialects import Clock
from bramley.bench.serve.record import Arm, Event, Request, Sample
from bramley.bench.serve.workload import Asked, Place, Workload

PATIENCE_S = 900.0  # for a stream's first text, whatever is before it
MakeAsked = Callable[[], Asked]


class Turn:
    """What a phase works with.

    Args:
        server: that is measured.
        arm: of the record.
        workload: of the run.
        now: the run's clock.
        turn: 0 or 1.
        sleep: waits so many seconds of that clock.

    Attributes:
        ready_s: how long the server took to start; None of one that ran before.
    """

    def __init__(
        self,
        server: Server,
        arm: Arm,
        workload: Workload,
        now: Clock,
        turn: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.server, self.arm, self.workload = server, arm, workload
        self.now, self.turn, self.sleep = now, turn, sleep
        self.ready_s: float | None = None
        self._samples: list[Sample] = []
        self._guard = threading.Lock()

    def place(self, phase: str, attempt: int) -> Place:
        """Say what is asked next."""
        return self.workload.place(phase, attempt, self.turn)

    def ask(self, asked: Asked, retries: int = 0) -> Request:
        """Ask and read to the end; an error is in what is returned, and kept as well."""
        request = self.server.ask(asked, self.now)
        request.retries = retries
        self.keep(request)
        return request

    def answered(self, asked: Asked) -> Request:
        """Ask and read to the end.

        Returns:
            The request, which has an answer.

        Raises:
            Failed: it has none.
        """
        return well(self.ask(asked))

    def keep(self, request: Request) -> None:
        """Take a request into the record."""
        with self._guard:
            self.arm.requests.append(request)

    def sample(self, name: str, value: float, *of: Request) -> None:
        """Note a value; it counts once the phase has ended well."""
        places = [self._place_of(request) for request in of]
        unit = metrics.metric(name).unit
        self._samples.append(
            Sample(metric=name, unit=unit, value=value, turn=self.turn, requests=places)
        )

    def measure(self, name: str, figure: Callable[[Request], float], request: Request) -> None:
        """Note a figure of a request, or why there is none."""
        try:
            self.sample(name, figure(request), request)
        except Unmeasurable as error:
            self.arm.not_applicable[name] = str(error)

    def _place_of(self, request: Request) -> int:
        same = (at for at, each in enumerate(self.arm.requests) if each is request)
        return next(same)

    def settle(self, *, well: bool) -> None:
        """End a phase: its samples count, or are forgotten."""
        if well:
            self.arm.samples += self._samples
        self._samples = []


class Stream:
    """A reader in a thread of its own: it asks, and where that ends asks the next.

    Args:
        turn: whose server is asked.
        make: the first request and, until it is left, each that follows an answer's end.
        again: whether one follows.
    """

    def __init__(self, turn: Turn, make: MakeAsked, *, again: bool = False) -> None:
        self._turn, self._make, self._again = turn, make, again
        self._left = threading.Event()
        self._came = threading.Event()
        self.requests: list[Request] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._once()
            while self._again and not self._left.is_set() and self.requests[-1].error is None:
                self._once()
        finally:
            self._came.set()

    def _once(self) -> None:
        request = self._turn.server.ask(self._make(), self._turn.now, self._see)
        self._turn.keep(request)
        self.requests.append(request)

    def _see(self, _: Event) -> bool:
        self._came.set()
        return not self._left.is_set()

    def until_text(self) -> None:
        """Wait for the first text, or for an end without any.

        Raises:
            Failed: neither comes.
        """
        if not self._came.wait(PATIENCE_S):
            raise Failed("a stream gave no text")

    def leave(self) -> None:
        """Have it read one more text, and leave."""
        self._left.set()

    def join(self) -> None:
        """Wait for its end.

        Raises:
            Failed: it does not end.
        """
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise Failed("a stream does not end")


def whole(request: Request) -> Request:
    """Pass on a request that was answered to its end, if with nothing.

    Returns:
        It.

    Raises:
        Failed: it was not.
    """
    if request.error is not None:
        raise Failed(f"request {request.index} of {request.phase}: {request.error}")
    return request


def well(request: Request) -> Request:
    """Pass on a request that has an answer with text in it: tokens alone have no first text.

    Returns:
        It.

    Raises:
        Failed: it has none.
    """
    if not whole(request).text:
        raise Failed(f"request {request.index} of {request.phase}: no text came")
    return request


def ended(streams: Sequence[Stream]) -> list[Request]:
    """Wait for all streams' ends.

    Returns:
        Their requests, each of which has an answer.

    Raises:
        Failed: one has none, or a stream ended before it had asked.
    """
    for stream in streams:
        stream.join()
        if not stream.requests:
            raise Failed("a stream ended without a record of what it asked")
    return [well(request) for stream in streams for request in stream.requests]


@contextmanager
def leaving(streams: Sequence[Stream]) -> Generator[None]:
    """Leave streams at the end of the block, however that ends.

    Yields:
        Nothing.
    """
    try:
        yield
    finally:
        for stream in streams:
            stream.leave()
        for stream in streams:
            stream.join()
