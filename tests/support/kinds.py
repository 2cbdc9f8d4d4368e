"""A model of each kind of state that is served, and of what mixes them: public cases run on all.

A kind is served in the lane that the worker gives it; what it can reuse follows from its layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mlx import nn

from bramley.worker.models.contract import Lane
from bramley.worker.models.gated_delta import fast_prefill
from bramley.worker.models.mlx_lm import layer_caches, own_caches
from support.engines import InProcessEngine
from support.tiny_models import greedy
from support.zoo.catalogue import build
from support.zoo.lanes import recorded

# By what is special about it: a config of zoo/.
KINDS = {
    "full": "llama",
    "window, sinks": "gpt_oss",
    "window, keys that other layers read": "gemma4_text",
    "latent": "deepseek_v3",
    "latent, two caches a layer": "deepseek_v32",
    "state space alone": "mamba2",
    "state space beside attention in each layer": "falcon_h1",
    "gated delta": "qwen3_5",
    "gated delta beside latents": "kimi_linear",
    "short convolution": "lfm2",
    "prompts apart: rwkv": "rwkv7",
    "prompts apart: state space": "jamba",
    "prompts apart: three kinds in pairs": "baichuan_m1",
    "serial: full": "gpt_bigcode",
    "serial: recurrence and window": "recurrent_gemma",
    "own caches": "llama4",
}


@dataclass
class Kind:
    """A model of one kind, and the same as mlx-lm made it.

    Attributes:
        layers: kinds of state, of the layers' parts.
    """

    name: str
    model: nn.Module
    plain: nn.Module
    lane: Lane
    layers: frozenset[str]
    _known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    @classmethod
    def make(cls, name: str) -> "Kind":
        """Make both models."""
        config = KINDS[name]
        model = plain = build(config)
        if fast_prefill(model):
            plain = build(config)
        layers = frozenset(leaf.kind for layer in layer_caches(model) for leaf in layer.leaves)
        return cls(name, model, plain, Lane(recorded()[config]["lane"]), layers)

    @property
    def rows_max(self) -> int:
        """Requests that run at a time."""
        return self.lane.rows_max or 8

    @property
    def goes_back(self) -> bool:
        """Whether a row can be cut back by some tokens."""
        return self.lane is not Lane.OWN and "recurrent" not in self.layers

    @property
    def goes_back_anywhere(self) -> bool:
        """Whether it can be cut back to any of its tokens."""
        return self.goes_back and "rotating" not in self.layers

    @property
    def is_stored(self) -> bool:
        """Whether its state can be stored at all."""
        return self.lane is not Lane.OWN

    def engine(self, **options: Any) -> InProcessEngine:
        """Make an engine as the worker would."""
        return InProcessEngine(
            self.model,
            layers=layer_caches(self.model),
            lane=self.lane,
            own_caches=partial(own_caches, self.model),
            **options,
        )

    def cold(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """ORACLE: what mlx-lm's own loop answers to the prompt alone."""
        key = (*prompt, -tokens)
        if key not in self._known:
            self._known[key] = greedy(self.plain, list(prompt), tokens)
        return self._known[key]
