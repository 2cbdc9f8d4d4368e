"""The gated delta rule in chunks gives what mlx-lm's loop does, in any batch and any pieces."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models import gated_delta, kimi_linear, qwen3_next
from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.gated_delta import gated_delta_ops, normalize_qk

from bramley.worker.engine.scheduler import SHAPE_TOKENS
from bramley.worker.models.gated_delta import best_chunk, fast_prefill, gated_delta_chunked
from support.arrays import floats
from support.blas import BLAS
from support.tiny_models import build, draw, parameters

HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM = 4, 2, 32, 16
CLOSE = 1e-4

Case = dict[str, Any]  # arrays, by their arguments' names

GATES: dict[str, Callable[[mx.array], mx.array]] = {
    "near one": lambda u: 1 - 1e-3 * u,
    "near zero": lambda u: 1e-3 * u,
    "any": lambda u: u,
    "fading": lambda u: 0.06 + 0 * u,
    "some zero": lambda u: mx.where(u < 0.1, 0, 1 - 1e-2 * u),
}
STRENGTHS = {name: GATES[name] for name in ("near one", "near zero")}


def case(
    columns: int,
    *,
    rows: int = 2,
    gates: str = "any",
    strengths: str = "near one",
    by_dimension: bool = False,
    repeating: float = 0.0,
) -> Case:
    """Draw inputs; ``repeating`` is how much of a key is the first column's."""
    keys = iter(mx.random.split(mx.random.key(columns), 6))
    q, k = (mx.random.normal((rows, columns, KEY_HEADS, KEY_DIM), key=next(keys)) for _ in "qk")
    k = repeating * k[:, :1] + (1 - repeating) * k
    q, k = normalize_qk(q, k, inv_scale=KEY_DIM**-0.5, eps=1e-6)
    shape = (rows, columns, HEADS)
    gate_shape = (*shape, KEY_DIM) if by_dimension else shape
    return {
        "q": q,
        "k": k,
        "v": mx.random.normal((*shape, VALUE_DIM), key=next(keys)),
        "g": GATES[gates](mx.random.uniform(shape=gate_shape, key=next(keys))),
        "beta": STRENGTHS[strengths](mx.random.uniform(shape=shape, key=next(keys))),
        "state": mx.random.normal((rows, HEADS, VALUE_DIM, KEY_DIM), key=next(keys)),
    }


def cut(inputs: Case, start: int, stop: int, rows: slice = slice(None)) -> Case:
    """Take some columns of some rows."""
    return {
        name: array[rows] if name == "state" else array[rows, start:stop]
        for name, array in inputs.items()
    }


def assert_close(found: mx.array, expected: mx.array) -> None:
    """Compare, relative to the largest."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    largest = np.abs(floats(expected)).max()
    np.testing.assert_allclose(floats(found), floats(expected), rtol=0, atol=CLOSE * largest)


def assert_same_as_the_loop(inputs: Case, **options: Any) -> None:
    pairs = zip(gated_delta_chunked(**inputs, **options), gated_delta_ops(**inputs), strict=True)
    for found, expected in pairs:
        assert_close(found, expected)


@pytest.mark.parametrize("columns", [1, 2, 3, 31, 32, 33, 64, 100, 200])
@pytest.mark.parametrize("by_dimension", [False, True])
def test_any_length_is_the_loop_s(columns: int, by_dimension: bool) -> None:
    assert_same_as_the_loop(case(columns, by_dimension=by_dimension))


@pytest.mark.parametrize(("gates", "strengths"), list(product(GATES, STRENGTHS)))
@pytest.mark.parametrize("by_dimension", [False, True])
def test_extreme_gates_and_strengths_are_the_loop_s(
    gates: str, strengths: str, by_dimension: bool
) -> None:
    inputs = case(150, gates=gates, strengths=strengths, by_dimension=by_dimension)
    assert_same_as_the_loop(inputs)


def test_a_long_prompt_is_the_loop_s() -> None:
    assert_same_as_the_loop(case(2000, rows=1, gates="near one"))


@pytest.mark.parametrize("repeating", [0.9, 1.0])
@pytest.mark.parametrize("chunk", [32, 64, 128])
def test_keys_that_repeat_lose_no_precision(repeating: float, chunk: int) -> None:
    assert_same_as_the_loop(case(200, gates="near one", repeating=repeating), chunk=chunk)


def test_without_a_state_it_starts_from_zeros() -> None:
    inputs = case(40)
    del inputs["state"]
    assert_same_as_the_loop(inputs)


def test_half_precision_in_gives_half_precision_out() -> None:
    inputs = case(70, rows=1)
    halves = {name: inputs[name].astype(mx.bfloat16) for name in ("q", "k", "v", "beta")}
    y, state = gated_delta_chunked(**{**inputs, **halves})
    expected, expected_state = gated_delta_ops(**{**inputs, **halves})
    assert y.dtype == expected.dtype == mx.bfloat16
    found, wanted = (floats(array.astype(mx.float32)) for array in (y, expected))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.01 * np.abs(wanted).max())
    assert_close(state, expected_state)


@pytest.mark.parametrize("by_dimension", [False, True])
def test_pieces_of_a_prompt_give_what_the_whole_does(by_dimension: bool) -> None:
    inputs = case(180, gates="near one", by_dimension=by_dimension)
    whole, whole_state = gated_delta_chunked(**inputs)
    state = inputs["state"]
    pieces: list[mx.array] = []
    for start, stop in ((0, 1), (1, 50), (50, 114), (114, 180)):
        y, state = gated_delta_chunked(**cut({**inputs, "state": state}, start, stop))
        pieces.append(y)
    assert_close(mx.concatenate(pieces, axis=1), whole)
    assert_close(state, whole_state)


@pytest.mark.parametrize("by_dimension", [False, True])
@pytest.mark.parametrize("stops", [(16,), (48, 64), (32, 144, 160), range(16, 170, 16)])
def test_pieces_that_end_where_chunks_do_are_the_same_bits(
    by_dimension: bool, stops: Sequence[int]
) -> None:
    inputs = case(170, gates="near one", by_dimension=by_dimension)
    whole, whole_state = gated_delta_chunked(**inputs)
    state, start = inputs["state"], 0
    for stop in (*stops, 170):
        y, state = gated_delta_chunked(**cut({**inputs, "state": state}, start, stop))
        np.testing.assert_array_equal(floats(y), floats(whole[:, start:stop]))
        start = stop
    np.testing.assert_array_equal(floats(state), floats(whole_state))


def test_the_scheduler_cuts_prompts_where_chunks_end() -> None:
    assert SHAPE_TOKENS % best_chunk() == 0


@pytest.mark.parametrize("by_dimension", [False, True])
def test_a_row_is_the_same_bits_alone_and_in_a_padded_batch(by_dimension: bool) -> None:
    assert BLAS.batch_invariant
    lengths = (2, 9, 40, 100)
    inputs = case(max(lengths), rows=len(lengths), by_dimension=by_dimension)
    mask = mx.arange(max(lengths)) < mx.array(lengths)[:, None]
    y, state = gated_delta_chunked(**inputs, mask=mask)
    for row, length in enumerate(lengths):
        alone = cut(inputs, 0, length, slice(row, row + 1))
        own_y, own_state = gated_delta_chunked(**alone)
        np.testing.assert_array_equal(floats(y[row, :length]), floats(own_y[0]))
        np.testing.assert_array_equal(floats(state[row]), floats(own_state[0]))


def test_a_row_that_is_all_padding_keeps_its_state() -> None:
    inputs = case(70)
    mask = mx.array([[True] * 70, [False] * 70])
    state = gated_delta_chunked(**inputs, mask=mask)[1]
    np.testing.assert_array_equal(floats(state[1]), floats(inputs["state"][1]))
    assert not np.array_equal(floats(state[0]), floats(inputs["state"][0]))


def run(model: Any, tokens: list[int], pieces: list[int]) -> mx.array:
    """Feed a prompt in pieces; all logits."""
    caches = model.make_cache()
    logits: list[mx.array] = []
    for count in pieces:
        logits.append(model(mx.array([tokens[:count]]), cache=caches))
        tokens = tokens[count:]
    return mx.concatenate(logits, axis=1)


def first_layer(model: nn.Module) -> Any:
    return cast("Any", model)["language_model"]["model"]["layers"][0]


TOKENS = [(token * 37) % 200 + 20 for token in range(90)]


@pytest.mark.parametrize("pieces", [[90], [50, 40], [1, 33, 56], [87, 1, 1, 1]])
def test_a_hybrid_s_logits_stay_what_they_were(pieces: list[int]) -> None:
    plain, fast = build("hybrid"), build("hybrid")
    assert fast_prefill(fast) == 1
    assert_close(run(fast, TOKENS, pieces), run(plain, TOKENS, [90]))


def test_a_right_padded_batch_s_logits_stay_what_they_were() -> None:
    layers = [first_layer(build("hybrid")) for _ in range(2)]
    assert fast_prefill(layers[1]) == 1
    x = mx.random.normal((2, 70, 64), key=mx.random.key(1))
    outputs: list[mx.array] = []
    states: list[mx.array] = []
    for layer in layers:
        cache: Any = ArraysCache(2)
        cache.prepare(lengths=[70, 41])
        outputs.append(layer(x, mask=cache.make_mask(70), cache=cache))
        states.append(cache[1])
    assert_close(states[1], states[0])
    assert_close(outputs[1][0], outputs[0][0])
    assert_close(outputs[1][1, :41], outputs[0][1, :41])


def test_parameters_stay_where_they_are_and_mlx_lm_is_not_touched() -> None:
    model = build("hybrid")
    before = parameters(model)
    layer = first_layer(model)["linear_attn"]
    original = cast("type[Any]", type(layer))
    call, loop = original.__call__, gated_delta.gated_delta_ops
    fast_prefill(model)
    after = parameters(model)
    assert list(before) == list(after)
    assert all(before[name] is after[name] for name in before)
    assert isinstance(layer, original)
    assert type(layer) is not original
    assert original.__call__ is call
    assert gated_delta.gated_delta_ops is loop


def test_a_decode_step_is_mlx_lm_s_to_the_bit() -> None:
    layers = [first_layer(build("hybrid"))["linear_attn"] for _ in range(2)]
    fast_prefill(layers[1])
    prompt, step = (mx.random.normal((1, n, 64), key=mx.random.key(n)) for n in (40, 1))
    cache: Any = ArraysCache(2)
    layers[0](prompt, cache=cache)
    outputs: list[mx.array] = []
    for layer in layers:
        own: Any = ArraysCache(2)
        own[0], own[1] = cache[0], cache[1]
        outputs.extend((layer(step, cache=own), own[0], own[1]))
    for found, expected in zip(outputs[3:], outputs[:3], strict=True):
        np.testing.assert_array_equal(floats(found), floats(expected))


def test_a_model_without_such_layers_is_left_alone() -> None:
    assert fast_prefill(build("full")) == 0


def test_metal_keeps_mlx_lm_s_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert fast_prefill(build("hybrid")) == 0


NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 0,
    "num_experts_per_tok": 0,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 0,
    "mlp_only_layers": [],
    "moe_intermediate_size": 0,
    "rms_norm_eps": 1e-6,
    "vocab_size": 300,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 512,
    "full_attention_interval": 2,
}
KIMI: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "head_dim": 32,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "linear_attn_config": {
        "kda_layers": [1],
        "num_heads": 2,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
    },
    "model_max_length": 512,
    "num_experts": 0,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


@pytest.mark.parametrize(("files", "config"), [(qwen3_next, NEXT), (kimi_linear, KIMI)])
def test_other_architectures_of_the_rule_stay_what_they_were(
    files: Any, config: dict[str, Any]
) -> None:
    model = files.Model(files.ModelArgs.from_dict(config))
    draw(model, 1)
    expected = run(model, TOKENS, [90])
    mx.eval(expected)
    assert fast_prefill(model) == 1
    found = run(model, TOKENS, [40, 50])
    assert not np.array_equal(floats(found), floats(expected))  # it was computed otherwise
    assert_close(found, expected)
