"""What type a parameter has whose value is written as bare text, and its value as JSON. Pure.

The rules (docs/tools.md has them in words):

- a schema that allows strings alone: the text is the string, whatever it looks like;
- otherwise the text is read as JSON, then as Python would write the value, and taken if its type is
  one that the schema allows;
- a text that fits no allowed type is passed on as a string, exactly as it was written;
- where nothing says a type, the text is JSON if it reads as JSON, and a string if not.
"""

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

Kinds = frozenset[str]

ANY: Kinds = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
STRING: Kinds = frozenset({"string"})

_DEEPEST = 16  # references and choices inside each other, at the most
_LONGEST_LITERAL = 1 << 16  # characters of a value in Python's writing, at the most
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def as_mapping(value: object) -> Mapping[str, Any]:
    """Take a part of a schema for an object; an empty one where it is none."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: object) -> Sequence[Any]:
    """Take a part of a schema for a list; an empty one where it is none."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def resolve(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a schema's reference into its own root; an empty schema where it leads nowhere."""
    here = as_mapping(schema)
    for _ in range(_DEEPEST):
        reference = here.get("$ref")
        if not isinstance(reference, str):
            return here
        target: object = root if reference.startswith("#") else {}
        for step in reference.removeprefix("#").strip("/").split("/"):
            if step:
                target = as_mapping(target).get(step.replace("~1", "/").replace("~0", "~"))
        here = as_mapping(target)
    return {}


def kinds_of(schema: object, root: Mapping[str, Any]) -> Kinds:
    """Tell which JSON types a schema allows: ANY where it does not say."""
    return _kinds(schema, root, 0, {})


def kinds_of_parameter(key: str, root: object) -> Kinds:
    """Tell which JSON types a parameter of a call may have, by the schema of them all."""
    whole = as_mapping(root)
    properties = as_mapping(resolve(whole, whole).get("properties"))
    return kinds_of(properties[key], whole) if key in properties else ANY


def _kinds(schema: object, root: Mapping[str, Any], depth: int, known: dict[int, Kinds]) -> Kinds:
    """Ask each schema once, however often it is referred to: they may do so exponentially."""
    here = resolve(schema, root)
    if not here or depth > _DEEPEST:
        return ANY
    if id(here) in known:
        return known[id(here)]
    known[id(here)] = ANY  # for itself, if it refers to itself
    kinds = _named(here.get("type")) & _of_values(here)
    for word in ("anyOf", "oneOf"):
        if choices := as_list(here.get(word)):
            each = [_kinds(one, root, depth + 1, known) for one in choices]
            kinds &= frozenset[str]().union(*each)
    for part in as_list(here.get("allOf")):
        kinds &= _kinds(part, root, depth + 1, known)
    known[id(here)] = kinds or ANY
    return known[id(here)]


def _named(named: object) -> Kinds:
    names = {named} if isinstance(named, str) else set(as_list(named))
    if "number" in names:
        names.add("integer")
    return frozenset(names & ANY) or ANY


def _of_values(schema: Mapping[str, Any]) -> Kinds:
    values = [schema["const"]] if "const" in schema else as_list(schema.get("enum"))
    return frozenset(kind_of(value) for value in values) or ANY


def kind_of(value: object) -> str:
    """Tell a value's JSON type; a whole number is an integer however it is written."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == value // 1 else "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def typed(text: str, kinds: Kinds) -> str:
    """Write a parameter's text as a JSON value of an allowed type; see the rules above."""
    if kinds == STRING:
        return quoted(text)
    stripped = text.strip()
    if (kind := _number_kind(stripped)) and kind in kinds:
        return stripped  # as it is: no digit is lost, and none is too many
    for read in (_json, _word, _number, _literal):
        try:
            value = read(stripped, kinds)
            kind = kind_of(value)
            if kind in kinds and (kind != "string" or kinds == ANY):
                is_whole = isinstance(value, float) and "number" not in kinds
                return dumped(int(cast("float", value)) if is_whole else value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError):
            continue
    return quoted(text)


def quoted(text: str) -> str:
    """Write a string as JSON."""
    return f'"{escaped(text)}"'


def escaped(text: str) -> str:
    """Write a part of a string as it stands between JSON's quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def dumped(value: object) -> str:
    """Write a value as JSON, half a surrogate pair as its escape.

    Returns:
        Text that can be encoded.

    Raises:
        ValueError: JSON has no such number.
        TypeError: JSON has no such value.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.dumps(value) if _SURROGATE.search(text) else text


def _number_kind(text: str) -> str:
    """Tell which type of number a text is as JSON writes them; empty where it is none."""
    found = _JSON_NUMBER.fullmatch(text)
    if not found:
        return ""
    return "number" if found[1] or found[2] else "integer"


def _json(text: str, _: Kinds) -> object:
    return json.loads(text, strict=False, parse_constant=_refuse)


def _word(text: str, kinds: Kinds) -> object:
    if (word := text.lower()) not in _WORDS or kinds == ANY:
        raise ValueError(text)
    return _WORDS[word]


def _number(text: str, kinds: Kinds) -> object:
    if not _NUMBER.fullmatch(text) or kinds == ANY:
        raise ValueError(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return int(text) if text.lstrip("+-").isdecimal() else number


def _literal(text: str, kinds: Kinds) -> object:
    if text[:1] not in {"[", "{", "("} or len(text) > _LONGEST_LITERAL or kinds == ANY:
        raise ValueError(text)
    value: object = ast.literal_eval(text)
    if not isinstance(value, dict | list | tuple):
        raise TypeError(text)
    return cast("object", value)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
