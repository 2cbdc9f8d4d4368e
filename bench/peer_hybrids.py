"""Hybrids under measurement, with prompts in chunks and as mlx-lm takes them."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.models import qwen3_5
from mlx_lm.models.gated_delta import gated_delta_ops, normalize_qk

from bramley.bench.figures import Figure, Required
from bramley.bench.peer_models import load
from bramley.worker.models.gated_delta import fast_prefill, gated_delta_chunked

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {  # a model for tests of the machinery, 21 M parameters
        "vocab_size": 49152,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
    },
    "4b": {  # Qwen3.5 4B
        "vocab_size": 248320,
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
}
COMMON: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
    },
}


@dataclass(frozen=True, slots=True)
class Subject:
    """One model several times, on the same parameters.

    Attributes:
        text: its text model's configuration.
        fast: takes prompts in chunks.
        plain: as mlx-lm made it.
        prompt: tokens of the fast one's prompt.
        plain_prompt: of the plain one's, where that takes long.
        piece: tokens of a forward.
    """

    name: str
    text: dict[str, Any]
    fast: nn.Module
    plain: nn.Module
    prompt: int
    plain_prompt: int
    piece: int


def subject(folder: Path | None, shape: str) -> Subject:
    """Make both models."""
    if folder is None:
        name, text = shape, {**COMMON, **SHAPES[shape]}
        make = _random(text)
    else:
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        name, text = folder.name, config.get("text_config", config)
        make = _stored(folder)
    plain, fast = make(), make()
    fast.update(plain.parameters())
    if not fast_prefill(fast):
        raise SystemExit(f"{name}: no layer takes chunks here")
    lengths = (8192, 512, 2048) if shape == "4b" else (1000, 1000, 1000)
    return Subject(name, text, fast, plain, *lengths)


def _random(text: dict[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = {"model_type": "qwen3_5", "text_config": text}
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
        model.set_dtype(mx.float32 if _on_cpu() else mx.bfloat16)
        model.eval()
        return model

    return make


def _stored(folder: Path) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = load(folder)
        if _on_cpu():
            model.set_dtype(mx.float32)
        return model

    return make


def _on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu


def prompts(subject: Subject, turns: int) -> Iterator[Figure]:
    """Whole prompts, without their logits, as an engine computes all but the last piece of one."""
    figure = Figure(
        f"{subject.name}: prompts",
        "tok/s",
        ("chunks", "mlx_lm"),
        required=None if _on_cpu() else Required(">=", 20),
    )
    for turn in range(turns + 1):
        fast_s = _prefill_s(subject.fast, subject.prompt, subject.piece)
        plain_s = _prefill_s(subject.plain, subject.plain_prompt, subject.piece)
        if turn:  # kernels are compiled on first use
            figure.add(subject.prompt / fast_s, subject.plain_prompt / plain_s)
    yield figure


def _prefill_s(model: nn.Module, tokens: int, piece: int) -> float:
    facts = cast("Any", model)
    caches: list[Any] = facts.make_cache()
    ids = mx.array([[(token * 37) % 900 + 50 for token in range(tokens)]])
    mx.eval(ids)
    start_s = time.monotonic()
    for start in range(0, tokens, piece):
        facts(ids[:, start : start + piece], cache=caches)
        mx.eval([cache.state for cache in caches])
    return time.monotonic() - start_s


def layers(subject: Subject, turns: int) -> Iterator[Figure]:
    """The recurrent layers alone: norm, projections, convolution, rule, gate of each."""
    figure = Figure(
        f"{subject.name}: recurrent layers",
        "columns/s",
        ("chunks", "mlx_lm"),
        required=Required(">=", 5),
    )
    dtype = mx.float32 if _on_cpu() else mx.bfloat16
    x = mx.random.normal((1, subject.piece, subject.text["hidden_size"])).astype(dtype)
    short = x[:, : subject.plain_prompt]
    mx.eval(x, short)
    for turn in range(turns + 1):
        fast_s = _time_s(lambda: _recurrent(subject.fast, x))
        plain_s = _time_s(lambda: _recurrent(subject.plain, short))
        if turn:  # kernels are compiled on first use
            figure.add(subject.piece / fast_s, subject.plain_prompt / plain_s)
    yield figure


def _recurrent(model: nn.Module, x: mx.array) -> list[mx.array]:
    every = cast("Any", model).language_model.model.layers
    return [layer.linear_attn(layer.input_layernorm(x)) for layer in every if layer.is_linear]


def rule(subject: Subject, turns: int) -> Iterator[Figure]:
    """The rule alone, of one layer."""
    inputs = _rule_inputs(subject.text, subject.piece)
    short = _rule_inputs(subject.text, subject.plain_prompt)
    figure = Figure(
        f"{subject.name}: rule",
        "columns/s",
        ("chunks", "loop"),
        required=Required(">=", 5),
    )
    for turn in range(turns + 1):
        chunks_s = _time_s(lambda: gated_delta_chunked(*inputs))
        loop_s = _time_s(lambda: gated_delta_ops(*short))
        if turn:  # kernels are compiled on first use
            figure.add(subject.piece / chunks_s, subject.plain_prompt / loop_s)
    yield figure


def _time_s(compute: Callable[[], Sequence[mx.array]]) -> float:
    start_s = time.monotonic()
    mx.eval(compute())
    return time.monotonic() - start_s


def _rule_inputs(text: dict[str, Any], columns: int) -> list[mx.array]:
    dtype = mx.float32 if _on_cpu() else mx.bfloat16
    key_heads, heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
    key_dim, value_dim = text["linear_key_head_dim"], text["linear_value_head_dim"]
    q, k = (mx.random.normal((1, columns, key_heads, key_dim)) for _ in "qk")
    q, k = normalize_qk(q, k, inv_scale=key_dim**-0.5, eps=1e-6)
    v = mx.random.normal((1, columns, heads, value_dim))
    g, beta = (mx.random.uniform(shape=(1, columns, heads)) for _ in "gb")
    state = mx.zeros((1, heads, value_dim, key_dim))
    inputs = [q.astype(dtype), k.astype(dtype), v.astype(dtype), g**0.1, beta.astype(dtype), state]
    mx.eval(inputs)
    return inputs


def difference(subject: Subject) -> float:
    """How far the last token's logits are apart, relative to the largest."""
    ids = mx.array([[(token * 37) % 900 + 50 for token in range(subject.plain_prompt)]])
    fast, plain = (
        cast("Any", model)(ids)[0, -1].astype(mx.float32) for model in (subject.fast, subject.plain)
    )
    ratio: Any = (mx.abs(fast - plain).max() / mx.abs(plain).max()).item()
    return float(ratio)
