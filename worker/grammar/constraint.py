"""From a request's constraint to the text of a grammar; how JSON is written in any. Pure.

White space in JSON: at each place where JSON allows any, at most one line break with 64 spaces
or tabs after it, or four spaces or tabs; none before the value and none after it. So an answer
ends with its last brace, and no place is endless.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from bramley.common import bounds
from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import types_pb2
from bramley.worker.grammar.schema import checked_schema

JSON: Final = frozenset({"json_schema", "json_object"})  # constraints whose content is JSON

WHITE_SPACE: Final = r"\r?\n[ \t]{0,64}|[ \t]{1,4}"
# One way only to write each character: a name that is another's in disguise cannot be written.
ESCAPES: Final = 'nrbtf\\"'

# Forced texts are not cut into tokens for the model: it may spell them as it likes.
OPTIONS: Final = '%llguidance {"no_forcing": true}\n'


def to_lark(constraint: types_pb2.Constraint, *, drops_blank: bool = False) -> str:
    """Write a constraint as a Lark grammar.

    Args:
        constraint: with one of its fields.
        drops_blank: a blank that an answer begins with is not told: so one may come first, and
            has to before a text that begins with one.

    Returns:
        The grammar; its first rule is ``start``.

    Raises:
        InvalidRequest: names the field, and of a schema the keyword.
    """
    bounds.check(constraint, "constraint")
    match constraint.WhichOneof("constraint"):
        case "json_schema":
            return _json(_schema(constraint.json_schema), drops_blank)
        case "json_object":
            if not constraint.json_object:
                raise InvalidRequest("constraint.json_object", "is false: leave it out instead")
            return _json({"type": "object"}, drops_blank)
        case "regex":
            return _text("/" + _slashed(constraint.regex) + "/", drops_blank)
        case "grammar":
            return _BLANK_FIRST.format(constraint.grammar) if drops_blank else constraint.grammar
        case "choice":
            values = list(constraint.choice.values)
            if not values:
                raise InvalidRequest("constraint.choice.values", "has none")
            return _text(" | ".join(map(json.dumps, dict.fromkeys(values))), drops_blank)
        case _:
            raise InvalidRequest("constraint", "is empty")


def own_lines(lark: str, *, drops_blank: bool) -> range:
    """Tell which lines of a grammar, from 1, are those of the constraint that it was made of."""
    before, _, after = _BLANK_FIRST.partition("{}") if drops_blank else ("", "", "")
    return range(1 + before.count("\n"), 2 + lark.count("\n") - after.count("\n"))


def json_rule(schema: Mapping[str, Any] | bool) -> str:
    """Write JSON by a checked schema as the body of a Lark rule."""
    options = {"whitespace_pattern": WHITE_SPACE, "json_allowed_escapes": ESCAPES}
    node: Mapping[str, Any] = {"allOf": [schema]} if isinstance(schema, bool) else schema
    return "%json " + json.dumps({"x-guidance": options, **node})


def _schema(text: str) -> Mapping[str, Any] | bool:
    field = "constraint.json_schema"
    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidRequest(field, "is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(field, f"is no JSON: {error}") from None
    return checked_schema(schema, field)


def _json(schema: Mapping[str, Any] | bool, drops_blank: bool) -> str:
    if not drops_blank:
        return f"start: {json_rule(schema)}\n"
    return f'start: " "? value\nvalue: {json_rule(schema)}\n'  # which begins with no blank


def _text(terminal: str, drops_blank: bool) -> str:
    if not drops_blank:
        return f"start: TEXT\nTEXT: {terminal}\n"
    return f'start: TOLD\nTOLD: " " TEXT | (TEXT & /([^ ](?s:.*))?/)\nTEXT: {terminal}\n'


# A grammar may begin with a blank or not: to tell them apart there is always one before it.
_BLANK_FIRST = """start: " " content
content: %lark {{
{}
}}
"""


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
    if is_escaped:
        raise InvalidRequest("constraint.regex", "ends with a backslash, and nothing behind it")
    return "".join(out)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
