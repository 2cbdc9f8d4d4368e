"""Reading calls of tools in tests: any pieces, what they come to, and random ones of a grammar."""

import importlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import jsonschema
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from bramley.worker.reading.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Reasoning,
    Text,
    ToolSpec,
)
from bramley.worker.reading.tools.contract import ToolFormat

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"enum": ["metric", "imperial"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
CODE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "source": {"type": "string"},
        "is_checked": {"type": "boolean"},
        "share": {"type": "number"},
        "lines": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "options": {"$ref": "#/$defs/options"},
        "tag": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    },
    "required": ["source", "lines", "options"],
    "additionalProperties": False,
    "$defs": {
        "options": {
            "type": "object",
            "properties": {"mode": {"type": "string"}, "depth": {"type": "integer"}},
            "required": ["depth"],
            "additionalProperties": False,
        }
    },
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (
    ToolSpec("get_weather", CITY),
    ToolSpec("run_code", CODE),
    ToolSpec("ping", NOTHING),
)
# Four kilobytes of it.
LONG_CODE = "".join(
    f'def step_{n}(x: int) -> str:\n\t"""Add \\"{n}\\"."""\n    return f"{{x + 1}}" if x < 9\n'
    for n in range(52)
)


def hard_arguments(*markers: str) -> list[dict[str, Any]]:
    """Arguments of run_code that are easily spoilt on their way, a format's markers among them."""
    texts = [
        r"\d+\.\w*",
        "say \"hi\"\nand 'bye'\r\n\t",
        "if a < b && c > d: x[0] = {1: ']]>'}",
        "]]>",
        "{",
        "}}],",
        "",
        " spaces ",
        "\u00e9 \u2028 \U0001f600 \x7f",
        LONG_CODE,
        *(f"a {marker} b" for marker in markers),
    ]
    return [{"source": text, "lines": [1, -2], "options": {"depth": 3}} for text in texts]


@dataclass(slots=True)
class Call:
    """A call as its events tell of it."""

    name: str
    id: str
    arguments: str = ""
    is_whole: bool = False
    is_malformed: bool = False


@dataclass(slots=True)
class Answer:
    """What an answer's events come to."""

    text: str = ""
    calls: list[Call] = field(default_factory=list[Call])


def events(
    form: ToolFormat, pieces: Iterable[str], tools: Sequence[ToolSpec] = TOOLS
) -> list[Event]:
    """Read pieces to the end."""
    reader = form.reader(tools)
    found = [event for piece in pieces for event in reader.push(piece)]
    return [*found, *reader.finish()]


def read(form: ToolFormat, text: str, tools: Sequence[ToolSpec] = TOOLS) -> Answer:
    """Read a text in one piece."""
    return answer(events(form, [text], tools))


def answer(found: Iterable[Event]) -> Answer:
    """Put events together; fails where they come in no good order."""
    made = Answer()
    for event in found:
        match event:
            case Text(text):
                assert text
                made.text += text
            case CallStart(index, name, call_id):
                assert index == len(made.calls)
                made.calls.append(Call(name, call_id))
            case CallArguments(index, text):
                assert text
                assert index == len(made.calls) - 1
                assert not made.calls[index].is_whole
                made.calls[index].arguments += text
            case CallEnd(index, is_malformed):
                assert index == len(made.calls) - 1
                assert not made.calls[index].is_whole
                made.calls[index].is_whole = True
                made.calls[index].is_malformed = is_malformed
            case Reasoning():
                raise AssertionError("a tool format reads no reasoning")
    return made


def joined(found: Iterable[Event]) -> list[Event]:
    """Join neighbours that say the same kind of thing."""
    made: list[Event] = []
    for event in found:
        last = made[-1] if made else None
        if isinstance(event, Text) and isinstance(last, Text):
            made[-1] = Text(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            made[-1] = CallArguments(event.index, last.text + event.text)
        else:
            made.append(event)
    return made


def check_cuts(form: ToolFormat, text: str, tools: Sequence[ToolSpec] = TOOLS) -> None:
    """A text in two pieces, at every place, and by the character, says what it says whole."""
    whole = joined(events(form, [text], tools))
    assert joined(events(form, text, tools)) == whole
    for place in range(len(text) + 1):
        assert joined(events(form, [text[:place], text[place:]], tools)) == whole, text[:place]


def check_limits(form: ToolFormat, text: str, tools: Sequence[ToolSpec] = TOOLS) -> None:
    """A text that ends anywhere says no more than the whole of it, and no call is whole early."""
    whole = read(form, text, tools)
    for place in range(len(text)):
        part = read(form, text[:place], tools)
        assert len(part.calls) <= len(whole.calls)
        for made, full in zip(part.calls, whole.calls, strict=False):
            assert (made.name, made.id) == (full.name, full.id)
            assert full.arguments.startswith(made.arguments)
            if made.is_whole:
                assert (made.arguments, made.is_malformed) == (full.arguments, full.is_malformed)


def parsed(name: str, text: str, tools: Sequence[ToolSpec] = TOOLS) -> list[dict[str, Any]]:
    """What mlx-lm's parser of that name makes of what stands between the markers."""
    parser = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    described = [
        {"type": "function", "function": {"name": tool.name, "parameters": tool.schema}}
        for tool in tools
    ]
    made: Any = parser.parse_tool_call(text, described)
    return cast("list[dict[str, Any]]", made if isinstance(made, list) else [made])


def check_oracle(made: Answer, expected: Sequence[dict[str, Any]]) -> None:
    """Every call is whole and says what mlx-lm's parser gives."""
    assert [call.name for call in made.calls] == [one["name"] for one in expected]
    for call, one in zip(made.calls, expected, strict=True):
        assert call.is_whole
        assert not call.is_malformed
        assert json.loads(call.arguments) == json.loads(json.dumps(one["arguments"]))


def quoted_terminal(marker: str) -> str:
    """Markers that are plain text."""
    return json.dumps(marker)


_END = 256


class _Bytes:
    """A tokenizer of bytes, an end, and special tokens."""

    eos_token_id = _END
    bos_token_id = None

    def __init__(self, specials: Sequence[str]) -> None:
        names = [special.encode() for special in specials]
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<|end|>", *names]
        self.special_token_ids = list(range(_END, len(self.tokens)))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@cache
def _tokenizer(specials: tuple[str, ...] = ()) -> tuple[LLTokenizer, list[bytes]]:
    plain = _Bytes(specials)
    return LLTokenizer(TokenizerWrapper(plain)), plain.tokens


# Texts end sometime where these are taken more often than by chance.
_ENDS = frozenset(b'"}])<,')


def random_text(
    grammar: str,
    seed: int,
    markers: Sequence[str] = (),
    *,
    specials: Sequence[str] = (),
    limit: int = 8_000,
) -> str:
    """Write a random text of a grammar.

    Args:
        grammar: in Lark.
        seed: of chance.
        markers: plain text that ends other text; without them it would hardly end.
        specials: texts that are tokens, from the id 257.
        limit: of bytes.

    Returns:
        The text.

    Raises:
        AssertionError: it did not end.
    """
    chance = random.Random(seed)  # noqa: S311
    tokenizer, tokens = _tokenizer(tuple(specials))
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.get_error(), matcher.get_error()
    made = bytearray()
    while len(made) < limit:
        marker = chance.choice(markers).encode() if markers and chance.random() < 0.1 else b""
        if marker and matcher.validate_tokens(list(marker)) == len(marker):
            assert matcher.consume_tokens(list(marker)), matcher.get_error()
            made += marker
            continue
        allowed = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
        ends = [token for token in allowed if token in _ENDS or token >= _END]
        plain = [token for token in allowed if token < 128]
        pool = ends if ends and chance.random() < 0.3 else allowed
        pool = plain if pool is allowed and plain and chance.random() < 0.9 else pool
        token = chance.choice(pool)
        if token == _END:
            return made.decode()
        assert matcher.consume_token(token), matcher.get_error()
        made += tokens[token]
    raise AssertionError(f"no end of {bytes(made[-200:])!r}")


def accepts(grammar: str, text: str) -> bool:
    """Tell whether a text is one of a grammar's."""
    matcher = LLMatcher(_tokenizer()[0], LLMatcher.grammar_from_lark(grammar))
    assert not matcher.get_error(), matcher.get_error()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


def check_grammar(
    form: ToolFormat, *, many: bool, seeds: Iterable[int], tools: Sequence[ToolSpec] = TOOLS
) -> None:
    """What a grammar lets a model write is read as calls that are valid, and nothing else.

    Markers are plain text first, then tokens of their own.
    """
    markers = sorted(form.markers)
    ids = {marker: f"<[{_END + 1 + at}]>" for at, marker in enumerate(markers)}
    schemas = {tool.name: tool.schema for tool in tools}
    texts = form.lark(tools, quoted_terminal, many=many)
    tokens = form.lark(tools, ids.__getitem__, many=many)
    for seed in seeds:
        for text in (
            random_text(texts, seed, markers),
            random_text(tokens, seed, specials=markers),
        ):
            made = read(form, text, tools)
            assert made.text == "", text
            assert made.calls, text
            assert many or len(made.calls) == 1
            for call in made.calls:
                assert call.is_whole, text
                assert not call.is_malformed, text
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
