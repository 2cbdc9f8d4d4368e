"""Grammars of calls whose parameters are written one by one between markers. Pure.

A string is any text without the marker that would end it, as far as its schema says no more
(``enum``, ``const``, ``minLength``, ``maxLength``, ``pattern``); every other value is JSON by its
schema. Where a schema allows both, a string may not begin as a value of another allowed type does,
since it would be read as that.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bramley.common.errors import InvalidRequest
from bramley.worker.grammar.constraint import json_rule
from bramley.worker.reading.events import ToolSpec
from bramley.worker.reading.tools import lark
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.xml_arguments import (
    ANY,
    STRING,
    Kinds,
    as_list,
    as_mapping,
    kind_of,
    kinds_of,
    quoted,
    resolve,
    typed,
)

# Of a tool's whole schema: they bind parameters to each other, and a grammar writes each by itself.
_BINDING = (
    "anyOf", "oneOf", "allOf", "not", "if", "dependentRequired", "dependentSchemas",
    "minProperties", "maxProperties",
)  # fmt: skip
# Of a string: a grammar of bare text knows no such rule.
_UNWRITABLE = ("not", "if", "allOf")
_LEAVES_MAX = 256  # alternatives of one parameter
_LEAF_DEPTH = 8  # of alternatives inside each other; what is deeper is written as JSON
# What the beginning of a value looks like, by its type, as readers take it.
_BEGINNINGS = {
    "array": r"[\[(]",
    "object": r"\{",
    "number": r"[-+.0-9]",
    "integer": r"[-+.0-9]",
    "boolean": r"[TtFf]",
    "null": r"[Nn]",
}


def _the_same(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Layout:
    r"""How a format writes calls: what its model's template writes for them.

    ``{name}``, ``{key}`` and ``{type}`` stand for a call's name, a parameter's, and its JSON type;
    ``{index}`` for a call's number, from 1: any number where there may be several calls.

    Attributes:
        call: up to the first parameter.
        parameter: up to its value.
        parameter_end: from the value on; it has a marker, which no string may have.
        call_end: from the last parameter on.
        run: what stands before the first call and after the last.
        between: what stands between two calls.
        named: writes a name so that it may stand in its place.
        wrap: markers that may stand around a value, and do around a string that has one of
            ``unsafe``'s characters: it may then have any text but the second of them.
        unsafe: characters of a regular expression's class.
    """

    call: str
    parameter: str
    parameter_end: str
    call_end: str
    run: tuple[str, str] = ("", "")
    between: str = ""
    named: Callable[[str], str] = _the_same
    wrap: tuple[str, str] = ("", "")
    unsafe: str = ""


def calls_grammar(
    layout: Layout,
    markers: frozenset[str],
    tools: Sequence[ToolSpec],
    terminal: Terminal,
    *,
    many: bool,
) -> str:
    """Write the grammar of calls in a layout.

    Returns:
        The grammar's text.

    Raises:
        InvalidRequest: a tool's schema has a rule that the format cannot enforce.
    """
    spelling = _Spelling(markers, terminal)
    rules: dict[str, str] = {}
    calls = [_call(layout, tool, f"p{at}", rules, spelling) for at, tool in enumerate(tools)]
    if "{index}" in layout.call:
        rules["INDEX"] = "/[1-9][0-9]{0,2}/" if many else '"1"'
    parts = [
        spelling.of(layout.run[0]),
        "call",
        f"({spelling.of(layout.between)} call)*" if many else "",
        spelling.of(layout.run[1]),
    ]
    return lark.grammar(" ".join(filter(None, parts)), calls, rules)


class _Spelling:
    """Writes text as a grammar has it, its markers as terminals."""

    def __init__(self, markers: frozenset[str], terminal: Terminal) -> None:
        longest_first = sorted(markers, key=len, reverse=True)
        self._parts = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._markers = markers
        self._terminal = terminal

    def of(self, text: str) -> str:
        pieces = [piece for piece in self._parts.split(text) if piece]
        return " ".join(
            self._terminal(one) if one in self._markers else lark.quoted(one) for one in pieces
        )

    def at_marker(self, text: str) -> tuple[str, str, str]:
        """Part a text at its first marker."""
        before, marker, _ = self._parts.split(text, maxsplit=1)
        return before, marker, text[len(before) + len(marker) :]

    def is_text(self, marker: str) -> bool:
        """Tell whether a marker is written as text, and not as a special token."""
        return self._terminal(marker).startswith('"')


def _call(
    layout: Layout, tool: ToolSpec, prefix: str, rules: dict[str, str], spelling: _Spelling
) -> str:
    root = tool.schema
    top = resolve(root, root)
    if bound := [word for word in _BINDING if word in top]:
        raise InvalidRequest("tools", f"{tool.name}: {bound[0]} cannot be enforced in a call")
    properties = as_mapping(top.get("properties"))
    required = [str(key) for key in as_list(top.get("required"))]
    parts = layout.call.split("{index}")
    body = [
        " INDEX ".join(spelling.of(one.replace("{name}", layout.named(tool.name))) for one in parts)
    ]
    undescribed = [key for key in required if key not in properties]
    rest = spelling.of(spelling.at_marker(layout.parameter_end)[2])
    for number, key in enumerate([*properties, *undescribed]):
        rule = f"{prefix}_{number}"
        values = _Values(layout, f"{tool.name}.{key}", rule, rules, spelling)
        head = layout.parameter.replace("{key}", layout.named(key))
        written = [
            f"{spelling.of(head.replace('{type}', kind))} {value}"
            for kind, value in values.of(properties.get(key, {}), root)
        ]
        rules[rule] = f"({' | '.join(written)}) {rest}".rstrip()
        body.append(rule if key in required else f"{rule}?")
    body.append(spelling.of(layout.call_end))
    return " ".join(body)


class _Values:
    """Writes the rules of one parameter's value, each with the marker that ends it."""

    def __init__(
        self, layout: Layout, path: str, rule: str, rules: dict[str, str], spelling: _Spelling
    ) -> None:
        self._layout = layout
        self._path = path
        self._rule = rule
        self._rules = rules
        self._spelling = spelling
        self._before, self._marker, _ = spelling.at_marker(layout.parameter_end)

    def of(self, schema: object, root: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Write each way to write a value: its JSON type, and its text in the grammar."""
        kinds = kinds_of(schema, root)
        ways: list[tuple[str, str]] = []
        end = self._spelling.of(self._before + self._marker)
        for leaf in _leaves(schema, root, self._path):
            own = kinds_of(leaf, root)
            if "string" in own and kinds != ANY:
                ways += [("string", way) for way in self._string(leaf, kinds)]
            if own != STRING:
                name = f"{self._rule}_{len(ways)}"
                narrow = _without_strings(leaf, own, root, kinds)
                self._rules[name] = json_rule(_guarded(narrow, _pattern_without(self._marker)))
                kind = _type_of(own if kinds == ANY else own - STRING)
                ways.append((kind, f"{self._wrapped(name)} {end}"))
        if not ways:
            raise InvalidRequest("tools", f"{self._path}: no value of it can be written")
        return ways

    def _wrapped(self, name: str) -> str:
        opens, closes = map(lark.quoted, self._layout.wrap)
        return f"({name} | {opens} {name} {closes})" if self._layout.wrap[0] else name

    def _string(self, leaf: Mapping[str, Any], kinds: Kinds) -> list[str]:
        if bound := [word for word in _UNWRITABLE if word in leaf]:
            raise InvalidRequest(
                "tools", f"{self._path}: {bound[0]} cannot be enforced in a string"
            )
        values = [leaf["const"]] if "const" in leaf else as_list(leaf.get("enum"))
        if values:
            texts = [value for value in values if isinstance(value, str)]
            return [way for text in texts for way in self._literal(text, kinds)]
        begins = [f"~/\\s*{_BEGINNINGS[kind]}(?s:.*)/" for kind in sorted(kinds - STRING)]
        (opens, closes), end = self._layout.wrap, self._before + self._marker
        text = [lark.text_rule(leaf, self._marker, self._path), *begins]
        if not opens:
            return [self._until(end, text)]
        plain = self._until(end, [*text, f"/[^{self._layout.unsafe}]*/"])
        wrapped = self._until(closes, [lark.text_rule(leaf, closes, self._path), *begins])
        return [plain, f"{lark.quoted(opens)} {wrapped} {self._spelling.of(end)}"]

    def _literal(self, text: str, kinds: Kinds) -> list[str]:
        """Write a string of a list; nothing where it would be read as something else."""
        (opens, closes), end = self._layout.wrap, self._marker
        written = text
        if opens and re.search(f"[{self._layout.unsafe}]", text):
            written, end = opens + text + closes, closes
        if typed(text, kinds) != quoted(text) or end in text:
            return []
        return [self._spelling.of(written + self._before + self._marker)]

    def _until(self, end: str, terms: Sequence[str]) -> str:
        """Write a rule of text up to its end, and the end."""
        name, text = f"t{len(self._rules)}", " & ".join(terms)
        before, marker = end.removesuffix(self._marker), self._marker
        if not end.endswith(marker) or self._spelling.is_text(marker):
            return lark.ended_text(name, text, lark.quoted(end), self._rules)
        text = f"({text}) {lark.quoted(before)}" if before else text
        return lark.ended_text(name, text, self._spelling.of(marker), self._rules)


def _leaves(schema: object, root: Mapping[str, Any], path: str) -> list[Mapping[str, Any]]:
    """List a schema's alternatives, those inside each other too."""
    leaves: list[Mapping[str, Any]] = []
    to_visit: list[tuple[object, int]] = [(schema, 0)]
    while to_visit:
        one, depth = to_visit.pop()
        here = resolve(one, root)
        word = next((word for word in ("anyOf", "oneOf") if as_list(here.get(word))), None)
        if word is None or depth == _LEAF_DEPTH:
            leaves.append(here)
        else:
            others = {key: value for key, value in here.items() if key != word}
            choices = [{**others, **resolve(choice, root)} for choice in as_list(here[word])]
            to_visit += [(choice, depth + 1) for choice in reversed(choices)]
        if len(leaves) + len(to_visit) > _LEAVES_MAX:
            raise InvalidRequest("tools", f"{path}: has more than {_LEAVES_MAX} alternatives")
    return leaves


def _without_strings(
    leaf: Mapping[str, Any], own: Kinds, root: Mapping[str, Any], kinds: Kinds
) -> Mapping[str, Any]:
    """Narrow a schema to what is written as JSON, and give it what it refers to."""
    narrow = dict(leaf)
    if kinds != ANY and "string" in own:
        narrow["type"] = sorted(own - STRING)
        if "enum" in leaf:
            narrow["enum"] = [one for one in as_list(leaf["enum"]) if kind_of(one) != "string"]
    definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
    return {**definitions, **narrow}


def _type_of(kinds: Kinds) -> str:
    """Name the type of a value that may have several."""
    if kinds <= {"integer", "number"}:
        return "number"
    return next(iter(sorted(kinds))) if len(kinds) == 1 else "object"


# Where a schema has other schemas: by name, in a list, or alone.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_ALONE = ("items", "additionalProperties")
# Of a string that is already kept to something.
_KEPT = ("pattern", "enum", "const", "format")


def _guarded(schema: object, pattern: str, depth: int = 0) -> dict[str, Any]:
    """Keep the strings inside a value free of the marker that ends the value."""
    made = dict(as_mapping(schema))
    if depth > 32:
        return made
    for word in _NAMED:
        if named := as_mapping(made.get(word)):
            made[word] = {key: _inner(one, pattern, depth) for key, one in named.items()}
    for word in _LISTED:
        if listed := as_list(made.get(word)):
            made[word] = [_inner(one, pattern, depth) for one in listed]
    for word in _ALONE:
        if word in made:
            made[word] = _inner(made[word], pattern, depth)
    kind = made.get("type")
    if (kind == "string" or "string" in as_list(kind)) and not any(one in made for one in _KEPT):
        made["pattern"] = pattern
    return made


def _inner(schema: object, pattern: str, depth: int) -> object:
    return schema if isinstance(schema, bool) else _guarded(schema, pattern, depth + 1)


def _pattern_without(marker: str) -> str:
    """Write what has no such text in it; its first character stands in it once.

    Returns:
        A pattern: every beginning of the marker is followed by another beginning, or by what does
        not go on with it.
    """
    first = re.escape(marker[0])
    begun = [re.escape(marker[:size]) for size in range(1, len(marker))]
    begins = f"(?:{'|'.join(reversed(begun))})*"
    other = "|".join(
        f"{text}[^{first}{re.escape(marker[size])}]" for size, text in enumerate(begun, 1)
    )
    return f"^(?:[^{first}]|{begins}(?:{other}))*{begins}$"
