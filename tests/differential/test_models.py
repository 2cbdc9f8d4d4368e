"""Every model file of mlx-lm: in the lane that the worker gives it, rows are what mlx-lm gives.

What docs/models.md says of each is checked here.
"""

from pathlib import Path

import pytest
from mlx_lm import models

from bramley.worker.models.contract import Lane
from support.zoo.catalogue import CONFIGS, PARTS, UNBUILT, build, file_of
from support.zoo.lanes import lane_of, layers_of, recorded
from support.zoo.walk import walk

RECORDED = recorded()
LANES = {name: Lane(RECORDED[name]["lane"]) for name in CONFIGS}
SHARED = {Lane.BATCHED, Lane.APART}
# What a model's file may raise for rows that it does not understand.
FAULTS = (AssertionError, AttributeError, RuntimeError, TypeError, ValueError)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_right_in_its_lane(name: str) -> None:
    model = build(name)
    assert (lane_of(model), layers_of(model)) == (LANES[name], RECORDED[name]["layers"])
    walk(model, LANES[name])


@pytest.mark.parametrize("name", [name for name in CONFIGS if LANES[name] is not Lane.BATCHED])
def test_a_model_is_wrong_in_a_better_lane(name: str) -> None:
    model, lanes = build(name), list(Lane)
    for better in lanes[: lanes.index(LANES[name])]:
        with pytest.raises(FAULTS):
            walk(model, better)


def test_most_architectures_share_forwards() -> None:
    worst = {file_of(name): Lane.BATCHED for name in CONFIGS}
    order = list(Lane)
    for name, lane in LANES.items():
        worst[file_of(name)] = max(worst[file_of(name)], lane, key=order.index)
    assert sum(LANES[name] in SHARED for name in worst if name in CONFIGS) >= 110


def test_every_model_file_is_here_or_said_why_not() -> None:
    files = {path.stem for folder in models.__path__ for path in Path(folder).glob("*.py")}
    built = {file_of(name) for name in CONFIGS}
    assert files == built | set(UNBUILT) | PARTS
    assert not built & set(UNBUILT)


def test_the_recorded_table_is_of_these_models() -> None:
    assert set(RECORDED) == set(CONFIGS) | set(UNBUILT)
    assert {n: r["why"] for n, r in RECORDED.items() if r["lane"] == "not tried"} == UNBUILT
    for name, record in RECORDED.items():
        assert (record["lane"] == Lane.BATCHED.value) == (not record["why"]), name
