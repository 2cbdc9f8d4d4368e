"""Compiles grammars on threads of its own: each once, and within a time."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from bramley.common.errors import EngineFault, InvalidRequest, Overloaded
from bramley.protos.v1 import types_pb2
from bramley.worker.grammar.constraint import OPTIONS, to_lark
from bramley.worker.grammar.trial import Trials
from bramley.worker.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

KEPT: Final = 256  # compiled grammars
UNDONE_MAX: Final = 16  # being compiled, or waiting for that
TIME_LIMIT_S: Final = 2.0
_TOO_MANY: Final = "too many grammars to compile"

Write = Callable[[], str]  # a grammar in Lark syntax; refuses what no grammar can hold to


class Compiled:
    """A grammar, ready for any number of answers.

    Args:
        matcher: at the grammar's start; nobody else's.
    """

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher

    def matcher(self) -> "LLMatcher":
        """Start an answer."""
        return self._matcher.deep_copy()


class Compiler:
    """Makes grammars of constraints; used on one event loop.

    Args:
        vocabulary: made ready by the first call, whose time is not limited.
        time_limit_s: of a compilation. One that takes longer is refused; where it has an end,
            who asks for it once more finds it then.
    """

    def __init__(self, vocabulary: Vocabulary, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.vocabulary = vocabulary
        self._time_limit_s = time_limit_s
        self._trials = Trials(time_limit_s)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")
        self._ready: Future[object] | None = None
        self._known: OrderedDict[bytes, Future[Compiled]] = OrderedDict()

    async def constraint(self, constraint: types_pb2.Constraint) -> Compiled:
        """Compile what a request's content has to be.

        Returns:
            As ``grammar`` does.

        Raises:
            InvalidRequest: names the field; of a schema, the keyword too.
            Overloaded: as ``grammar`` does.
        """
        field = f"constraint.{constraint.WhichOneof('constraint')}"
        key = constraint.SerializeToString(deterministic=True)
        return await self.grammar(field, key, partial(to_lark, constraint))

    async def grammar(self, field: str, key: bytes, write: Write) -> Compiled:
        """Compile a grammar.

        Args:
            field: named where it is refused.
            key: tells it from others of the field.
            write: called on another thread, if it is not known.

        Returns:
            Perhaps one that others have.

        Raises:
            InvalidRequest: names the field, or one that ``write`` names.
            Overloaded: others are being compiled all the time that this one may take.
        """
        self._ready = self._ready or self._threads.submit(self._prepare)
        await asyncio.shield(asyncio.wrap_future(self._ready))
        future = self._future(field, key, write)
        made = asyncio.wrap_future(future)
        made.add_done_callback(_hear)
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await asyncio.shield(made)
        except TimeoutError:
            if not (future.running() or future.done()):
                raise Overloaded(_TOO_MANY, retry_after_s=1.0) from None
            problem = f"takes more than {self._time_limit_s:g} s to compile"
            raise InvalidRequest(field, problem) from None

    def _future(self, field: str, key: bytes, write: Write) -> Future[Compiled]:
        name = sha256(f"{field}\0".encode() + key).digest()  # keys may be of megabytes
        future = self._known.get(name)
        if future is None or _is_lost(future):
            if sum(not one.done() for one in self._known.values()) >= UNDONE_MAX:
                raise Overloaded(_TOO_MANY, retry_after_s=1.0)
            future = self._threads.submit(self._make, write, field)
            self._known[name] = future
        self._known.move_to_end(name)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return future

    def close(self) -> None:
        """End the threads; what is being compiled is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._trials.close()

    def _prepare(self) -> None:
        self.vocabulary.build()
        with contextlib.suppress(EngineFault):  # who needs one is told
            self._trials.ready()

    def _make(self, write: Write, field: str) -> Compiled:
        lark = write()
        self._trials.check(f"{lark}\n{OPTIONS}", field)
        return make(self.vocabulary, lark, field)


def _hear(made: asyncio.Future[Compiled]) -> None:
    """Take note of a failure, which nobody else may do who waited for it no longer."""
    if not made.cancelled():
        made.exception()


def _is_lost(future: Future[Compiled]) -> bool:
    """Whether it failed, and not for what the grammar is."""
    return future.done() and isinstance(future.exception(), EngineFault)


def make(vocabulary: Vocabulary, lark: str, field: str = "constraint") -> Compiled:
    """Compile a grammar in Lark syntax here and now.

    Returns:
        A grammar of which something can come.

    Raises:
        InvalidRequest: names the field.
    """
    from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 -- as in vocabulary.py

    grammar = LLMatcher.grammar_from_lark(f"{lark}\n{OPTIONS}")
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(vocabulary.build(), grammar, log_level=0, limits=limits)
    matcher.compute_bitmask()  # the first takes longest, and all answers start with it
    if matcher.is_error():
        problem = matcher.get_error().partition("\n")[0]
        raise InvalidRequest(field, f"cannot be compiled: {problem}")
    if matcher.is_stopped() and not matcher.is_accepting():
        raise InvalidRequest(field, "nothing satisfies it")
    return Compiled(matcher)
