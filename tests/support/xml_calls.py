"""Calls whose parameters stand between markers: as templates write them, and of grammars."""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from bramley.worker.reading.events import ToolSpec
from bramley.worker.reading.tools.contract import ToolFormat
from support.tool_calls import TOOLS, quoted_terminal, read


@dataclass(frozen=True)
class Written:
    """A format, and how its models' template writes calls.

    Attributes:
        call: writes one without what stands around a run of them.
        run: what stands around a run.
        between: what stands between two calls.
        value_end: the marker that ends a value: no value that is not wrapped may have it.
        ends: what a random text goes for, so that it ends sometime.
        strips: mlx-lm takes white space off the ends of a value, which is the value's.
        broken: texts that are no call, though they begin as one.
    """

    form: ToolFormat
    call: Callable[[str, Mapping[str, Any]], str]
    value_end: str
    ends: tuple[str, ...]
    broken: tuple[str, ...]
    run: tuple[str, str] = ("", "")
    between: str = "\n"
    strips: bool = True

    def text(self, *calls: tuple[str, Mapping[str, Any]]) -> str:
        """Write a run of calls."""
        inner = self.between.join(self.call(name, arguments) for name, arguments in calls)
        return self.run[0] + inner + self.run[1]


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
        tokens = list(end)
        count = self._matcher.validate_tokens(tokens)
        if len(end) > 1 and (count < len(end) or self._is_amid_text_after(tokens)):
            return False  # in a string of JSON, where it would end what it should not
        for token in tokens[:count]:
            self._take(token)
        return count > 0

    def _is_amid_text_after(self, tokens: list[int]) -> bool:
        assert self._matcher.consume_tokens(tokens), self._matcher.get_error()
        is_amid_text = all(self._matcher.compute_logit_bias()[ord(char)] for char in "aZ?")
        assert self._matcher.rollback(len(tokens)), self._matcher.get_error()
        return is_amid_text

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
