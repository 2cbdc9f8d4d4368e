"""Texts of parameters, and the values that their schemas make of them."""

from typing import Any

from bramley.worker.reading.events import ToolSpec

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
# Where mlx-lm has another value, or raises. Why ours is as it is:
# - "null" for a string is that word, as its schema says;
# - what fits no type of its schema is a string (there: another type, a false, an error);
# - schemas of references and choices are understood;
# - what has no schema is JSON if it can be (there: always a string, in three formats);
# - values as Python writes them are understood (there: not by muse_spark);
# - numbers that JSON does not know are none.
_ALL_DIFFER = {("integer", "12.5"), ("number", "NaN"), ("object", "[1]")}
_UNTYPED = {("untyped", "5"), ("untyped", '"5"'), ("unknown", "[1, 2]"), ("referred", "5")}
_INVOKED = _ALL_DIFFER | _UNTYPED | {("string", "null"), ("number", "1e3"), ("integer", "12.0")}
_DECODED = {
    ("either", '"12"'),
    ("words", "true"),
    ("words", "12"),
    ("integer", "12.0"),
    ("object", '{"a": "b\nc"}'),
}
DIFFERENCES: dict[str, set[tuple[str, str]]] = {
    "qwen3_coder": _ALL_DIFFER
    | _UNTYPED
    | {
        ("string", "null"),
        ("integer", "a dozen"),
        ("number", "1e3"),
        ("boolean", "maybe"),
        ("either", "12"),
        ("listed", "1"),
        ("listed", "true"),
    },
    "glm47": _ALL_DIFFER | _DECODED | {("untyped", "None")},
    "minimax_m2": _INVOKED,
    "minicpm5": _INVOKED,
    "muse_spark": _ALL_DIFFER
    | _DECODED
    | {
        ("string", "12"),
        ("string", "null"),
        ("string", "[1]"),
        ("number", ".5"),
        ("boolean", "False"),
        ("null", "None"),
        ("array", "['a', True]"),
        ("object", "{'a': None}"),
    },
}
DIFFERENCES["laguna"] = DIFFERENCES["glm47"]
