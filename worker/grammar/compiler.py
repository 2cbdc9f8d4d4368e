"""Compiles grammars on threads of its own: each once, and within a time."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from bramley.common.errors import EngineFault, InvalidRequest, Overloaded
from bramley.protos.v1 import types_pb2
from bramley.worker.grammar.constraint import JSON, OPTIONS, own_lines, to_lark
from bramley.worker.grammar.faults import grammar_fault
from bramley.worker.grammar.trial import Trial, Trials
from bramley.worker.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

KEPT: Final = 256  # compiled grammars
UNDONE_MAX: Final = 16  # being compiled, or waiting for that
TIME_LIMIT_S: Final = 2.0
PATIENCE: Final = 2.0  # times the limit: how long one is waited for on a busy machine
_OWN: Final = frozenset({"constraint.grammar"})  # the caller wrote the grammar itself
_TOO_MANY: Final = "too many grammars to compile"

Write = Callable[[], str]  # a grammar in Lark syntax; refuses what no grammar can hold to


class Compiled:
    """A grammar, ready for any number of answers.

    Args:
        matcher: at the grammar's start; nobody else's.
        numbers_end: whether numbers in it grow no more once they have digits enough.
    """

    def __init__(self, matcher: "LLMatcher", *, numbers_end: bool = False) -> None:
        self._matcher = matcher
        self.numbers_end = numbers_end

    def matcher(self) -> "LLMatcher":
        """Start an answer."""
        return self._matcher.deep_copy()


@dataclass(slots=True)
class _Making:
    """A grammar that is known, or will be: who waits for it, and what ends it if nobody does."""

    future: Future[Compiled]
    trial: Trial
    waiting: int = 0


class Compiler:
    """Makes grammars of constraints; used on one event loop.

    Args:
        vocabulary: made ready by the first call, whose time is not limited.
        time_limit_s: of the processor, for one; what takes more is refused.
    """

    def __init__(self, vocabulary: Vocabulary, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.vocabulary = vocabulary
        self._patience_s = time_limit_s * PATIENCE
        self._trials = Trials(time_limit_s)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")
        self._ready: Future[object] | None = None
        self._known: OrderedDict[bytes, _Making] = OrderedDict()

    async def constraint(self, constraint: types_pb2.Constraint) -> Compiled:
        """Compile what a request's content has to be.

        Returns:
            As ``grammar`` does.

        Raises:
            InvalidRequest: names the field; of a schema, the keyword too.
            Overloaded: as ``grammar`` does.
        """
        kind = constraint.WhichOneof("constraint")
        key = constraint.SerializeToString(deterministic=True)
        write = partial(to_lark, constraint, drops_blank=self.vocabulary.drops_blank)
        return await self.grammar(f"constraint.{kind}", key, write, numbers_end=kind in JSON)

    async def grammar(
        self, field: str, key: bytes, write: Write, *, numbers_end: bool = False
    ) -> Compiled:
        """Compile a grammar. One that nobody waits for any more is given up at once.

        Args:
            field: named where it is refused.
            key: tells it from others of the field.
            write: called on another thread, if it is not known.
            numbers_end: as of ``Compiled``.

        Returns:
            Perhaps one that others have.

        Raises:
            InvalidRequest: names the field, or one that ``write`` names.
            Overloaded: others keep the processor busy, or are before it, for too long.
        """
        self._ready = self._ready or self._threads.submit(self._prepare)
        await asyncio.shield(asyncio.wrap_future(self._ready))
        name = sha256(f"{field}\0".encode() + key).digest()  # keys may be of megabytes
        making = self._making(name, partial(self._make, write, field, numbers_end=numbers_end))
        made = asyncio.wrap_future(making.future)
        made.add_done_callback(_hear)
        making.waiting += 1
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.shield(made)
        except TimeoutError:
            raise Overloaded(_TOO_MANY, retry_after_s=1.0) from None
        finally:
            making.waiting -= 1
            if not (making.waiting or making.future.done()):
                self._give_up(name, making)

    def _making(self, name: bytes, make_one: Callable[[Trial], Compiled]) -> _Making:
        making = self._known.get(name)
        if making is None or _is_lost(making.future):
            if sum(not one.future.done() for one in self._known.values()) >= UNDONE_MAX:
                raise Overloaded(_TOO_MANY, retry_after_s=1.0)
            trial = Trial()
            making = _Making(self._threads.submit(make_one, trial), trial)
            self._known[name] = making
        self._known.move_to_end(name)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return making

    def _give_up(self, name: bytes, making: _Making) -> None:
        is_given_up = making.future.cancel() or making.trial.give_up()
        if is_given_up and self._known.get(name) is making:
            del self._known[name]

    def close(self) -> None:
        """End the threads; what is being compiled is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._trials.close()

    def _prepare(self) -> None:
        self.vocabulary.build()
        with contextlib.suppress(EngineFault):  # who needs one is told
            self._trials.ready()

    def _make(self, write: Write, field: str, trial: Trial, *, numbers_end: bool) -> Compiled:
        lark = write()
        self._trials.check(f"{lark}\n{OPTIONS}", field, trial)
        return make(self.vocabulary, lark, field, numbers_end=numbers_end)


def _hear(made: asyncio.Future[Compiled]) -> None:
    """Take note of a failure, which nobody else may do who waited for it no longer."""
    if not made.cancelled():
        made.exception()


def _is_lost(future: Future[Compiled]) -> bool:
    """Whether it failed, and not for what the grammar is."""
    return future.done() and isinstance(future.exception(), (EngineFault, Overloaded))


def make(
    vocabulary: Vocabulary, lark: str, field: str = "constraint", *, numbers_end: bool = False
) -> Compiled:
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
        own = own_lines(lark, drops_blank=vocabulary.drops_blank) if field in _OWN else range(0)
        problem = grammar_fault(matcher.get_error(), own)
        raise InvalidRequest(field, f"cannot be compiled: {problem}")
    if matcher.is_stopped() and not matcher.is_accepting():
        raise InvalidRequest(field, "nothing satisfies it")
    return Compiled(matcher, numbers_end=numbers_end)
