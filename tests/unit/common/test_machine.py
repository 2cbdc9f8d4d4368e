"""How much memory there is, in control groups and without."""

from pathlib import Path

import pytest

from bramley.common import machine
from bramley.common.machine import usable_bytes

RAM = 1000


@pytest.fixture(autouse=True)
def _ram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ram_bytes", lambda: RAM)


def _write(root: Path, groups: str, limits: dict[str, str]) -> None:
    for name, text in {"proc/self/cgroup": groups, **limits}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("groups", "limits", "usable"),
    [
        ("0::/\n", {}, RAM),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "700\n"}, 700),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, RAM),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "7000\n"}, RAM),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "700\n"}, 700),
        (
            "0::/a/b\n",
            {"sys/fs/cgroup/a/b/memory.max": "700\n", "sys/fs/cgroup/a/memory.max": "600\n"},
            600,
        ),
        (
            "3:cpu:/x\n2:memory:/a\n",
            {
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "500\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            500,
        ),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, groups: str, limits: dict[str, str], usable: int
) -> None:
    _write(tmp_path, groups, limits)
    assert usable_bytes(tmp_path) == usable


def test_without_control_groups_all_of_it_is_usable(tmp_path: Path) -> None:
    assert usable_bytes(tmp_path) == RAM
