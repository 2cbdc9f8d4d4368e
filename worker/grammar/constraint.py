"""From a request's constraint to the text of a grammar; how JSON is written in any. Pure.

White space in JSON: at each place where JSON allows any, at most one line break with 64 spaces
or tabs after it, or four spaces or tabs; none before the value and none after it. So an answer
ends with its last brace, and no place is endless.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import types_pb2
from bramley.worker.grammar.schema import checked_schema

TEXT_MAX: Final = 1 << 20  # characters of a constraint
CHOICES_MAX: Final = 10_000

WHITE_SPACE: Final = r"\r?\n[ \t]{0,64}|[ \t]{1,4}"
# One way only to write each character: a name that is another's in disguise cannot be written.
ESCAPES: Final = 'nrbtf\\"'

# Forced texts are not cut into tokens for the model: it may spell them as it likes.
OPTIONS: Final = '%llguidance {"no_forcing": true}\n'


def to_lark(constraint: types_pb2.Constraint) -> str:
    """Write a constraint as a Lark grammar.

    Returns:
        The grammar; its first rule is ``start``.

    Raises:
        InvalidRequest: names the field, and of a schema the keyword.
    """
    match constraint.WhichOneof("constraint"):
        case "json_schema":
            return _of_schema(_bounded("json_schema", constraint.json_schema))
        case "json_object":
            if not constraint.json_object:
                raise InvalidRequest("constraint.json_object", "is false: leave it out instead")
            return _start(json_rule({"type": "object"}))
        case "regex":
            regex = _bounded("regex", constraint.regex)
            return _start("/" + _slashed(regex) + "/") if regex else _start('""')
        case "grammar":
            return _bounded("grammar", constraint.grammar)
        case "choice":
            return _of_choices(list(constraint.choice.values))
        case _:
            raise InvalidRequest("constraint", "is empty")


def json_rule(schema: Mapping[str, Any] | bool) -> str:
    """Write JSON by a checked schema as the body of a Lark rule."""
    options = {"whitespace_pattern": WHITE_SPACE, "json_allowed_escapes": ESCAPES}
    node: Mapping[str, Any] = {"allOf": [schema]} if isinstance(schema, bool) else schema
    return "%json " + json.dumps({"x-guidance": options, **node})


def _of_schema(text: str) -> str:
    field = "constraint.json_schema"
    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidRequest(field, "is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(field, f"is no JSON: {error}") from None
    return _start(json_rule(checked_schema(schema, field)))


def _of_choices(values: list[str]) -> str:
    field = "constraint.choice.values"
    if not 1 <= len(values) <= CHOICES_MAX:
        raise InvalidRequest(field, f"{len(values)} are not from 1 to {CHOICES_MAX}")
    if not all(values):
        raise InvalidRequest(field, "one is empty")
    _bounded("choice.values", "".join(values))
    return _start("CHOICE") + "CHOICE: " + " | ".join(map(json.dumps, dict.fromkeys(values)))


def _start(rule: str) -> str:
    return f"start: {rule}\n"


def _slashed(regex: str) -> str:
    """Write a regex between slashes: a slash that has no backslash before it gets one."""
    out: list[str] = []
    is_escaped = False
    for character in regex:
        if character == "/" and not is_escaped:
            out.append("\\/")
        else:
            out.append("\\n" if character == "\n" and not is_escaped else character)
        is_escaped = character == "\\" and not is_escaped
    return "".join(out)


def _bounded(name: str, text: str) -> str:
    if len(text) > TEXT_MAX:
        raise InvalidRequest(f"constraint.{name}", f"{len(text)} characters exceed {TEXT_MAX}")
    return text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
