"""How `bramley top` looks on terminals of any width."""

import io

import msgspec
import pytest
from rich.console import Console

from bramley.client.cache import StoreStats
from bramley.client.cluster import Memory, Process
from bramley.client.commands.glance import drawn
from bramley.client.commands.status import ClusterStatus
from bramley.client.overview import Sample

WORKER = Process(
    role="worker",
    name="m@2",
    pid=4321,
    state="backoff",
    epoch=1,
    address="",
    restarts=12,
    last_exit="exit code 4: " + "words " * 50,
)
STATUS = ClusterStatus(state="running", processes=[WORKER], version="1.2")


def lines(status: ClusterStatus, width: int, store: StoreStats | None = None) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False)
    console.print(drawn([Sample(at_s=0.0, status=status, store=store)], width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [10, 30, 63, 64, 99, 100, 200])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    assert max(map(len, lines(STATUS, width))) <= width


def test_a_long_story_of_a_worker_s_end_leaves_its_other_columns_whole() -> None:
    (line,) = [line for line in lines(STATUS, 110) if line.startswith("m@2")]
    assert line.split()[:4] == ["m@2", "4321", "backoff", "12"]
    assert len(line) == 110
    assert line.endswith("…")


def test_memory_is_told_where_there_is_a_budget() -> None:
    memory = Memory(budget_bytes=4 << 30, store_bytes=1 << 30, reserved_bytes=1 << 29)
    shown = lines(msgspec.structs.replace(STATUS, memory=memory), 80)
    assert "memory  512 MiB of 4.0 GiB reserved, cache store 1.0 GiB" in shown
    none = msgspec.structs.replace(memory, budget_bytes=0)
    assert "memory" not in "".join(lines(msgspec.structs.replace(STATUS, memory=none), 80))


@pytest.mark.parametrize(
    ("gauges", "told"),
    [
        ({}, "cache   RAM 0 B of 0 B"),
        ({"ssd_is_on": 1, "ssd_bytes": 1024}, "cache   RAM 0 B of 0 B, SSD 1 KiB of 0 B"),
        (
            {"ssd_is_on": 1, "ssd_is_failing": 1, "breaker_is_full": 1},
            "cache   RAM 0 B of 0 B, SSD 0 B of 0 B, failing: full",
        ),
        (
            {"ssd_is_on": 1, "ssd_is_failing": 1},
            "cache   RAM 0 B of 0 B, SSD 0 B of 0 B, failing: sick",
        ),
    ],
)
def test_the_cache_s_tiers_are_told(gauges: dict[str, int], told: str) -> None:
    assert told in lines(STATUS, 80, StoreStats(counters={}, gauges=gauges))
