"""Namespaces come with salts: of too many, empty ones that nobody uses are forgotten."""

import pytest

from bramley.cachestore import namespaces as module
from bramley.cachestore.namespaces import UNUSED_S, Namespace, superfluous
from support.store import KV, identity


def test_of_too_many_the_empty_ones_that_were_unused_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roots = [bytes([at]) * 32 for at in range(5)]
    opened = {
        root: Namespace(root, identity(), (KV,), used_s=float(5 - at))
        for at, root in enumerate(roots)
    }
    later_s = UNUSED_S + 10

    def left(now_s: float = later_s) -> list[bytes]:
        return superfluous(opened, lambda root: root != roots[4], now_s)

    assert left() == []
    monkeypatch.setattr(module, "OPEN_MAX", 3)
    assert left() == [roots[3], roots[2]]  # the last one has objects
    assert left(UNUSED_S + 2.0) == [roots[3]]
    assert left(UNUSED_S) == []
