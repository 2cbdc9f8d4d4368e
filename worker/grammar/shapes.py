"""Asks of checked schemas whether what satisfies them ends, and whether they exclude each other.

Pure.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, TypeGuard

Node = dict[str, Any]
Targets = Mapping[int, Node | bool]  # where a node's reference leads, by the node's identity

_PASSES_MAX = 64  # over all schemas, as far as references to each other are out of order
_ALL = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def is_object(value: object) -> TypeGuard[Node]:
    """Say whether parsed JSON is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Say whether parsed JSON is an array."""
    return isinstance(value, list)


def endless(nodes: Collection[Node], targets: Targets) -> bool:
    """Say whether nothing that ends satisfies some schema, as one that requires itself.

    Args:
        nodes: every schema that counts.
        targets: of those with a reference.

    Returns:
        False where each has something that does, and that is found before long.
    """
    ending: set[int] = set()
    left = list(nodes)
    for _ in range(_PASSES_MAX):
        left.reverse()  # so that a chain of references is followed at once, in either order
        still: list[Node] = []
        for node in left:
            if _ends(node, targets, ending):
                ending.add(id(node))
            else:
                still.append(node)
        if not still or len(still) == len(left):
            return bool(still)
        left = still
    return True


def _ends(node: Node, targets: Targets, ending: Collection[int]) -> bool:
    """Say so by what is known already; what is forbidden altogether ends as well."""

    def ends(schema: Node | bool) -> bool:
        return isinstance(schema, bool) or id(schema) in ending

    if "$ref" in node and not ends(targets[id(node)]):
        return False
    if not all(map(ends, node.get("allOf", ()))):
        return False
    if not all(any(map(ends, node[name])) for name in ("anyOf", "oneOf") if name in node):
        return False
    types = types_of(node)
    if types - {"array", "object"} or "const" in node or "enum" in node:
        return True
    return ("array" in types and all(map(ends, _items(node)))) or (
        "object" in types and all(map(ends, _properties(node)))
    )


def _items(node: Node) -> Sequence[Node | bool]:
    """List the schemas of what an array has at the least."""
    first, least = node.get("prefixItems", []), node.get("minItems", 0)
    return [*first[:least], *([node.get("items", True)] if least > len(first) else [])]


def _properties(node: Node) -> Sequence[Node | bool]:
    """List the schemas of what an object has at the least."""
    named, rest = node.get("properties", {}), node.get("additionalProperties", True)
    if "patternProperties" in node:
        rest = True
    return [named.get(name, rest) for name in node.get("required", ())]


def types_of(node: Node) -> frozenset[str]:
    """List the types that a schema allows, as far as it says so itself."""
    if "type" not in node:
        return _ALL
    types: list[str] = node["type"] if is_list(node["type"]) else [node["type"]]
    return frozenset([*types, *(["integer"] if "number" in types else [])])


def disjoint(options: Sequence[Node | bool], targets: Targets) -> bool:
    """Say whether no value can satisfy two of the schemas.

    Returns:
        True where that is plain: no two allow the same type, but for objects that one property
        tells apart.
    """
    followed = [one for one in (_follow(option, targets) for option in options) if one is not False]
    nodes = [one for one in followed if is_object(one)]
    if len(nodes) < len(followed):  # one that allows everything
        return len(followed) == 1
    types = Counter(chain.from_iterable(map(types_of, nodes)))
    objects = [node for node in nodes if "object" in types_of(node)]
    if any(count > 1 for kind, count in types.items() if kind != "object"):
        return False
    if len(objects) < 2:
        return True
    required = set[str].intersection(*(set(node.get("required", ())) for node in objects))
    return any(_tells_apart(name, objects, targets) for name in required)


def _tells_apart(name: str, objects: Sequence[Node], targets: Targets) -> bool:
    seen = set[str]()
    for node in objects:
        tags = _tags(node, name, targets)
        if tags is None or seen & tags:
            return False
        seen |= tags
    return True


def _follow(schema: Node | bool, targets: Targets) -> Node | bool:
    for _ in range(len(targets)):
        if isinstance(schema, bool) or set(schema) != {"$ref"}:
            break
        schema = targets[id(schema)]
    return schema


def _tags(node: Node, name: str, targets: Targets) -> set[str] | None:
    """List the texts that a property may be; None where it may be anything else."""
    schema = _follow(node.get("properties", {}).get(name, True), targets)
    if isinstance(schema, bool):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not values or not all(isinstance(one, str) for one in values):
        return None
    return set(values)
