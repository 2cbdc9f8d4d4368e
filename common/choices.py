"""Says what a text may be, where msgspec says no more than that it is none of those (pure)."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from msgspec import inspect

_SHOWN = 100  # characters of what somebody sent
_NONE_OF_THEM = re.compile(r"Invalid (?:enum )?value (?P<shown>['\"].*)", re.DOTALL)
_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
_SEQUENCES = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


def told(problem: str, kind: type[Any], path: str) -> str:
    """Add to what msgspec says of a text which ones there are.

    Args:
        problem: in msgspec's words, without the path.
        kind: of the whole value.
        path: of the text in it, as msgspec has it: ``tools[0].type``.

    Returns:
        The problem, as it was where it is of another kind.
    """
    found = _NONE_OF_THEM.fullmatch(problem)
    names = list(dict.fromkeys(_names(_info(kind), _STEP.findall(path)))) if found else []
    if found is None or not names:
        return problem
    return _said(found["shown"], names)


def none_of(value: object, names: Sequence[str]) -> str:
    """Say that a value is none of the names that there are."""
    return _said(repr(value), names)


def _said(shown: str, names: Sequence[str]) -> str:
    cut = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return f"{cut} is none of {', '.join(names)}"


@cache
def _info(kind: type[Any]) -> inspect.Type:
    return inspect.type_info(kind)


def _names(node: inspect.Type, steps: Sequence[str]) -> Iterator[str]:
    match node:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _names(each, steps)
        case inspect.LiteralType(values=values) if not steps:
            yield from (str(value) for value in values)
        case inspect.StructType(tag_field=tag_field, tag=tag) if steps == [tag_field]:
            yield str(tag)
        case inspect.StructType(fields=fields) if steps:
            for field in fields:
                if field.encode_name == steps[0]:
                    yield from _names(field.type, steps[1:])
        case inspect.DictType(value_type=inner) if steps:
            yield from _names(inner, steps[1:])
        case _ if steps and isinstance(node, _SEQUENCES):
            yield from _names(node.item_type, steps[1:])
        case _:
            pass
