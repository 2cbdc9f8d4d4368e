"""Whether a machine is fit for measuring: ``look`` finds the facts, ``judge`` decides."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from bramley.bench.figures import BUSY_SHARE, Machine
from bramley.bench.serve.record import Check

LOOK_S = 2.0
LOAD = "load average"
LOAD_PER_CORE = 0.5
LOAD_MIN = 1.0  # of a machine with one core
FREE_SHARE = 0.35
SWAP_BYTES = 512 << 20
FOREIGN_BYTES = 2 << 30
SLOW_POLICIES = {"powersave", "conservative"}
FULL_SPEED = 100
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


class Facts(NamedTuple):
    """What was seen of a machine.

    Attributes:
        load: average of a minute.
        others: share of all cores that others used while it was looked at.
        free: share of the memory that is free.
        large: names of others' processes with much memory, and their bytes.
        policy: how the frequency is chosen; empty where nobody tells.
        speed: percent that heat leaves; None where nobody tells.
    """

    cores: int
    load: float
    others: float
    free: float
    swap_bytes: int
    large: dict[str, int]
    policy: str
    speed: int | None


def look(seconds: float = LOOK_S) -> Facts:
    """Look at this machine for a while."""
    machine, memory = Machine(), psutil.virtual_memory()
    time.sleep(seconds)
    return Facts(
        cores=psutil.cpu_count() or 1,
        load=psutil.getloadavg()[0],
        others=machine.others_share(),
        free=memory.available / memory.total,
        swap_bytes=psutil.swap_memory().used,
        large=_large(),
        policy=GOVERNOR.read_text().strip() if GOVERNOR.exists() else "",
        speed=_speed() if sys.platform == "darwin" else None,
    )


def _large() -> dict[str, int]:
    found: dict[str, int] = {}
    for process in psutil.process_iter(["name", "memory_info"]):
        told = process.info["memory_info"]  # None of what is not ours to look at
        if told is not None and told.rss > FOREIGN_BYTES and process.pid != psutil.Process().pid:
            found[f"{process.info['name']} {process.pid}"] = told.rss
    return found


def _speed() -> int | None:
    told = subprocess.run(["pmset", "-g", "therm"], check=False, capture_output=True, text=True)  # noqa: S607
    for line in told.stdout.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "CPU_Speed_Limit":
            return int(value)
    return None


def judge(facts: Facts) -> list[Check]:
    """Hold what was seen against what a measurement needs."""
    load_max = max(LOAD_PER_CORE * facts.cores, LOAD_MIN)
    large = ", ".join(f"{name}: {size / 2**30:.1f} GiB" for name, size in facts.large.items())
    return [
        _check(LOAD, round(facts.load, 2), f"<= {load_max:g}", facts.load <= load_max),
        _check(
            "share of others",
            round(facts.others, 3),
            f"<= {BUSY_SHARE:g}",
            facts.others <= BUSY_SHARE,
        ),
        _check("free memory", round(facts.free, 3), f">= {FREE_SHARE:g}", facts.free >= FREE_SHARE),
        _check("swap, bytes", facts.swap_bytes, f"<= {SWAP_BYTES}", facts.swap_bytes <= SWAP_BYTES),
        _check("others' large processes", large or None, "none over 2 GiB", not facts.large),
        _check(
            "frequency policy",
            facts.policy or None,
            f"none of {', '.join(sorted(SLOW_POLICIES))}",
            facts.policy not in SLOW_POLICIES,
        ),
        _check(
            "speed, percent",
            facts.speed,
            ">= 100",
            facts.speed is None or facts.speed >= FULL_SPEED,
        ),
    ]


def again() -> list[Check]:
    """Look and judge between two runs: of the last minute's load most was our own."""
    return [check for check in judge(look()) if check.name != LOAD]


def _check(name: str, value: float | str | None, limit: str, is_met: bool) -> Check:
    return Check(name=name, value=value, limit=limit, is_met=is_met)


def refusals(checks: Sequence[Check]) -> list[str]:
    """Word what stands against measuring, a line each."""
    return [
        f"{check.name}: {check.value} (must be {check.limit})"
        for check in checks
        if not check.is_met
    ]
