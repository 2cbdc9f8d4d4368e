"""Pieces of Lark grammars (llguidance's) that formats of tool calls are made of. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

# One space at the most where JSON may have any: a model cannot go on in white space for ever.
_SPACING: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}


def quoted(text: str) -> str:
    """Write a text as a grammar has it."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any], **options: object) -> str:
    """Write what JSON by a whole schema is; options are llguidance's ``x-guidance``."""
    asked: Mapping[str, Any] = schema.get("x-guidance", {})
    return "%json " + json.dumps({**schema, "x-guidance": {**_SPACING, **options, **asked}})


def arguments_rule(schema: Mapping[str, Any]) -> str:
    """Write what a tool's arguments as JSON are: an object, if its schema says so or not."""
    return json_rule({"type": "object", **schema})


def grammar(start: str, choices: Sequence[str], rules: Mapping[str, str]) -> str:
    """Put a grammar together: ``call`` in the first rule stands for any of the choices."""
    lines = [f"start: {start}", "call: " + " | ".join(choices)]
    return "\n".join([*lines, *(f"{name}: {body}" for name, body in rules.items())]) + "\n"
