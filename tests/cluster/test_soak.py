"""Long mixed traffic, with kills: everything ends as it should, and nothing stays behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.baseline import at_rest, strays
from support.served import serving
from support.traffic import Figures, Traffic

MODELS = ("tiny", "sliding")
ROUNDS = 9  # three thirds of three: the first one warms up
SLACK_BYTES = 16 << 20
GROWTH = 1.1  # of the last third over the one before
SLACK_HANDLES = 8  # of connections that a moment later are gone

SETTINGS = """
[models.tiny]
path = "{models}/tiny"
max_rows = 4
parked_bytes = 20000000
[models.sliding]
path = "{models}/sliding"
max_rows = 4
parked_bytes = 20000000
[store]
ram_bytes = 50000000
disk_bytes = 200000000
staging_bytes = 20000000
[node]
settled_s = 0.1  # kills by chance are no crash loop
"""


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(10, marks=pytest.mark.timeout(120)),
        pytest.param(600, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
        pytest.param(3600, marks=[pytest.mark.soak, pytest.mark.timeout(5400)]),
    ],
)
async def test_mixed_traffic_with_cancels_and_kills_leaves_nothing_behind(
    tmp_path: Path, seconds: int, record_property: Callable[[str, object], None]
) -> None:
    async with serving(tmp_path, lambda models: SETTINGS.format(models=models)) as served:
        traffic = Traffic(served, MODELS, seed=7)
        seen: list[Figures] = []
        for number in range(ROUNDS):
            # One at least, whatever the dice say.
            await traffic.run(seconds / ROUNDS, kills=number == 1)
            await served.ready()
            await at_rest(served, within_s=30.0)
            assert not strays(served)
            seen.append(Figures.of(served))
        told = {
            "seconds": seconds,
            "ends": dict(traffic.ends),
            "kills": traffic.kills,
            "checked": traffic.checked,
            "MB": {name: size >> 20 for name, size in seen[-1].resident.items()},
        }
        record_property("row", json.dumps(told))
        print(told)  # noqa: T201
        check(seen)
        assert traffic.kills
        assert traffic.checked
        assert traffic.ends["answered"] > 0.9 * sum(traffic.ends.values())


def check(seen: list[Figures]) -> None:
    """Compare what the processes take in the last third with what they took before."""
    first, second, last = seen[:3], seen[3:6], seen[6:]
    for name in seen[0].resident:
        before = max(one.resident[name] for one in second)
        after = max(one.resident[name] for one in last)
        assert after <= GROWTH * before + SLACK_BYTES, (name, before >> 20, after >> 20)
        for kind in ("descriptors", "threads", "children"):
            most = max(getattr(one, kind)[name] for one in first)
            assert getattr(seen[-1], kind)[name] <= most + SLACK_HANDLES, (name, kind)
