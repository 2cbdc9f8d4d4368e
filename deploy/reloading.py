"""Decides what a reload may change: keys that differ, and which only a restart takes (pure)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from bramley.common.errors import SettingsError
from bramley.deploy.settings import FILLED_IN, ClusterSettings

# Addresses that are bound, what is read once at a start, processes that nobody replaces.
FIXED: Final = (
    "router.grpc",
    "router.http",
    "router.tls",
    "router.auth",
    "router.traces",
    "router.vllm_metrics",
    "node.worker_command",
    "node.router_command",
    "node.store_command",
    "store",
    "logs",
)


def changed_keys(old: ClusterSettings, new: ClusterSettings) -> list[str]:
    """List the keys that differ, in order; a model that came or went is one key."""
    return list(_differing(_table(old), _table(new)))


def refuse_fixed(keys: Sequence[str]) -> None:
    """Let nothing pass that a reload cannot change.

    Raises:
        SettingsError: names all such keys.
    """
    fixed = [
        key for key in keys if any(key == each or key.startswith(f"{each}.") for each in FIXED)
    ]
    if fixed:
        raise SettingsError(", ".join(fixed), "takes `bramley down` and `bramley up` to change")


def _table(settings: ClusterSettings) -> dict[str, Any]:
    table = cast("dict[str, Any]", msgspec.to_builtins(settings))
    for key in FILLED_IN:  # they follow from the others
        del table["router"][key]
    return table


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            tables = cast("tuple[dict[str, Any], dict[str, Any]]", (before, after))
            yield from _differing(*tables, f"{at}{name}.")
        else:
            yield f"{at}{name}"
