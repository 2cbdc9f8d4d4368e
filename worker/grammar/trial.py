"""Tries grammars in processes of their own first: some never end, and some end the process.

The library compiles what a few lines can make it do for hours, and recurses as deep as rules refer
to each other. Nothing stops a thread of it. So each grammar is compiled twice: here with limits,
and then, if that came to an end, whether good or bad, by whoever wants it.
"""

import selectors
import subprocess
import sys
import threading
from typing import Final

from bramley.common.errors import EngineFault, InvalidRequest, Overloaded
from bramley.worker.grammar.trier import DONE, SIZE_BYTES

START_S: Final = 30.0
PATIENCE: Final = 5.0  # times the limit: how long one may take on a busy machine


class Trial:
    """One grammar's; whoever has no more use for it gives it up, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trier: _Trier | None = None
        self._is_over = False  # given up, or done

    def give_up(self) -> bool:
        """End it at once, or before it begins.

        Returns:
            Whether it was not over: who waits for it hears that nobody wants it.
        """
        with self._lock:
            was_over, self._is_over = self._is_over, True
            if self._trier is not None and not was_over:
                self._trier.kill()
        return not was_over

    def run(self, trier: "_Trier", lark: str, within_s: float) -> bool | None:
        """Have a process try a grammar.

        Returns:
            Whether the process lives, and None where it says nothing in time.

        Raises:
            EngineFault: it was given up.
        """
        with self._lock:
            self._trier = trier
            is_given_up = self._is_over
        survives = None if is_given_up else trier.survives(lark, within_s)
        with self._lock:
            self._trier = None
            is_given_up, self._is_over = self._is_over, True
        if is_given_up:
            raise EngineFault("nobody waits for this grammar any more")
        return survives


class Trials:
    """Processes that try grammars; for any number of threads, each of which takes one.

    Args:
        limit_s: of the processor's time for one grammar.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._idle: list[_Trier] = []
        self._busy: set[_Trier] = set()
        self._is_closed = False

    def ready(self) -> None:
        """Have a process wait, which takes a while to start."""
        self._put(self._take())

    def check(self, lark: str, field: str, trial: Trial) -> None:
        """Try a grammar.

        Args:
            lark: the grammar.
            field: named where it is refused.
            trial: new; may be given up meanwhile.

        Raises:
            InvalidRequest: it ended the process that tried it, for it took too long or too much.
            Overloaded: the process has had no time for it.
            EngineFault: no process can be started, or the trial was given up.
        """
        trier, survives = self._take(), None
        try:
            survives = trial.run(trier, lark, self._limit_s * PATIENCE)
        finally:
            if survives:
                self._put(trier)
            else:
                self._end(trier)
                self.ready()  # or the next one would wait for it
        if survives is None:
            raise Overloaded("too many grammars to compile", retry_after_s=1.0)
        if not survives:
            raise InvalidRequest(
                field, f"takes more than {self._limit_s:g} s to compile, or is nested too deeply"
            )

    def close(self) -> None:
        """End all processes, whatever they do."""
        with self._lock:
            self._is_closed = True
            idle, busy = list(self._idle), list(self._busy)
        for trier in idle:
            self._end(trier)
        for trier in busy:
            trier.kill()  # whoever waits for it does the rest

    def _take(self) -> "_Trier":
        with self._lock:
            if self._is_closed:
                raise EngineFault("no grammar is compiled any more")
            trier = self._idle.pop() if self._idle else _Trier(self._limit_s)
            self._busy.add(trier)
        if not trier.has_started():
            self._end(trier)
            raise EngineFault("the process that tries grammars does not start")
        return trier

    def _put(self, trier: "_Trier") -> None:
        with self._lock:
            self._busy.discard(trier)
            self._idle.append(trier)
            is_closed = self._is_closed
        if is_closed:
            self._end(trier)

    def _end(self, trier: "_Trier") -> None:
        with self._lock:
            self._busy.discard(trier)
            if trier in self._idle:
                self._idle.remove(trier)
        trier.end()


class _Trier:
    """One process."""

    def __init__(self, limit_s: float) -> None:
        module = "bramley.worker.grammar.trier"
        self._process = subprocess.Popen(  # noqa: S603 -- nothing of it is a caller's
            [sys.executable, "-P", "-m", module, str(limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self._has_started = False

    def has_started(self) -> bool:
        """Wait until it takes grammars."""
        self._has_started = self._has_started or self._is_done(START_S) is True
        return self._has_started

    def survives(self, lark: str, within_s: float) -> bool | None:
        """Tell whether a grammar has an end, good or bad; None where that is not known in time."""
        assert self._process.stdin is not None
        text = lark.encode()
        try:
            left = memoryview(len(text).to_bytes(SIZE_BYTES, "big") + text)
            while left:
                left = left[self._process.stdin.write(left) :]
        except BrokenPipeError:
            return False
        return self._is_done(within_s)

    def kill(self) -> None:
        """Have it end."""
        self._process.kill()

    def end(self) -> None:
        """End it, and leave nothing of it; nobody may be waiting for it."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _is_done(self, within_s: float) -> bool | None:
        pipe = self._process.stdout
        assert pipe is not None
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            return pipe.read(1) == DONE if selector.select(within_s) else None
