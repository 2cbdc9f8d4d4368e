"""What of JSON Schema is enforced; all else is refused by its keyword. Pure.

Read as draft 2020-12. The library enforces what is let through here, once some of it is written
otherwise: formats that it takes too lightly, and a ``oneOf`` that it cannot see through.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn, cast
from urllib.parse import unquote

from bramley.common.errors import InvalidRequest
from bramley.worker.grammar.faults import expression_fault
from bramley.worker.grammar.places import Place, shown
from bramley.worker.grammar.shapes import Node, disjoint, endless, is_list, is_object

DEPTH_MAX: Final = 50  # schemas inside each other; the library reads 128 brackets
SCHEMAS_MAX: Final = 10_000
COUNT_MAX: Final = 1_000_000
MULTIPLE_MAX: Final = 10_000  # digits of a multiple; its automaton has as many states
EXACT_MAX: Final = 2**53
PLACES_MAX: Final = 22  # 10^22 is the last power of ten that is exact
DIGITS: Final = 15  # of a number that the library reads exactly, whatever they are
LEAST: Final = Decimal("1e-20")  # above zero: numbers.py lets none have more digits
WHOLE_MAX: Final = 10**18  # of multiples: the digits before the point have an end

ANNOTATIONS: Final = frozenset(
    {"$comment", "title", "description", "default", "example", "examples", "deprecated"}
    | {"readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"}
    | {"discriminator"}
)
TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_DRAFT = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/20(19-09|20-12))/schema#?")
_UNWRITABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\ud800-\udfff]")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")

_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_HOUR})"
# What a format is written as. No leap seconds: which minutes have one is in no grammar.
FORMATS: Final[Mapping[str, dict[str, Any]]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "hostname": {"format": "hostname", "maxLength": 253},
    **{name: {"format": name} for name in ("duration", "email", "ipv4", "ipv6", "uri", "uuid")},
}


def checked_schema(schema: object, field: str) -> Node | bool:
    """Check a schema, and write it as the library is to read it.

    Args:
        schema: parsed JSON of the caller's own: it is changed.
        field: where it stands in the request.

    Returns:
        The same, without annotations.

    Raises:
        InvalidRequest: names the field and the keyword, where that stands, and what is wrong.
    """
    if isinstance(schema, bool):
        return schema
    if not is_object(schema):
        raise InvalidRequest(field, "is neither an object nor true or false")
    walk = _Walk(schema, field)
    draft = schema.pop("$schema", None)
    if draft is not None and not (isinstance(draft, str) and _DRAFT.fullmatch(draft)):
        walk.refuse("$schema", "is no draft of json-schema.org", draft, at=Place().at("$schema"))
    schema.pop("$id", None)
    walk.run()
    return schema


class _Walk:
    """Visits every schema that counts: below the root, and where references lead."""

    def __init__(self, root: Node, field: str) -> None:
        self._root = root
        self._field = field
        self._found: dict[int, Node] = {}  # by identity
        self._targets: dict[int, Node | bool] = {}  # of the references in a node
        self._to_visit: list[tuple[Node | bool, Place]] = [(root, Place())]
        self._here: Place | None = None  # of the keyword that is being checked

    def refuse(
        self, keyword: str, problem: str, *values: object, at: Place | None = None
    ) -> NoReturn:
        """Refuse a keyword for what is wrong with it, and with some value of it."""
        place = at or self._here
        said = [f"{keyword!r}", *([f"at {place.pointer()}"] if place else []), problem]
        told = "".join(f": {text}" for text in map(shown, values) if text)
        facts: dict[str, object] = {"keyword": keyword}
        raise InvalidRequest(self._field, " ".join(said) + told, reason="SCHEMA", facts=facts)

    def run(self) -> None:
        while self._to_visit:
            self._visit("$ref", *self._to_visit.pop(), 0)
        self._here = None  # what follows is of no one place
        if endless(self._found.values(), self._targets):
            self.refuse(
                "$ref", "leads back to itself, or too far: nothing that ends is found to satisfy it"
            )
        for node in self._found.values():
            _write_format(node)
            _write_exclusive(node)
            if "multipleOf" in node:
                _bound(node)
            if "oneOf" in node and "anyOf" not in node and disjoint(node["oneOf"], self._targets):
                _rename(node, "oneOf", "anyOf")

    def _visit(self, keyword: str, node: object, place: Place, depth: int) -> None:
        if isinstance(node, bool):
            return
        self._here = place
        if not is_object(node):
            self.refuse(keyword, "holds something that is no schema", node)
        if depth > DEPTH_MAX:
            self.refuse(keyword, f"is nested more than {DEPTH_MAX} deep")
        if id(node) in self._found:
            return
        self._found[id(node)] = node
        if len(self._found) > SCHEMAS_MAX:
            self.refuse(keyword, f"is one of more than {SCHEMAS_MAX} schemas")
        for name in list(node):
            check = _CHECKS.get(name)
            self._here = place.at(name)
            if name in ANNOTATIONS:
                del node[name]
            elif check is not None:
                check(self, name, node, depth + 1)
            else:
                self.refuse(name, "is not supported")

    def schema(self, name: str, node: Node, depth: int) -> None:
        self._visit(name, node[name], self._place(), depth)

    def schemas(self, name: str, node: Node, depth: int) -> None:
        if not is_list(node[name]) or not node[name]:
            self.refuse(name, "is no list of schemas", node[name])
        here = self._place()
        for number, one in enumerate(node[name]):
            self._visit(name, one, here.at(number), depth)

    def schema_map(self, name: str, node: Node, depth: int) -> None:
        if not is_object(node[name]):
            self.refuse(name, "is no object", node[name])
        here = self._place()
        for key, one in node[name].items():
            self._here = here.at(key)
            if name == "patternProperties":
                self._check_regex(name, key)
            self._visit(name, one, self._here, depth)

    def definitions(self, name: str, node: Node, depth: int) -> None:
        """Those that nothing refers to need not be understood."""
        if depth > 1 or not is_object(node[name]):
            self.refuse(name, "belongs to the whole schema, as an object")

    def reference(self, name: str, node: Node, depth: int) -> None:
        target, there = self._resolve(name, node[name])
        self._targets[id(node)] = target
        self._to_visit.append((target, there))

    def _place(self) -> Place:
        assert self._here is not None  # as long as schemas are visited
        return self._here

    def _resolve(self, name: str, pointer: object) -> tuple[Node | bool, Place]:
        if not isinstance(pointer, str) or not re.fullmatch("#(/.*)?", pointer):
            self.refuse(
                name, "does not begin with '#/': nothing outside the schema is read", pointer
            )
        place: object = self._root
        there = Place()
        is_name = False
        for part in unquote(pointer).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            there = there.at(key)
            if key in {"const", "enum"} and not is_name:
                self.refuse(name, "leads to a value", pointer)
            is_name = is_object(place) and key in _MAPS and not is_name
            if is_list(place) and key.isdecimal() and int(key) < len(place):
                place = place[int(key)]
            elif is_object(place) and key in place:
                place = place[key]
            else:
                self.refuse(name, "leads nowhere", pointer)
        if not (isinstance(place, bool) or is_object(place)):
            self.refuse(name, "leads to no schema", pointer)
        return place, there

    def types(self, name: str, node: Node, depth: int) -> None:
        types = node[name] if is_list(node[name]) else [node[name]]
        if not types or any(one not in TYPES for one in types):
            self.refuse(name, f"is none of {', '.join(TYPES)}", node[name])

    def values(self, name: str, node: Node, depth: int) -> None:
        if name == "enum" and not (is_list(node[name]) and node[name]):
            self.refuse(name, "is no list of values", node[name])
        self._check_value(name, node[name], depth)

    def _check_value(self, name: str, value: object, depth: int) -> None:
        if depth > DEPTH_MAX:
            self.refuse(name, f"is nested more than {DEPTH_MAX} deep")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._check_number(name, value)
        if isinstance(value, str) and _UNWRITABLE.search(value):
            self.refuse(name, "holds a control character, or half of one that is two", value)
        if is_list(value):
            for one in value:
                self._check_value(name, one, depth + 1)
        if is_object(value):
            for key, one in value.items():
                self._check_value(name, key, depth)
                self._check_value(name, one, depth + 1)

    def number(self, name: str, node: Node, depth: int) -> None:
        self._check_number(name, node[name])

    def _check_number(self, name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(name, "is no number", value)
        if not abs(value) <= EXACT_MAX:
            self.refuse(name, "is above 2^53, where numbers are not exact", value)
        parts = Decimal(repr(value)).normalize()
        places = max(0, -cast("int", parts.as_tuple().exponent))
        if places > PLACES_MAX or abs(parts.scaleb(places)) > EXACT_MAX:
            self.refuse(name, "has more digits than are read exactly", value)

    def multiple(self, name: str, node: Node, depth: int) -> None:
        self._check_number(name, node[name])
        value = Decimal(repr(node[name])).normalize()
        places = max(0, -cast("int", value.as_tuple().exponent))
        if not 1 <= value.scaleb(places) <= MULTIPLE_MAX:
            self.refuse(name, f"is not from 1 to {MULTIPLE_MAX}, its point left out", node[name])

    def count(self, name: str, node: Node, depth: int) -> None:
        value = node[name]
        if isinstance(value, float) and value.is_integer():
            value = node[name] = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= COUNT_MAX:
            self.refuse(name, f"is no whole number from 0 to {COUNT_MAX}", value)

    def least_properties(self, name: str, node: Node, depth: int) -> None:
        self.count(name, node, depth)
        required = node.get("required")
        named = len(set(required)) if is_list(required) else 0
        if node[name] > named + 1:  # two that are written alike would count as two
            self.refuse(name, "is more than one above what is required by name", node[name])

    def names(self, name: str, node: Node, depth: int) -> None:
        names = node[name]
        if not is_list(names) or not all(isinstance(one, str) for one in names):
            self.refuse(name, "is no list of names", names)
        self._check_value(name, names, depth)

    def pattern(self, name: str, node: Node, depth: int) -> None:
        self._check_regex(name, node[name])

    def _check_regex(self, name: str, regex: object) -> None:
        if not isinstance(regex, str):
            self.refuse(name, "is no text", regex)
        from llguidance import LLMatcher  # noqa: PLC0415 -- as in vocabulary.py

        grammar = LLMatcher.grammar_from_json_schema({"type": "string", "pattern": regex})
        if problem := LLMatcher.validate_grammar(grammar):
            self.refuse(name, f"is no expression that is supported: {expression_fault(problem)}")

    def format(self, name: str, node: Node, depth: int) -> None:
        meant = FORMATS.get(node[name]) if isinstance(node[name], str) else None
        if meant is None:
            self.refuse(name, f"is none of {', '.join(FORMATS)}", node[name])


def _write_format(node: Node) -> None:
    meant = FORMATS.get(node.get("format", ""), {})
    if meant and meant != {"format": node["format"]}:
        del node["format"]
        node["allOf"] = [*node.get("allOf", []), dict(meant)]


def _write_exclusive(node: Node) -> None:
    """Write a whole bound that is exclusive as the next number of 15 digits beyond it.

    The library takes such a bound for inclusive where the other one has the same whole part.
    """
    for name, sign, nearest in (("Minimum", 1, max), ("Maximum", -1, min)):
        value = Decimal(repr(node.get(f"exclusive{name}", 0.5)))
        places = DIGITS - len(str(abs(int(value))))
        if value == int(value) and places > 0:
            del node[f"exclusive{name}"]
            step = Decimal(1).scaleb(-places) if value else LEAST
            beyond = float(value + sign * step)
            node[name.lower()] = nearest(beyond, node.get(name.lower(), beyond))


def _bound(node: Node) -> None:
    """Give multiples bounds where they have none.

    numbers.py could not end them: after no single digit, perhaps, a multiple is whole.
    """
    if not {"minimum", "exclusiveMinimum"} & node.keys():
        node["minimum"] = -WHOLE_MAX
    if not {"maximum", "exclusiveMaximum"} & node.keys():
        node["maximum"] = WHOLE_MAX


def _rename(node: Node, old: str, new: str) -> None:
    """Rename a keyword in its place: the order of keywords is that of properties."""
    entries = [(new if name == old else name, value) for name, value in node.items()]
    node.clear()
    node.update(entries)


_Check = Callable[[_Walk, str, Node, int], None]
_CHECKS: Final[Mapping[str, _Check]] = {
    "$defs": _Walk.definitions,
    "definitions": _Walk.definitions,
    "$ref": _Walk.reference,
    "allOf": _Walk.schemas,
    "anyOf": _Walk.schemas,
    "oneOf": _Walk.schemas,
    "const": _Walk.values,
    "enum": _Walk.values,
    "type": _Walk.types,
    "minLength": _Walk.count,
    "maxLength": _Walk.count,
    "pattern": _Walk.pattern,
    "format": _Walk.format,
    "minimum": _Walk.number,
    "maximum": _Walk.number,
    "exclusiveMinimum": _Walk.number,
    "exclusiveMaximum": _Walk.number,
    "multipleOf": _Walk.multiple,
    "prefixItems": _Walk.schemas,
    "items": _Walk.schema,
    "minItems": _Walk.count,
    "maxItems": _Walk.count,
    "properties": _Walk.schema_map,
    "patternProperties": _Walk.schema_map,
    "additionalProperties": _Walk.schema,
    "required": _Walk.names,
    "minProperties": _Walk.least_properties,
    "maxProperties": _Walk.count,
}
KEYWORDS: Final = frozenset(_CHECKS)
