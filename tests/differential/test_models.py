"""Every model file of mlx-lm: in the lane that the worker gives it, rows are what mlx-lm gives.

What docs/models.md says of each is checked here.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx_lm import models

from bramley.worker.cache.full import FullState
from bramley.worker.engine.selfcheck import choose_lane
from bramley.worker.models.contract import Lane, LanguageModel
from bramley.worker.models.mlx_lm import model_parts
from support.blas import BLAS
from support.zoo.catalogue import CONFIGS, PARTS, UNBUILT, build, file_of
from support.zoo.lanes import lane_of, layers_of, recorded
from support.zoo.shapes import VOCABULARY
from support.zoo.walk import walk

RECORDED = recorded()
LANES = {name: Lane(RECORDED[name]["lane"]) for name in CONFIGS}
SHARED = {Lane.BATCHED, Lane.APART}

# What goes wrong in each better lane, from the best on: scores are others, or the file says so.
SCORES, POSITION = "off by [0-9]", "Only length-1 arrays can be converted"
MASK, KIND, SHAPE = "broadcast_shapes", "state of kind unknown is not served", "became one of"
WRONG: dict[str, tuple[str, ...]] = {
    "afm7": (SCORES, SCORES),
    "baichuan_m1": (SCORES,),
    "bailing_moe_linear": (SCORES,),
    "deepseek_v41": (KIND, KIND, KIND),
    "gpt_bigcode": (POSITION, POSITION),
    "internlm3 dynamic": (SCORES, POSITION),
    "jamba": (SCORES,),
    "llama dynamic": (SCORES, POSITION),
    "llama4": (KIND, KIND, KIND),
    "longcat_flash_ngram": (SCORES, SHAPE, SHAPE),
    "mamba": (SCORES,),
    "minimax_m3_vl": (SCORES, SCORES),
    "minimax_m3_vl wide": (SCORES, SCORES),
    "nemotron_h": (SCORES,),
    "olmo_hybrid": (SCORES,),
    "phi3small": (MASK, MASK),
    "plamo3": (SCORES, SCORES, SCORES),
    "plamo3 wide": (SCORES, SCORES, SCORES),
    "recurrent_gemma": (SCORES, SCORES),
    "rwkv7": (SCORES,),
}

# In half precision on a CPU: of every lane and of every kind of state that runs there at all.
HALVES = (
    "llama",
    "llama swa",
    "gemma4_text",
    "qwen3_5",
    "mamba2",
    "falcon_h1",
    "lfm2",
    "rwkv7",
    "olmo_hybrid",
    "baichuan_m1",
    "afm7",
    "gpt_bigcode",
    "recurrent_gemma",
    "plamo3",
)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_right_in_its_lane(name: str) -> None:
    model = build(name)
    assert (lane_of(model), layers_of(model)) == (LANES[name], RECORDED[name]["layers"])
    walk(model, LANES[name])


@pytest.mark.parametrize("name", WRONG)
def test_a_model_is_wrong_in_a_better_lane(name: str) -> None:
    model, lanes = build(name), list(Lane)
    better = lanes[: lanes.index(LANES[name])]
    for lane, told in zip(better, WRONG[name], strict=True):
        with pytest.raises((AssertionError, RuntimeError, ValueError), match=told):
            walk(model, lane)


def test_what_goes_wrong_is_said_of_every_model_in_a_worse_lane() -> None:
    assert set(WRONG) == {name for name, lane in LANES.items() if lane is not Lane.BATCHED}


@pytest.mark.parametrize("name", HALVES)
def test_half_precision_gives_no_model_a_better_lane(name: str) -> None:
    model, order = build(name), list(Lane)
    model.set_dtype(mx.bfloat16)
    assert order.index(lane_of(model)) >= order.index(LANES[name])


def test_a_model_that_is_wrong_in_pieces_on_our_states_has_its_own_caches() -> None:
    model = build("llama")
    own = cast("LanguageModel", model)

    class Wrong:
        """Takes other tokens where a later piece of a prompt comes to our state."""

        def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
            later = isinstance(cache[0], FullState) and inputs.shape[1] > 1 and cache[0].offset
            return own(inputs + 1 if later else inputs, cache=cache)

    parts = model_parts(model, vocabulary=VOCABULARY, heads=4)
    assert choose_lane(replace(parts, best_lane=Lane.SERIAL), BLAS.sum_panel) is Lane.SERIAL
    assert choose_lane(replace(parts, model=Wrong()), BLAS.sum_panel) is Lane.OWN


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
