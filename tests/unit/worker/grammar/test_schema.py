"""What of JSON Schema is read, and what is refused: always by its keyword."""

import contextlib
import copy
import itertools
import time
from typing import Any

import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.grammar.schema import ANNOTATIONS, DEPTH_MAX, FORMATS, KEYWORDS, checked_schema

FIELD = "constraint.json_schema"
UNSUPPORTED = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
    "nullable",
    "$dynamicRef",
    "$dynamicAnchor",
    "$anchor",
    "$vocabulary",
    "id",
    "x-guidance",
    "typo",
)


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


REFUSED: list[tuple[str, Any]] = [
    *((keyword, {keyword: True}) for keyword in UNSUPPORTED),
    *((keyword, {"properties": {"a": {"items": {keyword: {}}}}}) for keyword in UNSUPPORTED),
    ("type", {"type": "nope"}),
    ("type", {"type": []}),
    ("type", {"type": ["string", 1]}),
    ("type", {"type": None}),
    ("$ref", {"$ref": "#/$defs/nowhere"}),
    ("$ref", {"$ref": "#/allOf/1", "allOf": [True]}),
    ("$ref", {"$ref": "https://example.org/schema"}),
    ("$ref", {"$ref": "other.json#/a"}),
    ("$ref", {"$ref": "#name"}),
    ("$ref", {"$ref": 1}),
    ("$ref", {"$ref": "#"}),
    ("$ref", {"$ref": "#/const", "const": {"type": "string"}}),
    ("$ref", {"$ref": "#/required", "required": ["a"]}),
    ("$ref", {"allOf": [{"$ref": "#"}]}),
    ("$ref", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    ("$ref", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    ("$ref", {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}),
    ("$ref", {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]}),
    ("$ref", {"anyOf": [{"$ref": "#/$defs/a"}, True], "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    ("$id", {"items": {"$id": "other"}}),
    ("$schema", {"$schema": "https://example.org/schema"}),
    ("$schema", {"$schema": 7}),
    ("$schema", {"items": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}),
    ("$defs", {"$defs": []}),
    ("definitions", {"items": {"definitions": {}}}),
    ("enum", {"enum": []}),
    ("enum", {"enum": "a"}),
    ("enum", {"enum": ["\0"]}),
    ("const", {"const": "\ud800"}),
    ("const", {"const": 2**53 + 1}),
    ("const", {"const": [{"a": float("inf")}]}),
    ("const", {"const": {"\x01": 1}}),
    ("const", {"const": _nested(DEPTH_MAX + 1)}),
    ("required", {"required": "a"}),
    ("required", {"required": [1]}),
    ("required", {"required": ["\x1b"]}),
    ("minLength", {"minLength": -1}),
    ("maxLength", {"maxLength": 1.5}),
    ("minItems", {"minItems": True}),
    ("maxItems", {"maxItems": "3"}),
    ("maxProperties", {"maxProperties": 10**9}),
    ("minProperties", {"minProperties": 2}),
    ("minProperties", {"minProperties": 3, "required": ["a", "a"]}),
    ("minimum", {"minimum": "1"}),
    ("maximum", {"maximum": True}),
    ("exclusiveMinimum", {"exclusiveMinimum": True}),
    ("exclusiveMaximum", {"exclusiveMaximum": 1e300}),
    ("maximum", {"maximum": 0.9999999999999999}),
    ("const", {"const": 1e-23}),
    ("multipleOf", {"multipleOf": 0}),
    ("multipleOf", {"multipleOf": -1}),
    ("multipleOf", {"multipleOf": 1_000_003}),
    ("multipleOf", {"multipleOf": 1e16 / 2}),
    ("pattern", {"pattern": "a("}),
    ("pattern", {"pattern": "^(?!a)b"}),
    ("pattern", {"pattern": r"(a)\1"}),
    ("pattern", {"pattern": 1}),
    ("patternProperties", {"patternProperties": {"a(": True}}),
    ("patternProperties", {"patternProperties": []}),
    ("properties", {"properties": {"a": 1}}),
    ("items", {"items": [True]}),
    ("items", _nested(DEPTH_MAX + 1)),
    ("prefixItems", {"prefixItems": []}),
    ("anyOf", {"anyOf": {}}),
    ("allOf", {"allOf": ["a"]}),
    ("oneOf", {"oneOf": []}),
    ("additionalProperties", {"additionalProperties": None}),
    *(("format", {"format": name}) for name in ("regex", "iri", "unknown", "", 7)),
]


@pytest.mark.parametrize(("keyword", "schema"), REFUSED)
def test_what_is_not_enforced_is_refused_by_its_keyword(keyword: str, schema: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked_schema(copy.deepcopy(schema), FIELD)
    assert refused.value.field == FIELD
    assert refused.value.facts["keyword"] == keyword
    assert repr(keyword) in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a": {"type": "strng"}}}, "'type' at /properties/a/type is none of null,"),
        ({"properties": {"a": {"type": "strng"}}}, 'array, object: "strng"'),
        ({"propertis": {}}, "'propertis' at /propertis is not supported"),
        ({"properties": {"a/~b": {"pattern": "("}}}, "'pattern' at /properties/a~1~0b/pattern is"),
        ({"anyOf": [True, {"items": {"minItems": -1}}]}, "at /anyOf/1/items/minItems is no whole"),
        ({"anyOf": [True, {"items": {"minItems": -1}}]}, "0 to 1000000: -1"),
        ({"anyOf": [{"type": "null"}, 7]}, "'anyOf' at /anyOf/1 holds something that is no schema"),
        ({"patternProperties": {"a": {}, "(": {}}}, "at /patternProperties/( is no expression"),
        ({"$defs": {"x": {"enum": []}}, "items": {"$ref": "#/$defs/x"}}, "at /$defs/x/enum is no"),
        ({"items": {"$ref": "#/x"}}, """'$ref' at /items/$ref leads nowhere: "#/x\""""),
        ({"properties": {"\ud800": {"enum": ["\udfff"]}}}, r"at /properties/\ud800/enum holds"),
        ({"properties": {"k" * 999: {"type": "v" * 999}}}, f"k…{'k' * 95}/type is none of"),
        ({"properties": {"k" * 999: {"type": "v" * 999}}}, f'"{"v" * 79}…'),
        ({"items": {"$ref": "#/items"}}, "'$ref' leads back to itself"),
        ({"$schema": "x"}, """'$schema' at /$schema is no draft of json-schema.org: "x\""""),
    ],
)
def test_a_refusal_says_where_and_what(schema: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked_schema(schema, FIELD)
    assert said in refused.value.problem
    assert len(refused.value.problem.encode()) < 600


@pytest.mark.parametrize("schema", [None, 1, "string", []])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match=FIELD):
        checked_schema(schema, FIELD)


def test_too_many_schemas_are_refused() -> None:
    names = map(str, range(10_001))
    many: Any = {"properties": {name: _nested(0) for name in names}}
    with pytest.raises(InvalidRequest, match="more than 10000 schemas"):
        checked_schema(many, FIELD)


def test_annotations_are_left_out_everywhere() -> None:
    noise: dict[str, Any] = dict.fromkeys(ANNOTATIONS, "what it is")
    schema: Any = {**noise, "properties": {"title": {**noise, "type": "string"}}}
    schema |= {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.org"}
    assert checked_schema(schema, FIELD) == {"properties": {"title": {"type": "string"}}}


def test_values_keep_what_would_be_an_annotation() -> None:
    schema = {"enum": [{"title": "a"}], "const": {"description": {"default": 1}}}
    assert checked_schema(copy.deepcopy(schema), FIELD) == schema


def test_a_reference_is_checked_where_it_leads() -> None:
    schema: Any = {"$defs": {"a/b%": {"not": {}}, "unused": {"not": {}}}, "$ref": "#/$defs/a~1b%25"}
    with pytest.raises(InvalidRequest, match=r"'not' at /\$defs/a~1b%/not is not supported"):
        checked_schema(schema, FIELD)


def test_definitions_that_nothing_refers_to_are_not_read() -> None:
    schema: Any = {"$defs": {"unused": {"not": {}}}, "type": "null"}
    assert checked_schema(schema, FIELD) == schema


def test_recursion_that_may_end_is_allowed() -> None:
    tree: Any = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert checked_schema(copy.deepcopy(tree), FIELD) == tree


def test_whole_numbers_may_have_a_point() -> None:
    assert checked_schema({"minItems": 2.0}, FIELD) == {"minItems": 2}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_keeps_the_pattern_beside_it(name: str) -> None:
    schema = checked_schema({"format": name, "pattern": "^2"}, FIELD)
    assert isinstance(schema, dict)
    assert schema["pattern"] == "^2"


_A = {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]}
_B = {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]}
_REFERENCES = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]


@pytest.mark.parametrize(
    ("options", "a", "b", "is_plain"),
    [
        (_REFERENCES, _A, _B, True),
        (_REFERENCES, _A, _A, False),
        (_REFERENCES, _A, {"type": "null"}, True),
        (_REFERENCES, {"type": "number"}, {"type": "integer"}, False),
        (_REFERENCES, {"type": "string"}, {"type": ["number", "null"]}, True),
        (_REFERENCES, {**_A, "required": []}, _B, False),
        (
            _REFERENCES,
            {**_A, "type": ["object", "null"]},
            {**_B, "type": ["object", "null"]},
            False,
        ),
        (_REFERENCES, True, _B, False),
        (_REFERENCES, False, _B, True),
    ],
)
def test_one_of_becomes_any_of_where_no_two_can_hold(
    options: list[Any], a: Any, b: Any, is_plain: bool
) -> None:
    schema = {"type": ["object", "null"], "oneOf": options, "$defs": {"a": a, "b": b}}
    checked = checked_schema(copy.deepcopy(schema), FIELD)
    assert isinstance(checked, dict)
    assert list(checked) == ["type", "anyOf" if is_plain else "oneOf", "$defs"]


def _told_apart(names: list[str]) -> list[Any]:
    return [
        {"type": "object", "properties": {name: {"const": str(at)}}, "required": [name]}
        for at, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("options", "is_plain"),
    [
        (_told_apart(["kind"] * 2000), True),
        ([*_told_apart(["kind"] * 2000), {"type": "null"}, False], True),
        ([*_told_apart(["kind"] * 2000), _A, _A], False),
        (_told_apart(["kind", "sort", "kind"]), False),
        ([True], True),
        ([True, False], True),
    ],
)
def test_many_options_are_told_apart_in_little_time(options: list[Any], is_plain: bool) -> None:
    began_s = time.monotonic()
    checked = checked_schema({"oneOf": copy.deepcopy(options)}, FIELD)
    assert isinstance(checked, dict)
    assert list(checked) == ["anyOf" if is_plain else "oneOf"]
    assert time.monotonic() - began_s < 5.0  # two by two they took minutes


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("is_backward", [False, True])
def test_a_chain_of_references_is_followed_or_refused_in_little_time(
    is_backward: bool, is_mixed: bool
) -> None:
    order = list(range(3000))
    if is_mixed:
        order.sort(key=lambda one: one * 7919 % 3001)
    definitions: dict[str, Any] = {
        str(one): {"$ref": f"#/$defs/{after}"} for one, after in itertools.pairwise(order)
    }
    definitions[str(order[-1])] = {"type": "null"}
    names = sorted(order, reverse=is_backward)
    schema = {"$defs": definitions, "allOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    began_s = time.monotonic()
    with contextlib.suppress(InvalidRequest) if is_mixed else contextlib.nullcontext():
        checked_schema(schema, FIELD)
    assert time.monotonic() - began_s < 5.0


def test_no_keyword_is_enforced_and_refused_at_once() -> None:
    assert not KEYWORDS & {*UNSUPPORTED, *ANNOTATIONS}
