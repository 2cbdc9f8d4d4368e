"""Which ids may come next in one answer: reasoning first, then a grammar. No clock, no device."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from bramley.common.errors import EngineFault
from bramley.worker.grammar.numbers import Numbers
from bramley.worker.grammar.vocabulary import WHITE, Vocabulary
from bramley.worker.grammar.words import ALL, Words, allow, forbid

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from bramley.worker.grammar.compiler import Compiled
    from bramley.worker.reading.events import AnswerReader
    from bramley.worker.text.detokenizer import Detokenizer

GAP_TOKENS: Final = 4  # of white space at most between the end of reasoning and the grammar


@dataclass(slots=True, kw_only=True)
class Reasoning:
    """How one answer reasons, and how far it may.

    The reader is told the answer's text as it comes and says whether it is inside reasoning:
    what the guide takes for reasoning is what the client is told as reasoning.

    Attributes:
        detokenizer: of this answer, and of nobody else.
        reader: likewise.
        is_open: the prompt has opened reasoning.
        start: the marker that opens it; however it is cut into tokens, it does.
        end: the marker that ends it.
        closing_ids: what is written for the model once the budget is used up: they end the
            reasoning and begin the content.
        budget: tokens of reasoning; None for as many as it likes.
        start_ids: ``start`` as tokens; with a grammar the answer may begin with them.
        first_ids: what stands before content where no reasoning was opened; often nothing.
        lead_ids: what stands between reasoning's end and content; often nothing. Where there is
            any of either, no white space may follow it: it would be content.
        barred_ids: not drawn while reasoning goes on and a grammar is to follow, as what begins
            a call of a tool.
        is_off: the request wants none: where there is a grammar the answer begins with that, and
            not with the marker that opens reasoning, be it one token and the grammar's as well.
    """

    detokenizer: "Detokenizer"
    reader: "AnswerReader"
    is_open: bool
    start: bytes
    end: bytes
    closing_ids: Sequence[int]
    budget: int | None = None
    start_ids: Sequence[int] = ()
    first_ids: Sequence[int] = ()
    lead_ids: Sequence[int] = ()
    barred_ids: Collection[int] = ()
    is_off: bool = False

    def take(self, token: int) -> bool:
        """Tell the reader of a token; says whether the answer is inside reasoning now."""
        self.reader.push(self.detokenizer.push([token]))
        return self.reader.is_reasoning


class _Place(Enum):
    BEFORE = auto()  # the answer's start: reasoning may be opened, or the grammar begins
    INSIDE = auto()  # reasoning
    GAP = auto()  # after it: white space, or the grammar begins
    CONTENT = auto()  # the grammar's, or free


class Guide:
    """Follows one answer, token by token, on the engine's thread.

    It has a grammar, or a budget of reasoning, or both.

    Args:
        vocabulary: of the model.
        end_ids: what ends this answer: end tokens and stop ids. They may come where the grammar
            may end, or writes an end token itself, and nowhere else; without a grammar anywhere.
        compiled: the grammar of the content; None for none.
        reasoning: None for a model that does not reason.

    Attributes:
        reasoning_tokens: taken inside reasoning; neither what opens it nor what is forced.
        error: set once it cannot go on: the answer is to be ended with it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        end_ids: Iterable[int],
        compiled: "Compiled | None" = None,
        reasoning: Reasoning | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.reasoning_tokens = 0
        self.error: EngineFault | None = None
        self._end_ids = frozenset(end_ids)
        self._ends = self._end_ids | vocabulary.end_ids
        self._grammar = compiled.matcher() if compiled else None
        self._numbers = Numbers(vocabulary) if compiled and compiled.numbers_end else None
        self._reasoning = reasoning
        self._forced: deque[int] = deque()
        self._head = b""  # of the answer's bytes, as long as they may open reasoning
        self._tail = b""  # of the reasoning's bytes: what may be the start of its end marker
        self._gap_left = GAP_TOKENS
        self._paths: list[Sequence[int]] = []  # that the answer may begin with, and their rest
        self._is_direct = False  # what has come of the answer is the grammar's as well
        self._barred_first: Sequence[int] = ()  # of the grammar's first token
        self._place = _Place.CONTENT
        if reasoning is not None:
            self._start(reasoning)

    @property
    def is_free(self) -> bool:
        """Whether any id may come next."""
        return self.error is not None or (self._grammar is None and not self._forced)

    @property
    def binds_soon(self) -> bool:
        """Whether the token after the next may be bound: it is not to be drawn before that."""
        if self.error is not None or self._grammar is not None or self._forced:
            return self.error is None
        budget = None if self._reasoning is None else self._reasoning.budget
        return budget is not None and self.reasoning_tokens + 1 >= budget

    @property
    def matcher(self) -> "LLMatcher | None":
        """What ``mask`` wants to be told the mask of; None where it needs none."""
        if self.is_free or self._forced or self._place is _Place.INSIDE:
            return None
        return self._grammar if self._place is not _Place.BEFORE or self._is_direct else None

    def take(self, token: int) -> bool:
        """Follow the answer by the next token.

        Returns:
            Whether nothing may follow: the answer is whole, with or without an end token.
        """
        if self.error is not None or token in self._end_ids:
            return self.error is None
        if self._reasoning is not None and self._grammar is None:
            self._watch(self._reasoning, token)
        elif self._forced:
            self._take_forced(token)
        elif self._reasoning is not None and self._place is _Place.BEFORE:
            self._begin(self._reasoning, token)
        elif self._reasoning is not None and self._place is _Place.INSIDE:
            self._reason(self._reasoning, token)
        elif self._place is _Place.GAP and self._gap_left and token in self.vocabulary.spaces:
            self._gap_left -= 1
        elif self._grammar is not None:
            self._go_on(self._grammar, token)
        may_open = self._place is _Place.BEFORE and (self._paths or not self._is_direct)
        is_content = self._place in {_Place.BEFORE, _Place.CONTENT} and not may_open
        return is_content and self._is_stopped()

    def mask(self, into: Words) -> None:
        """Say which ids may come next.

        Args:
            into: one row of a step's masks, as wide as the vocabulary's at least: the mask of
                ``matcher``, if there is one, and all ones if not. It is changed.
        """
        if self._forced:
            into[:] = 0
            allow(into, self._forced[0])
        elif self._reasoning is not None and self._place is _Place.INSIDE:
            # Without its content the answer would not be what was asked for.
            crossing = self.vocabulary.crossing(self._reasoning.end, len(self._tail))
            for number in (*self._end_ids, *self._reasoning.barred_ids, *crossing):
                forbid(into, number)
        else:
            self._mask_content(into, self.matcher)
        if self.error is None and not into.any():
            self._fail("no token may follow, and the answer may not end")
        if self.error is not None:
            into[:] = ALL

    def _mask_content(self, into: Words, matcher: "LLMatcher | None") -> None:
        if matcher is None:
            into[:] = 0
        elif matcher.is_error():
            self._fail(_first_line(matcher.get_error()))
            return
        else:
            into[self.vocabulary.words :] = 0
            self._mask_ends(matcher, into)
            if self._numbers is not None:
                self._numbers.bound(matcher, into)
            self._bar_first(into)
        if self._place is _Place.GAP and self._gap_left:
            into[: self.vocabulary.words] |= self.vocabulary.space_words
        if self._place is _Place.BEFORE:
            for path in self._paths:
                allow(into, path[0])
        if matcher is not None and matcher.is_accepting() and not into.any():
            # Nothing was to be written, not even at the start: an end says so, ignored or not.
            self._end_ids |= self.vocabulary.end_ids
            self._mask_ends(matcher, into)

    def _bar_first(self, into: Words) -> None:
        for number in self._barred_first:
            others = into.copy()
            forbid(others, number)
            if others.any():
                into[:] = others

    def _mask_ends(self, matcher: "LLMatcher", into: Words) -> None:
        may_end = matcher.is_accepting()
        for number in self._ends:
            if may_end and number in self._end_ids:
                allow(into, number)
            elif may_end or number not in self.vocabulary.end_ids:
                forbid(into, number)  # else it may come if the grammar itself writes it

    def _start(self, reasoning: Reasoning) -> None:
        if reasoning.first_ids or reasoning.lead_ids:
            self._gap_left = 0
        if reasoning.is_open:
            self._place = _Place.INSIDE
            self._close_if_spent(reasoning)
        elif self._grammar is not None and reasoning.is_off:
            self._place = _Place.BEFORE if reasoning.first_ids else _Place.CONTENT
            self._paths = [reasoning.first_ids] if reasoning.first_ids else []
            self._barred_first = reasoning.start_ids if len(reasoning.start_ids) == 1 else ()
        elif self._grammar is not None:
            self._place = _Place.BEFORE
            self._paths = [ids for ids in (reasoning.start_ids, reasoning.first_ids) if ids]
            self._is_direct = not reasoning.first_ids

    def _watch(self, reasoning: Reasoning, token: int) -> None:
        """Take a token where no grammar follows."""
        is_inside = reasoning.take(token)
        if self._forced:
            self._take_forced(token)
            if is_inside and not self._forced:
                self._fail("what should end reasoning did not end it")
        elif is_inside:
            self.reasoning_tokens += self._place is _Place.INSIDE
            self._close_if_spent(reasoning)
        self._place = _Place.INSIDE if is_inside else _Place.CONTENT

    def _begin(self, reasoning: Reasoning, token: int) -> None:
        is_inside = reasoning.take(token)
        self._head = (self._head + self.vocabulary.token_bytes(token)).lstrip(WHITE)
        self._paths = [path[1:] for path in self._paths if path[0] == token]
        grammar = self._grammar
        self._is_direct = (
            self._is_direct and grammar is not None and grammar.validate_tokens([token]) == 1
        )
        if is_inside or not all(self._paths):  # opened, or what stands before content is whole
            self._place = _Place.INSIDE if is_inside else _Place.GAP
            if grammar is not None:
                grammar.reset()
            if self._numbers is not None:
                self._numbers = Numbers(self.vocabulary)
            if is_inside:
                self._close_if_spent(reasoning)
        elif self._is_direct and grammar is not None:
            self._go_on(grammar, token)
            may_open = self._paths or reasoning.start.startswith(self._head)
            self._place = _Place.BEFORE if may_open else _Place.CONTENT
        elif not self._paths:
            self._fail(f"token {token} was not allowed")

    def _reason(self, reasoning: Reasoning, token: int) -> None:
        """Take a token of reasoning that a grammar will follow."""
        if reasoning.take(token):
            self.reasoning_tokens += 1
            self._tail = _start_of(reasoning.end, self._tail + self.vocabulary.token_bytes(token))
            self._close_if_spent(reasoning)
        else:
            self._place = _Place.GAP
            self._forced.extend(reasoning.lead_ids)

    def _close_if_spent(self, reasoning: Reasoning) -> None:
        if reasoning.budget is not None and self.reasoning_tokens >= reasoning.budget:
            self._forced.extend(reasoning.closing_ids)

    def _take_forced(self, token: int) -> None:
        if token != self._forced.popleft():
            self._fail(f"token {token} was not allowed")
        elif not self._forced and self._grammar is not None:
            self._place = _Place.GAP

    def _go_on(self, grammar: "LLMatcher", token: int) -> None:
        self._place = _Place.CONTENT
        self._barred_first = ()
        if not grammar.consume_token(token):
            self._fail(_first_line(grammar.get_error()))
        if self._numbers is not None:
            self._numbers.take(token)

    def _is_stopped(self) -> bool:
        return self._grammar is not None and self.error is None and self._grammar.is_stopped()

    def _fail(self, problem: str) -> None:
        self.error = EngineFault(f"constraint: {problem}", reason="GRAMMAR")


def _start_of(marker: bytes, text: bytes) -> bytes:
    """Return the longest end of ``text`` that a marker begins with, short of all of it."""
    longest = min(len(marker) - 1, len(text))
    sizes = range(longest, 0, -1)
    return next((marker[:size] for size in sizes if text.endswith(marker[:size])), b"")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
