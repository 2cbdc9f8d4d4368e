"""Recorded schedules: a change of policy changes them, and nothing else may."""

import itertools
import json

import pytest

from support.schedules import FOLDER, SCENARIOS, replay


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_schedule_is_the_recorded_one(name: str) -> None:
    assert replay(SCENARIOS[name]) == (FOLDER / f"{name}.jsonl").read_text()


def test_every_recorded_schedule_is_replayed() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(SCENARIOS)


def test_beside_streams_no_gap_is_longer_than_a_chunk_and_a_step() -> None:
    steps = [
        json.loads(line) for line in replay(SCENARIOS["long_prompt_beside_streams"]).splitlines()
    ]
    times = [step["at_s"] for step in steps if "s1" in step["decode"]]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) <= 0.25 + 2 / 8
    short = next(step for step in steps if "short" in step["decode"])
    assert short["at_s"] - 1.3 <= 2 * 0.25 + 2 / 8
