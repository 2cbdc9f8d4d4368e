"""JSON Schema's public suite: a schema is refused by its keyword, or its grammar is right.

Right means: no writing of an invalid value is let through, and of each valid value one is, but
for what ``narrower`` lists; and answers drawn at random are valid.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.grammar.compiler import Compiled
from bramley.worker.grammar.guide import Guide
from bramley.worker.grammar.schema import WHOLE_MAX
from bramley.worker.grammar.shapes import is_object
from support import schemas
from support.schemas import accepts, byte_vocabulary, compiled, is_valid, sample, writings

pytestmark = pytest.mark.skipif(
    "schemas.suite() is None", reason="needs a package index with jsonschema's source package"
)

# Files of the suite all of whose groups are refused: what they are about is not enforced.
REFUSED = (
    "contains",
    "dependentRequired",
    "dependentSchemas",
    "dynamicRef",
    "if-then-else",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "refRemote",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "vocabulary",
    "optional/dynamicRef",
    "optional/dependencies-compatibility",
    "optional/format-assertion",
    "optional/id",
    "optional/cross-draft",
    "optional/format/idn-email",
    "optional/format/idn-hostname",
    "optional/format/iri",
    "optional/format/iri-reference",
    "optional/format/json-pointer",
    "optional/format/regex",
    "optional/format/relative-json-pointer",
    "optional/format/uri-reference",
    "optional/format/uri-template",
)
# Files some of whose groups have grammars: how many at the least.
ENFORCED = {
    "additionalProperties": 7,
    "allOf": 10,
    "anchor": 0,
    "anyOf": 7,
    "boolean_schema": 1,
    "const": 14,
    "content": 4,
    "default": 3,
    "defs": 0,
    "enum": 13,
    "exclusiveMaximum": 1,
    "exclusiveMinimum": 1,
    "format": 10,
    "infinite-loop-detection": 1,
    "items": 9,
    "maxItems": 2,
    "maxLength": 2,
    "maxProperties": 3,
    "maximum": 2,
    "minItems": 2,
    "minLength": 2,
    "minProperties": 2,
    "minimum": 2,
    "multipleOf": 3,
    "oneOf": 2,
    "pattern": 2,
    "patternProperties": 2,
    "prefixItems": 4,
    "properties": 5,
    "ref": 12,
    "required": 4,
    "type": 10,
    "optional/anchor": 0,
    "optional/bignum": 1,
    "optional/ecmascript-regex": 12,
    "optional/float-overflow": 1,
    "optional/no-schema": 1,
    "optional/non-bmp-regex": 1,
    "optional/refOfUnknownKeyword": 0,
    "optional/unknownKeyword": 0,
    "optional/format/date": 1,
    "optional/format/date-time": 1,
    "optional/format/duration": 1,
    "optional/format/ecmascript-regex": 0,
    "optional/format/email": 1,
    "optional/format/hostname": 1,
    "optional/format/ipv4": 1,
    "optional/format/ipv6": 1,
    "optional/format/time": 1,
    "optional/format/unknown": 0,
    "optional/format/uri": 1,
    "optional/format/uuid": 1,
}

# Formats are enforced here; what says that they are not is of no use.
ANNOTATION = "is only an annotation by default"

Rule = Callable[[Any, Any], bool]


def _format(schema: Any) -> str:
    return schema.get("format", "") if is_object(schema) else ""


def _is_unwritable(_schema: Any, value: Any) -> bool:
    """A control character that JSON has no short escape for."""
    return isinstance(value, str) and re.search("[\0-\x07\x0b\x0e-\x1f]", value) is not None


def _is_odd_time(schema: Any, value: Any) -> bool:
    """Leap seconds, and small letters for T and Z."""
    is_odd = isinstance(value, str) and re.search(":60|t|z", value) is not None
    return _format(schema) in {"time", "date-time"} and is_odd


def _is_odd_address(schema: Any, value: Any) -> bool:
    """IPv4 inside IPv6; a quoted name or an IPv6 literal in an address of e-mail."""
    odd = {"ipv6": r"\d\.\d", "email": r'^"|\[IPv6'}.get(_format(schema))
    return odd is not None and isinstance(value, str) and re.search(odd, value) is not None


def _is_white_in_ecma_script_alone(schema: Any, value: Any) -> bool:
    return is_object(schema) and r"\s" in schema.get("pattern", "") and value == "\ufeff"


def _is_large_multiple(schema: Any, value: Any) -> bool:
    return is_object(schema) and "multipleOf" in schema and abs(value) > WHOLE_MAX


NARROWER: tuple[Rule, ...] = (
    _is_large_multiple,
    _is_unwritable,
    _is_odd_time,
    _is_odd_address,
    _is_white_in_ecma_script_alone,
)
# The one wider place: U+FEFF is white space to ECMAScript, and to no other regular expression.
WIDER = (r"^\S$", "\ufeff")


def check(grammar: Compiled, schema: Any, value: Any, *, is_valid: bool) -> None:
    is_accepted = any(accepts(grammar, text) for text in writings(value))
    if is_accepted and not is_valid:
        assert (schema["pattern"], value) == WIDER, f"{schema}: {value!r} was let through"
    if is_valid and not is_accepted:
        assert any(rule(schema, value) for rule in NARROWER), f"{schema}: {value!r} was not"


def check_answers(grammar: Compiled, schema: Any) -> None:
    vocabulary = byte_vocabulary()
    for seed in range(2):
        guide = Guide(vocabulary, vocabulary.end_ids, grammar)
        tokens, is_whole = sample(guide, seed, 80)
        if is_whole:
            text = bytes(tokens).decode()
            assert is_valid(schema, text), f"{schema}: {text}"


@pytest.mark.parametrize("name", ENFORCED)
def test_a_schema_is_refused_by_its_keyword_or_its_grammar_is_right(name: str) -> None:
    enforced = 0
    for group in schemas.groups(f"{name}.json"):
        schema = group["schema"]
        try:
            grammar = compiled(schema)
        except InvalidRequest as refused:
            check_refusal(refused)
            continue
        enforced += 1
        for one in group["tests"]:
            if one["description"].endswith(ANNOTATION):
                continue
            check(grammar, schema, one["data"], is_valid=one["valid"])
        check_answers(grammar, schema)
    assert enforced >= ENFORCED[name]


def check_refusal(refused: InvalidRequest) -> None:
    """It names the keyword: by our own walk, or in the words of the library."""
    assert refused.field == "constraint.json_schema"
    named = ("oneOf", "Unsatisfiable", "patternProperty", "min/maxProperties")
    assert "keyword" in refused.facts or any(name in refused.problem for name in named)


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_of_what_is_not_enforced_is_refused(name: str) -> None:
    for group in schemas.groups(f"{name}.json"):
        with pytest.raises(InvalidRequest) as refused:
            compiled(group["schema"])
        check_refusal(refused.value)


def test_no_file_of_the_suite_is_left_out() -> None:
    folder = schemas.suite()
    assert folder is not None
    files = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.json")}
    assert files == {*ENFORCED, *REFUSED}
