"""Names the field of a message that cannot hold what a caller gave for it."""

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

from bramley.common.errors import InvalidRequest

_OUT_OF_RANGE = re.compile(r"^Value out of range: (.*)$")
_SHOWN = 100  # characters of a value that is none


@contextmanager
def field(path: str) -> Generator[None]:
    """Name the field that cannot hold what is assigned to it in the block."""
    try:
        yield
    except KeyError as error:
        raise InvalidRequest(path, f"lacks {error}") from error
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        problem = _OUT_OF_RANGE.sub(r"\1 is out of its range", str(error))
        raise InvalidRequest(path, problem) from error


def mapping(value: object, path: str) -> Mapping[str, Any]:
    """Take a value that has keys.

    Returns:
        It.

    Raises:
        InvalidRequest: it has none; names its field.
    """
    if not isinstance(value, Mapping):
        raise InvalidRequest(path, f"{_shown(value)} is no mapping")
    return cast("Mapping[str, Any]", value)


def items(value: object, path: str) -> Iterable[Any]:
    """Take a list, or whatever else can be gone through and is no text and no mapping.

    Returns:
        It.

    Raises:
        InvalidRequest: it is none; names its field.
    """
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    if not is_list:
        raise InvalidRequest(path, f"{_shown(cast('object', value))} is no list")
    return cast("Iterable[Any]", value)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
