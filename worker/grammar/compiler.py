"""Compiles constraints on threads of its own: each once, and within a time."""

import asyncio
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from llguidance import LLMatcher, LLParserLimits

from bramley.common.errors import InvalidRequest, Overloaded
from bramley.protos.v1 import types_pb2
from bramley.worker.grammar.constraint import OPTIONS, to_lark
from bramley.worker.grammar.vocabulary import Vocabulary

KEPT: Final = 256  # compiled grammars
TIME_LIMIT_S: Final = 2.0


class Compiled:
    """A grammar, ready for any number of answers.

    Args:
        matcher: at the grammar's start; nobody else's.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def matcher(self) -> LLMatcher:
        """Start an answer."""
        return self._matcher.deep_copy()


class Compiler:
    """Makes grammars of constraints; used on one event loop.

    Args:
        vocabulary: made ready by the first call, whose time is not limited.
        time_limit_s: of a compilation. One that takes longer is refused, and goes on until it
            is done: who asks for it once more finds it then.
    """

    def __init__(self, vocabulary: Vocabulary, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.vocabulary = vocabulary
        self._time_limit_s = time_limit_s
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")
        self._ready: Future[object] | None = None
        self._known: OrderedDict[bytes | str, Future[Compiled]] = OrderedDict()

    async def compile(
        self, constraint: types_pb2.Constraint | str, field: str = "constraint"
    ) -> Compiled:
        """Compile a constraint, or a grammar of ours in Lark syntax.

        Args:
            constraint: what an answer is to be.
            field: named where a grammar of ours is refused, as ``tools``.

        Returns:
            Perhaps one that others have.

        Raises:
            InvalidRequest: names the field; of a schema, the keyword too.
            Overloaded: others are being compiled all the time that this one may take.
        """
        self._ready = self._ready or self._threads.submit(self.vocabulary.build)
        await asyncio.shield(asyncio.wrap_future(self._ready))
        is_ours = isinstance(constraint, str)
        key = constraint if is_ours else constraint.SerializeToString(deterministic=True)
        future = self._known.get(key)
        if future is None:
            future = self._threads.submit(make, self.vocabulary, constraint, field)
            self._known[key] = future
        self._known.move_to_end(key)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            if not (future.running() or future.done()):
                self._known.pop(key, None)
                future.cancel()
                raise Overloaded("too many grammars to compile", retry_after_s=1.0) from None
            problem = f"takes more than {self._time_limit_s:g} s to compile"
            raise InvalidRequest(field, problem) from None

    def close(self) -> None:
        """End the threads; what is being compiled is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def make(
    vocabulary: Vocabulary, constraint: types_pb2.Constraint | str, field: str = "constraint"
) -> Compiled:
    """Compile a constraint here and now.

    Returns:
        A grammar of which something can come.

    Raises:
        InvalidRequest: names the field; of a schema, the keyword too.
    """
    lark = constraint
    if not isinstance(constraint, str):
        lark = to_lark(constraint)
        field = f"constraint.{constraint.WhichOneof('constraint')}"
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
