"""Calls whose parameters stand between markers: as templates write them, and of grammars."""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jsonschema
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from bramley.worker.reading.events import ToolSpec
from bramley.worker.reading.tools.contract import ToolFormat
from support.tool_calls import TOOLS, quoted_terminal, read


def spelled(value: Any) -> str:
    """A value as templates write it: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Bytes:
    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<|end|>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))
_END = _Bytes.eos_token_id


class _Draw:
    """Draws a random text of a grammar, which goes for one of some ends now and then."""

    def __init__(self, grammar: str, seed: int, ends: Sequence[str]) -> None:
        self._chance = random.Random(seed)  # noqa: S311
        self._matcher = LLMatcher(_TOKENIZER, LLMatcher.grammar_from_lark(grammar))
        assert not self._matcher.get_error(), self._matcher.get_error()
        self._ends = [end.encode() for end in ends]
        self._made = bytearray()

    def text(self, limit: int = 20_000) -> str:
        while len(self._made) < limit:
            if self._chance.random() < 0.15 and self._goes_for(self._chance.choice(self._ends)):
                continue
            allowed = [
                token for token, bias in enumerate(self._matcher.compute_logit_bias()) if bias
            ]
            if not allowed or (_END in allowed and self._chance.random() < 0.5):
                return self._made.decode()
            plain = [token for token in allowed if token < 128] or allowed
            pool = plain if self._chance.random() < 0.9 else allowed
            token = self._chance.choice([one for one in pool if one != _END] or [_END])
            if token == _END:
                return self._made.decode()
            self._take(token)
        raise AssertionError(f"no end of {bytes(self._made[-200:])!r}")

    def _goes_for(self, end: bytes) -> bool:
        count = self._matcher.validate_tokens(list(end))
        for token in end[:count]:
            self._take(token)
        return count > 0

    def _take(self, token: int) -> None:
        assert self._matcher.consume_token(token), self._matcher.get_error()
        self._made.append(token)


def drawn(grammar: str, seed: int, ends: Sequence[str]) -> str:
    """Draw a text of a grammar."""
    return _Draw(grammar, seed, ends).text()


def check_drawn(
    form: ToolFormat,
    ends: Sequence[str],
    *,
    many: bool,
    seeds: Iterable[int],
    tools: Sequence[ToolSpec] = TOOLS,
) -> None:
    """What a grammar lets a model write is read as calls that are valid, and nothing else."""
    grammar = form.lark(tools, quoted_terminal, many=many)
    schemas: Mapping[str, Mapping[str, Any]] = {tool.name: tool.schema for tool in tools}
    counts = set[int]()
    for seed in seeds:
        text = drawn(grammar, seed, ends)
        made = read(form, text, tools)
        assert made.text == "", text
        assert made.calls, text
        for call in made.calls:
            assert call.is_whole, text
            assert not call.is_malformed, text
            jsonschema.validate(json.loads(call.arguments), dict(schemas[call.name]))
        counts.add(len(made.calls))
    assert len(counts) > 1 if many else counts == {1}


TYPED = ToolSpec(
    "typed",
    {
        "type": "object",
        "properties": {
            "string": {"type": "string"},
            "integer": {"type": "integer"},
            "number": {"type": "number"},
            "boolean": {"type": "boolean"},
            "null": {"type": "null"},
            "array": {"type": "array"},
            "object": {"type": "object"},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "listed": {"enum": ["a", 1, True]},
            "words": {"enum": ["true", "12"]},
            "referred": {"$ref": "#/$defs/count"},
            "untyped": {"description": "anything"},
        },
        "$defs": {"count": {"type": "integer"}},
    },
)
# A parameter, its text, and its value.
TYPES: tuple[tuple[str, str, Any], ...] = (
    ("string", "12", "12"),
    ("string", "null", "null"),
    ("string", "[1]", "[1]"),
    ("integer", "12", 12),
    ("integer", "12.0", 12),
    ("integer", "-7", -7),
    ("integer", "12.5", "12.5"),
    ("integer", "a dozen", "a dozen"),
    ("number", "0.25", 0.25),
    ("number", "3", 3),
    ("number", "1e3", 1000.0),
    ("number", ".5", 0.5),
    ("number", "NaN", "NaN"),
    ("boolean", "true", True),
    ("boolean", "False", False),
    ("boolean", "maybe", "maybe"),
    ("null", "null", None),
    ("null", "None", None),
    ("array", '["a", {"b": 1}]', ["a", {"b": 1}]),
    ("array", "['a', True]", ["a", True]),
    ("array", "[1", "[1"),
    ("array", "[" * 100_000, "[" * 100_000),
    ("object", '{"a": "b\nc"}', {"a": "b\nc"}),
    ("object", "{'a': None}", {"a": None}),
    ("object", "[1]", "[1]"),
    ("maybe", "null", None),
    ("maybe", "nullable", "nullable"),
    ("either", "12", 12),
    ("either", "twelve", "twelve"),
    ("either", '"12"', '"12"'),
    ("listed", "a", "a"),
    ("listed", "1", 1),
    ("listed", "true", True),
    ("words", "true", "true"),
    ("words", "12", "12"),
    ("referred", "5", 5),
    ("untyped", "5", 5),
    ("untyped", '"5"', "5"),
    ("untyped", "five", "five"),
    ("untyped", "None", "None"),
    ("unknown", "[1, 2]", [1, 2]),
    ("unknown", "[1, 2", "[1, 2"),
)


def check_typed(form: ToolFormat, written: Callable[[str, str], str]) -> None:
    """Every text is the value that its schema makes of it, in whole calls."""
    for key, text, value in TYPES:
        made = read(form, written(key, text), [TYPED])
        assert made.text == ""
        assert [call.is_malformed for call in made.calls] == [False]
        arguments = json.loads(made.calls[0].arguments)
        assert arguments == {key: value}, (key, text)
        assert type(arguments[key]) is type(value), (key, text)
