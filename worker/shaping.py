"""What shape a request's answers have: how their text is read, and what guides their tokens.

Reading is on the event loop, a guide is the engine's, and compiling is beside both.
"""

import copy
import dataclasses
import re
from collections.abc import Sequence
from functools import partial

from bramley.common import together
from bramley.protos.v1 import generation_pb2
from bramley.worker.answer import Reading
from bramley.worker.grammar.compiler import Compiled, Compiler
from bramley.worker.grammar.constraint import JSON, to_lark
from bramley.worker.grammar.guide import Guide, Reasoning
from bramley.worker.grammar.schema import checked_schema
from bramley.worker.grammar.vocabulary import Vocabulary
from bramley.worker.reading import families
from bramley.worker.reading.events import AnswerReader, PlainReader, ToolSpec
from bramley.worker.reading.families import Facts, Family
from bramley.worker.reading.scanner import Scanner
from bramley.worker.text import turns
from bramley.worker.text.detokenizer import Detokenizer
from bramley.worker.text.tokenizer import Tokenizer

TAIL_TOKENS = 512  # of a prompt, in which its last turn mostly begins

Asked = generation_pb2.GenerateRequest


def family_of(tokenizer: Tokenizer) -> Family:
    """Tell how a model writes, from its tokenizer as mlx-lm wraps it."""
    wrapper, template = tokenizer.wrapper, tokenizer.wrapper.chat_template
    parse = wrapper.tool_parser
    return families.family_of(
        Facts(
            vocabulary=wrapper.get_vocab(),
            special=[wrapper.convert_ids_to_tokens(number) for number in tokenizer.special_ids],
            chat_template=template if isinstance(template, str) else "",
            think_start=wrapper.think_start or "",
            think_end=wrapper.think_end or "",
            tool_parser=parse.__module__.rpartition(".")[2] if parse is not None else "",
        )
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What shapes all answers of a request.

    Attributes:
        tools: that the model is told of.
        compiled: what the content has to be; None if it is free.
        is_reasoning: whether the prompt ends inside reasoning.
    """

    request: Asked
    prompt: Sequence[int]
    tools: Sequence[ToolSpec] = ()
    compiled: Compiled | None = None
    is_reasoning: bool = False


class Shaper:
    """Of one model."""

    def __init__(self, tokenizer: Tokenizer, family: Family, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._family = family
        self._format = families.tool_format(family)
        self._end_ids = end_ids
        self._vocabulary = Vocabulary(tokenizer)
        self._compiler = Compiler(self._vocabulary)
        ids = (tokenizer.token_id(marker) for marker in family.markers)
        self._shown = frozenset(number for number in ids if number is not None)

    def close(self) -> None:
        """End the threads that compile."""
        self._compiler.close()

    def is_reasoning(self, request: Asked, prompt: Sequence[int]) -> bool:
        """Tell whether a chat's prompt ends inside reasoning."""
        return self._reasons(request) and families.is_open(self._tail(prompt), self._family)

    async def compile(self, request: Asked) -> Compiled | None:
        """Compile what the content has to be.

        Returns:
            The grammar, None if content is free.

        Raises:
            InvalidRequest: names what cannot be kept to.
            Overloaded: too much is being compiled.
        """
        if together.must_call(request):
            key, write = _key(request), partial(self._calls, request)
            return await self._compiler.grammar("tools", key, write, numbers_end=True)
        if not request.HasField("constraint"):
            if not self._may_not_call(request):
                return None
            return await self._compiler.grammar("tool_choice", b"", self._no_calls)
        if not together.shows_tools(request):
            return await self._compiler.constraint(request.constraint)
        key, write = _key(request), partial(self._content_or_calls, request)
        ends = request.constraint.WhichOneof("constraint") in JSON
        return await self._compiler.grammar("constraint", key, write, numbers_end=ends)

    def reading(self, shape: Shape) -> Reading:
        """Start reading an answer."""
        detokenizer, reader = self._reader(shape)
        return Reading(detokenizer, reader, self._shown, self._tokenizer.token_bytes)

    def guide(self, shape: Shape) -> Guide | None:
        """Make what one answer's tokens are drawn by; None if all are free."""
        request = shape.request
        if shape.compiled is None and not request.reasoning.HasField("budget_tokens"):
            return None
        reasoning = self._reasoning(shape) if self._reasons(request) else None
        stop_ids = frozenset(request.stop.token_ids)
        end_ids = stop_ids if request.stop.ignore_eos else stop_ids | self._end_ids
        return Guide(self._vocabulary, end_ids, shape.compiled, reasoning)

    def _reasons(self, request: Asked) -> bool:
        return request.WhichOneof("input") == "chat" and bool(self._family.start)

    def _tail(self, prompt: Sequence[int]) -> str:
        """Read a prompt's end, back to where its last turn began."""
        turns, size = self._family.turns, TAIL_TOKENS
        while True:
            text = self._tokenizer.decode(prompt[-size:], skip_special_tokens=False)
            if not turns or size >= len(prompt) or any(turn in text for turn in turns):
                return text
            size *= 4

    def _reader(self, shape: Shape) -> tuple[Detokenizer, AnswerReader]:
        if shape.request.WhichOneof("input") != "chat":
            return self._tokenizer.detokenizer(), PlainReader()
        asked = shape.request
        is_strict = asked.HasField("constraint") or together.must_call(asked)
        reader = families.reader(
            self._family,
            shape.tools,
            is_open=shape.is_reasoning,
            is_strict=is_strict,
            is_off=is_strict and self._is_off(asked),
        )
        return self._tokenizer.detokenizer(self._shown), reader

    def _reasoning(self, shape: Shape) -> Reasoning:
        family, options = self._family, shape.request.reasoning
        is_off = shape.compiled is not None and self._is_off(shape.request)
        budget = options.budget_tokens if options.HasField("budget_tokens") else None
        # What stands before content, a grammar in which there may be calls has of its own.
        is_content = shape.compiled is not None and not shape.tools
        detokenizer, reader = self._reader(shape)
        closing = family.closing + ("" if shape.tools else family.lead)
        first = families.before_content(self._tail(shape.prompt), family) if is_content else ""
        barred = None
        if shape.tools and self._format is not None:
            barred = self._tokenizer.token_id(self._format.opens)
        return Reasoning(
            detokenizer=detokenizer,
            reader=reader,
            is_open=shape.is_reasoning,
            start=family.start.encode(),
            end=family.end.encode(),
            closing_ids=self._ids(closing),
            budget=0 if is_off else budget,
            start_ids=self._ids(family.start),
            first_ids=self._ids(first),
            lead_ids=self._ids(family.lead if is_content else ""),
            barred_ids=() if barred is None else (barred,),
            is_off=is_off,
        )

    def _is_off(self, request: Asked) -> bool:
        return turns.is_reasoning_off(request, self._tokenizer.template)

    def _ids(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text, special_tokens=False) if text else ()

    def _may_not_call(self, request: Asked) -> bool:
        has_tools = bool(request.tools) and self._format is not None
        return has_tools and not together.shows_tools(request)

    def _no_calls(self) -> str:
        assert self._format is not None
        return _NO_CALLS.format(opens=_PLAIN.sub(r"\\\g<0>", self._format.opens))

    def _calls(self, request: Asked) -> str:
        assert self._format is not None  # or intake.py would have refused the tools
        name = request.tool_choice.name
        tools = [
            _checked(tool, place)
            for place, tool in enumerate(turns.tools_of(request))
            if name in {"", tool.name}
        ]
        many = together.may_call_many(request) and not name
        return self._format.lark(tools, self._vocabulary.terminal, many=many)

    def _content_or_calls(self, request: Asked) -> str:
        return _EITHER.format(
            before=self._before_content(),
            content=to_lark(request.constraint, drops_blank=self._vocabulary.drops_blank),
            calls=self._calls(request),
        )

    def _before_content(self) -> str:
        """Write what may stand before content as the start of a rule."""
        ways = {self._terminals(text) for text in (self._family.first, self._family.lead) if text}
        return f"({' | '.join(sorted(ways))})? " if ways else ""

    def _terminals(self, text: str) -> str:
        parts: list[str] = []
        scanner, marker = Scanner(sorted(self._family.markers)), None
        said, marker, text = scanner.push(text)
        while said or marker:
            parts += [self._vocabulary.terminal(part) for part in (said, marker) if part]
            said, marker, text = scanner.push(text) if marker else scanner.finish()
        return " ".join(parts)


def _key(request: Asked) -> bytes:
    """Tell a grammar of calls from others, by all that it is written of."""
    told = Asked(tools=request.tools, tool_choice=request.tool_choice)
    told.parallel_tool_calls = together.may_call_many(request)
    if request.HasField("constraint"):
        told.constraint.CopyFrom(request.constraint)
    return told.SerializeToString(deterministic=True)


def _checked(tool: ToolSpec, place: int) -> ToolSpec:
    """Refuse what a grammar could not keep to."""
    field = f"tools[{place}].parameters_json_schema"
    schema = checked_schema(copy.deepcopy(dict(tool.schema)), field)
    return dataclasses.replace(tool, schema=schema) if isinstance(schema, dict) else tool


_PLAIN = re.compile(r"[.^$*+?()\[\]{}|\\/]")  # characters that mean something in a regex
_NO_CALLS = """start: TEXT
TEXT: /(?s:.*)/ & ~/(?s:.*{opens}.*)/
"""
# An answer that may be content as it has to be, or calls.
_EITHER = """start: {before}content | calls
content: %lark {{
{content}
}}
calls: %lark {{
{calls}
}}
"""
