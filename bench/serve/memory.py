"""Watches what a server's processes use, memory and CPU, by a thread of its own."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil

EVERY_S = 1.0
SHARED_EVERY = (
    10  # looks: what is shared takes tens of milliseconds of the machine that is measured
)


@dataclass(frozen=True, slots=True)
class Used:
    """What several processes use together; memory in bytes.

    Attributes:
        pss: with pages that several of them share counted once; None where nobody tells.
        model: what the server itself says that its model takes; None where it says nothing.
        cpu_s: that each process has used, by its pid and when it began.
    """

    rss: int = 0
    pss: int | None = None
    model: int | None = None
    cpu_s: dict[tuple[int, float], float] = field(default_factory=dict[tuple[int, float], float])

    def most(self, other: "Used") -> "Used":
        """The larger of each; of CPU, what the other says, who looked later."""
        return Used(
            max(self.rss, other.rss),
            _most(self.pss, other.pss),
            _most(self.model, other.model),
            {**self.cpu_s, **other.cpu_s},
        )


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def used(pids: Sequence[int], *, shared: bool = True) -> Used:
    """Sum up what processes and all below them use now; those that have ended count nothing.

    Args:
        pids: of the processes.
        shared: whether to look for ``pss``.

    Returns:
        The sums.
    """
    rss, pss, cpu_s = 0, None, dict[tuple[int, float], float]()
    for process in _with_children(pids):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s[process.pid, process.create_time()] = times.user + times.system
            rss += process.memory_info().rss
            own = getattr(process.memory_full_info(), "pss", None) if shared else None
            pss = pss if own is None else (pss or 0) + own
    return Used(rss, pss, cpu_s=cpu_s)


def _with_children(pids: Sequence[int]) -> Iterator[psutil.Process]:
    seen: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                if each.pid not in seen:
                    seen.add(each.pid)
                    yield each


class MemoryWatch:
    """Keeps the most that was used since it began, and since the last mark.

    Args:
        look: tells what is used now, what is shared only if it is asked for.
        every_s: between looks.
    """

    def __init__(self, look: Callable[[bool], Used], every_s: float = EVERY_S) -> None:
        self._look, self._every_s = look, every_s
        self._peak = self._since = Used()
        self._over = threading.Event()
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        looks = 0
        while not self._over.wait(self._every_s):
            looks += 1
            self._note(shared=looks % SHARED_EVERY == 0)

    def _note(self, *, shared: bool) -> None:
        now = self._look(shared)
        with self._guard:
            self._peak, self._since = self._peak.most(now), self._since.most(now)

    def mark(self) -> Used:
        """Tell the most since the last mark, this moment included, and begin anew."""
        self._note(shared=True)
        with self._guard:
            since, self._since = self._since, Used()
        return since

    def end(self) -> Used:
        """Stop watching, and tell the most of all."""
        self._over.set()
        self._thread.join()
        return self._peak
