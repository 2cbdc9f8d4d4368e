"""Grammars of Gemma's calls: a tool's schema as its own notation writes values of it. Pure.

Keys come in the order in which its templates write them, which is the alphabet's. Of an object
that names its properties those alone are written. Numbers are JSON's, with all that a schema says
of them. Of strings length, pattern, enum and const are kept; of lists their items and length.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bramley.common.errors import InvalidRequest
from bramley.worker.grammar.constraint import json_rule
from bramley.worker.reading.events import ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.lark import (
    ended_text,
    grammar,
    listed,
    quoted,
    text_rule,
)
from bramley.worker.reading.tools.xml_arguments import as_list, as_mapping, resolve

# A grammar that writes values one by one cannot hold to these.
_UNWRITABLE = (
    "allOf", "not", "if", "uniqueItems", "contains", "prefixItems", "patternProperties",
    "propertyNames", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties",
)  # fmt: skip
_TYPES = ("string", "number", "boolean", "null", "array", "object")
_KEY = re.compile(r"[^\s:,{}\[\]<>\"][^:,{}\[\]<>\"]*(?<!\s)")


def gemma_grammar(
    delimiter: str,
    markers: tuple[str, str],
    tools: Sequence[ToolSpec],
    terminal: Terminal,
    *,
    many: bool,
) -> str:
    """Write the grammar of calls between two markers, or refuse what no grammar can hold to."""
    rules: dict[str, str] = {}
    opens, closes = map(terminal, markers)
    calls: list[str] = []
    for at, tool in enumerate(tools):
        values = _Values(tool, f"p{at}", rules, delimiter, terminal(delimiter))
        head = quoted(f"call:{tool.name}")
        calls.append(f"{opens} {head} {values.rule({'type': 'object', **tool.schema})} {closes}")
    return grammar("call+" if many else "call", calls, rules)


class _Values:
    """Writes the rules of one tool's values."""

    def __init__(
        self, tool: ToolSpec, prefix: str, rules: dict[str, str], delimiter: str, quote: str
    ) -> None:
        self._tool = tool
        self._prefix = prefix
        self._rules = rules
        self._delimiter = delimiter
        self._quote = quote
        self._known: dict[str, str] = {}

    def rule(self, schema: object) -> str:
        """Write a rule of a schema's values, once where it may refer to itself."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:
            name = self._known[key] = f"{self._prefix}_{len(self._known)}"
            self._rules[name] = ""
            self._rules[name] = " | ".join(self._ways(schema))
        return self._known[key]

    def _ways(self, schema: object) -> list[str]:
        if schema is False:
            raise self._refusal("false")
        here = resolve(schema, self._tool.schema)
        if unwritable := [word for word in _UNWRITABLE if word in here]:
            raise self._refusal(unwritable[0])
        for word in ("anyOf", "oneOf"):
            if word in here:
                rest = {key: value for key, value in here.items() if key != word}
                choices = (resolve(one, self._tool.schema) for one in as_list(here[word]))
                return [self.rule({**rest, **one}) for one in choices]
        if "const" in here or "enum" in here:
            allowed = [here["const"]] if "const" in here else as_list(here["enum"])
            return [self._constant(one) for one in allowed]
        named = here.get("type", _implied(here))
        return [self._typed(kind, here) for kind in ([named] if isinstance(named, str) else named)]

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> str:
        if kind == "string":
            name = f"{self._prefix}_t{len(self._rules)}"
            text = text_rule(schema, self._delimiter, self._tool.name)
            return f"{self._quote} {ended_text(name, text, self._quote, self._rules)}"
        if kind == "array":
            return self._list(schema)
        if kind == "object":
            return self._object(schema)
        name = f"{self._prefix}_j{len(self._rules)}"
        self._rules[name] = json_rule({**schema, "type": kind})
        return name

    def _list(self, schema: Mapping[str, Any]) -> str:
        item = self.rule(schema.get("items", {}))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" ({item} {more}){"" if least else "?"} "]"'

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties = as_mapping(schema.get("properties"))
        required = [str(key) for key in as_list(schema.get("required"))]
        others = schema.get("additionalProperties", True)
        keys = sorted({*properties, *required}, key=lambda key: (key.lower(), key))
        if not keys and others is not False:
            member = f'/[a-zA-Z_][a-zA-Z0-9_]*/ ":" {self.rule({} if others is True else others)}'
            return f'"{{" ({member} ("," {member})*)? "}}"'
        for key in required:
            if not _KEY.fullmatch(key):
                raise self._refusal(f"the key {key!r}")
        members = [
            (f"{quoted(f'{key}:')} {self.rule(properties.get(key, {}))}", key in required)
            for key in keys
            if _KEY.fullmatch(key)
        ]
        return f'"{{" {listed(members, chr(34) + "," + chr(34))} "}}"'

    def _constant(self, value: object) -> str:
        if isinstance(value, str):
            if self._delimiter in value:
                raise self._refusal(self._delimiter)
            return (
                f"{self._quote} {quoted(value)} {self._quote}" if value else f"{self._quote} " * 2
            )
        if members := as_mapping(value):
            items = sorted(members.items(), key=lambda item: item[0].lower())
            pairs = [f"{quoted(f'{key}:')} {self._constant(one)}" for key, one in items]
            return self._joined("{", pairs, "}")
        if parts := as_list(value):
            return self._joined("[", [self._constant(one) for one in parts], "]")
        return quoted(json.dumps(value))

    def _joined(self, opens: str, members: Sequence[str], closes: str) -> str:
        return " ".join([quoted(opens), ' "," '.join(members), quoted(closes)])

    def _refusal(self, what: str) -> InvalidRequest:
        return InvalidRequest("tools", f"{self._tool.name}: {what} cannot be enforced in a call")


def _implied(schema: Mapping[str, Any]) -> Sequence[str]:
    """Name the types of a schema that names none."""
    if "properties" in schema or "required" in schema:
        return ("object",)
    return ("array",) if "items" in schema else _TYPES
