"""Whatever a guide lets through is what was asked for: random schemas, values and answers."""

import json
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bramley.common.errors import InvalidRequest
from bramley.worker.grammar.compiler import Compiled
from bramley.worker.grammar.guide import Guide
from bramley.worker.grammar.vocabulary import Vocabulary
from support.schemas import (
    accepts,
    byte_vocabulary,
    compiled,
    is_valid,
    sample,
    smollm2_vocabulary,
    writings,
)

_NAMES = st.sampled_from(["a", "b", "ab", "é", "x1", 'q"', ""])
_TEXTS = st.sampled_from(["", "a", "b", "ab", "aab", "é", "x1", 'q"\\', "a/b", "line\nbreak", "1"])
_NUMBERS = st.one_of(
    st.integers(-12, 120), st.sampled_from([0.5, -0.25, 2.5, 1e3, 0.1, 12.75, -3.0])
)
_PATTERNS = st.sampled_from(
    ["a", "^a", "b$", "^a+b?$", "^[a-c]{1,2}$", "a|^b", "^$", "[^a]", "é|1"]
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)
    ),
    max_leaves=5,
)
_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
_COUNTS = st.integers(0, 3)


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = _some(
        properties=st.dictionaries(_NAMES, inner, max_size=3),
        patternProperties=st.dictionaries(_PATTERNS, inner, min_size=1, max_size=1),
        additionalProperties=inner,
        required=st.lists(_NAMES, max_size=2, unique=True),
        minProperties=_COUNTS,
        maxProperties=_COUNTS,
    )
    arrays = _some(
        prefixItems=st.lists(inner, min_size=1, max_size=2),
        items=inner,
        minItems=_COUNTS,
        maxItems=_COUNTS,
    )
    several = st.lists(inner, min_size=1, max_size=3)
    combined = _some(allOf=several, anyOf=several, oneOf=several)
    referring = st.just({"$ref": "#/$defs/one"})
    parts = st.lists(
        st.one_of(objects, arrays, combined, referring, _LEAVES), min_size=1, max_size=2
    )
    return parts.map(lambda some: {key: value for part in some for key, value in part.items()})


_TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
_LEAVES = _some(
    type=st.one_of(_TYPES, st.lists(_TYPES, min_size=1, max_size=3, unique=True)),
    const=_VALUES,
    enum=st.lists(_VALUES, min_size=1, max_size=3),
    minimum=_NUMBERS,
    maximum=_NUMBERS,
    exclusiveMinimum=_NUMBERS,
    exclusiveMaximum=_NUMBERS,
    multipleOf=st.sampled_from([1, 2, 3, 0.5, 0.25]),
    minLength=_COUNTS,
    maxLength=_COUNTS,
    pattern=_PATTERNS,
    format=st.sampled_from(["date", "time", "ipv4", "uuid", "email", "hostname"]),
).map(lambda keywords: dict(list(keywords.items())[:3]))


def _whole(root: Any, one: Any) -> Any:
    return {**root, "$defs": {"one": one}}


SCHEMAS: st.SearchStrategy[Any] = st.builds(
    _whole,
    st.recursive(_LEAVES, _schemas, max_leaves=6).filter(lambda made: isinstance(made, dict)),
    st.one_of(_LEAVES, st.booleans()),
)


def _compiled(schema: object, vocabulary: Vocabulary) -> Compiled:
    """Compile, or tell Hypothesis to look for another."""
    try:
        return compiled(json.loads(json.dumps(schema)), vocabulary)
    except InvalidRequest:
        assume(False)
        raise


@settings(max_examples=25, deadline=None, suppress_health_check=_SLOW)
@given(SCHEMAS, st.lists(_VALUES, min_size=1, max_size=8))
def test_a_value_is_let_through_only_if_it_is_valid(schema: object, values: list[Any]) -> None:
    grammar = _compiled(schema, byte_vocabulary())
    for value in values:
        for text in writings(value):
            assert is_valid(schema, text) or not accepts(grammar, text), text


@settings(max_examples=12, deadline=None, suppress_health_check=_SLOW)
@given(SCHEMAS, st.integers(0, 99))
def test_a_random_answer_is_valid(schema: object, seed: int) -> None:
    vocabulary = smollm2_vocabulary()
    guide = Guide(vocabulary, vocabulary.end_ids, _compiled(schema, vocabulary))
    tokens, is_whole = sample(guide, seed, 40)
    if is_whole:
        text = b"".join(map(vocabulary.token_bytes, tokens)).decode()
        assert is_valid(schema, text), text
