"""Numbers end, whatever a model likes to write, and nothing else is kept from it."""

import json
from typing import Any

import numpy as np
import pytest

from bramley.protos.v1.types_pb2 import Constraint
from bramley.worker.grammar import masks
from bramley.worker.grammar.compiler import Compiled, make
from bramley.worker.grammar.constraint import to_lark
from bramley.worker.grammar.guide import Guide
from bramley.worker.grammar.numbers import DIGITS_MAX, EXPONENT_MAX
from bramley.worker.grammar.words import is_allowed
from support.byte_tokenizer import EOS
from support.schemas import byte_tokenizer, byte_vocabulary, compiled, is_valid, reasoning


def write(grammar: Compiled, liked: str, limit: int = 400) -> str:
    """Write an answer: always the first byte that is liked, and any other only where none may."""
    guide = Guide(byte_vocabulary(), (EOS,), grammar)
    text = b""
    while len(text) < limit:
        packed = masks.fill([guide], 320)
        assert packed is not None
        assert guide.error is None
        may = np.flatnonzero(np.unpackbits(packed.view(np.uint8), bitorder="little")).tolist()
        drawn = next((one for one in liked.encode() if one in may), max(may))
        if guide.take(drawn):
            return (text + bytes([drawn] if drawn != EOS else [])).decode()
        text += bytes([drawn])
    raise AssertionError(f"no end: {text!r}")


NUMBERS: list[dict[str, Any]] = [
    {"type": "number"},
    {"type": "integer"},
    {"type": "integer", "maximum": -5},
    {"type": "number", "minimum": -1, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 0.5000001},
    {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0},
    {"type": "number", "exclusiveMinimum": 3, "maximum": 3.5},
    {"type": "number", "exclusiveMaximum": -1e12, "minimum": -1000000000000.5},
    {"type": "number", "multipleOf": 0.25},
    {"type": "integer", "multipleOf": 10_000, "exclusiveMinimum": 0},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 0.25},
    {"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.100000000000001},
]


@pytest.mark.parametrize("schema", NUMBERS, ids=json.dumps)
@pytest.mark.parametrize("liked", ["0", "9", "-0", "-9", "1.0", "0.9", "1.", "9e", "0e9", "9E-0"])
def test_every_number_ends_and_is_valid(schema: dict[str, Any], liked: str) -> None:
    text = write(compiled(dict(schema)), liked + "9")
    assert is_valid(schema, text), text


def test_a_number_has_so_many_digits() -> None:
    text = write(compiled({"type": "number"}), "7.e")
    assert text == f"{'7' * DIGITS_MAX}.{'7' * DIGITS_MAX}e{'7' * EXPONENT_MAX}"


def test_every_number_of_a_value_ends() -> None:
    numbers = json.loads(write(compiled({"minItems": 3, "maxItems": 3, "type": "array"}), "7,]"))
    assert numbers == [int("7" * DIGITS_MAX)] * 3


def lets_through(grammar: Compiled, text: str) -> bool:
    """Whether each byte of a text may come after those before it."""
    guide = Guide(byte_vocabulary(), (EOS,), grammar)
    for token in text.encode():
        packed = masks.fill([guide], 320)
        if packed is None or not is_allowed(packed[0], token):
            return False
        guide.take(token)
    return True


MANY = "7" * (3 * DIGITS_MAX)


@pytest.mark.parametrize("before", ["", '"', "\\", '\\"', "\n", "-1.", "x"])
def test_digits_of_a_text_are_no_number(before: str) -> None:
    grammar = compiled({"type": "object", "additionalProperties": {"pattern": "^[^a]*$"}})
    text = json.dumps({before + MANY: before + MANY})
    assert lets_through(grammar, text)
    assert not lets_through(compiled(True), MANY)


def test_a_text_without_quotes_is_no_number() -> None:
    lark = 'start: "<v>" /[^<]*/ "</v>"'
    assert lets_through(make(byte_vocabulary(), lark, numbers_end=True), f"<v>{MANY}</v>")


def test_numbers_of_other_grammars_are_theirs_to_bound() -> None:
    grammar = make(byte_vocabulary(), to_lark(Constraint(regex="[0-9]+")))
    assert lets_through(grammar, MANY)


def test_digits_of_reasoning_do_not_count() -> None:
    rule = reasoning(byte_tokenizer(), is_open=False)
    guide = Guide(byte_vocabulary(), (EOS,), compiled({"type": "integer"}), rule)
    for token in f"<think>{MANY}</think>{MANY[:DIGITS_MAX]}".encode():
        packed = masks.fill([guide], 320)
        assert packed is not None
        assert is_allowed(packed[0], token)
        guide.take(token)
