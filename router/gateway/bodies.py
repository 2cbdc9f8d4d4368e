"""Bodies of requests to values, as strictly as JSON can be read (pure).

Refused are: what is not UTF-8, a byte order mark, half a surrogate pair, NaN and infinities,
numbers that are too big to be any, an object that has a key twice, a key that is not known.
"""

import json
import math
import re
from collections import Counter
from typing import Any, Never, TypeVar, cast

import msgspec

from bramley.common import choices
from bramley.common.errors import InvalidRequest

BODY = "body"  # the field that is named where it is all of it
_SHOWN = 500  # characters of a path or a problem: both may hold what was sent
_T = TypeVar("_T")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # may be one half of a pair
_LONG = re.compile(r"[0-9]{300}")  # may be a number that is too big
_SURROGATE = re.compile("[\ud800-\udfff]")
_ERROR = re.compile(r"(?P<problem>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)


def decode(body: bytes) -> object:
    """Read a body.

    Returns:
        Plain values.

    Raises:
        InvalidRequest: it is not strictly JSON; names the field, where there is one.
        RecursionError: it is nested too deep.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(BODY, f"byte {error.start} is not UTF-8") from error
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole if _LONG.search(text) else None,
        )
    except ValueError as error:
        raise InvalidRequest(BODY, f"is not JSON: {error}") from error
    if _HALF.search(text):
        _check_text(value, "")
    return value


def convert(value: object, kind: type[_T], at: str = "") -> _T:
    """Make a struct of plain values.

    Args:
        value: them.
        kind: of the struct.
        at: where they stand in the body; empty where they are all of it.

    Returns:
        It.

    Raises:
        InvalidRequest: names the field by its path in the body.
    """
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        found = _ERROR.fullmatch(str(error))
        assert found is not None, "the pattern takes any text"
        path = found["path"] or ""
        problem = choices.told(found["problem"], kind, path)
        if named := _NAMED.fullmatch(problem):
            path = f"{path}.{named[1]}" if path else named[1]
            problem = "is missing" if "missing" in problem else "is not known here"
        place = f"{at}.{path}" if at and path else at or path
        raise InvalidRequest((place or BODY)[:_SHOWN], problem[:_SHOWN]) from error


def as_json(value: object) -> str:
    """Write values down, with the keys in their order."""
    return msgspec.json.encode(value).decode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise InvalidRequest(BODY, f"an object has the key {_shown(twice)} twice")
    return made


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too big a number")
    return value


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def _check_text(value: object, path: str) -> None:
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise InvalidRequest(path or BODY, "holds half a surrogate pair, which is no text")
    elif isinstance(value, list):
        for place, each in enumerate(cast("list[object]", value)):
            _check_text(each, f"{path}[{place}]")
    elif isinstance(value, dict):
        for key, each in cast("dict[str, object]", value).items():
            if _SURROGATE.search(key):
                problem = f"the key {_shown(key)} holds half a surrogate pair, which is no text"
                raise InvalidRequest(path or BODY, problem)
            _check_text(each, f"{path}.{key}" if path else key)


def _shown(key: str) -> str:
    return ascii(key[:100])
