"""Strict settings: TOML into msgspec structs, every fault with the path of its key."""

import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from bramley.common import choices
from bramley.common.errors import SettingsError

S = TypeVar("S", bound=msgspec.Struct)
_PATH_IN_MESSAGE = re.compile(r" - at `\$?\.?(?P<path>[^`]*)`$")
_FIELD_IN_MESSAGE = re.compile(r"^Object (?P<fault>.*) field `(?P<name>[^`]*)`$")
_WHOLE_MAX = 1 << 53  # what JSON carries everywhere; 64 of them still fit a field of the protocol
_FAULTS = {"contains unknown": "is no setting", "missing required": "is missing"}


def load(path: Path | None, kind: type[S], overrides: Sequence[str] = ()) -> S:
    """Read ``path`` as a ``kind``; ``overrides`` are ``dotted.key=value`` in TOML's syntax.

    Returns:
        Settings in which every value was checked.

    Raises:
        SettingsError: no such file, not TOML, an unknown key, a wrong type or range.
    """
    text = ""
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(str(path), error.strerror or str(error)) from error
        except UnicodeDecodeError as error:
            raise SettingsError(str(path), "is not a text file of settings") from error
    return parse(text, kind, overrides, source=str(path or "settings"))


def parse(text: str, kind: type[S], overrides: Sequence[str] = (), source: str = "settings") -> S:
    """Read TOML ``text`` as a ``kind``.

    Returns:
        Settings in which every value was checked.

    Raises:
        SettingsError: not TOML, an unknown key, a wrong type or range.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # as well of too many digits or brackets
        raise SettingsError(source, str(error)) from error
    for override in overrides:
        _apply(table, override)
    return check(table, kind, source=source)


def check(table: dict[str, Any], kind: type[S], at: str = "", source: str = "settings") -> S:
    """Take ``table``, whose own path is ``at``, as a ``kind``.

    Returns:
        Settings in which every value was checked.

    Raises:
        SettingsError: an unknown key, a wrong type or range.
    """
    _check_numbers(table, at)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _PATH_IN_MESSAGE.search(message)
        inner = found["path"] if found else ""
        problem = choices.told(_PATH_IN_MESSAGE.sub("", message), kind, inner)
        path = [at, inner]
        field = _FIELD_IN_MESSAGE.match(problem)  # msgspec's path ends at the table around it
        if field and field["fault"] in _FAULTS:
            path.append(field["name"])
            problem = _FAULTS[field["fault"]]
        key = ".".join(part for part in path if part)
        raise SettingsError(key or source, problem) from error


def read_json(path: Path, kind: type[S]) -> S:
    """Read settings that another process of ours wrote, already checked.

    Returns:
        The same settings.

    Raises:
        SettingsError: the file is not what that process writes.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsError(str(path), str(error)) from error


def _check_numbers(value: object, path: str) -> None:
    """Refuse what cannot be handed on to another process: JSON knows no infinity."""
    match value:
        case dict():
            for key, each in cast("dict[str, object]", value).items():
                _check_numbers(each, f"{path}.{key}" if path else key)
        case list():
            for index, each in enumerate(cast("list[object]", value)):
                _check_numbers(each, f"{path}[{index}]")
        case float() if not math.isfinite(value):
            raise SettingsError(path, f"{value} is no finite number")
        case int() if abs(value) > _WHOLE_MAX:
            raise SettingsError(path, f"is beyond {_WHOLE_MAX}")
        case _:
            pass


def _apply(table: dict[str, Any], override: str) -> None:
    key, separator, raw = override.partition("=")
    if not separator:
        raise SettingsError(override, "an override has the form key=value")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        value = raw  # a bare word is a string
    *parents, leaf = key.strip().split(".")
    for parent in parents:
        inner = table.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise SettingsError(key, f"{parent} is not a table")
        table = cast("dict[str, Any]", inner)
    table[leaf] = value
