"""What the engine asks of a model: one call, and what state its layers keep."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol

import mlx.core as mx


class LanguageModel(Protocol):
    """A model file's class, of mlx-lm or our own."""

    def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
        """Run one forward.

        Args:
            inputs: token ids, (B, L).
            cache: one state a layer, of the kinds that the model's layers want.

        Returns:
            Logits, (B, L, V).
        """
        ...


class Lane(Enum):
    """How a model's requests may share forwards, from the best to the last resort.

    Attributes:
        BATCHED: rows of any lengths, prompts of different lengths among them.
        APART: each prompt in forwards of its own; decode steps are shared.
        SERIAL: one request at a time.
        OWN: one request at a time, on the model's own caches, which nobody stores.
    """

    BATCHED = "batched"
    APART = "prompts apart"
    SERIAL = "serial"
    OWN = "serial, own caches"

    @property
    def reason(self) -> str:
        """Why requests do not share forwards; empty where they do."""
        match self:
            case Lane.BATCHED | Lane.APART:
                return ""
            case Lane.SERIAL:
                return "beside rows of other lengths the model's file gives other scores than alone"
            case Lane.OWN:
                return "the model's file is right on its own caches only, which are not stored"

    @property
    def rows_max(self) -> int | None:
        """Requests that may run at a time; None for any number."""
        return None if self in (Lane.BATCHED, Lane.APART) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """The state that one layer keeps between steps.

    Attributes:
        kind: "full" holds every position, "latent" likewise, as what keys and values are made
            of (MLA), "rotating" the last ``window`` of them and the first ``keep``, "recurrent"
            ``arrays`` of a fixed size, "composite" several ``parts``. "unknown" is all else.
        has_grouped_scores: whether its attention has an axis for the queries that share a key,
            and so must its mask: (B, 1, 1, L, width).
        view: makes of a state what the model file wants to see in its place.
    """

    kind: Literal["full", "latent", "rotating", "recurrent", "composite", "unknown"]
    window: int = 0
    keep: int = 0
    arrays: int = 0
    has_grouped_scores: bool = False
    parts: tuple["LayerCache", ...] = ()
    view: Callable[[Any], object] | None = None

    @property
    def leaves(self) -> tuple["LayerCache", ...]:
        """Itself, or of a composite layer the parts of its parts."""
        if self.kind != "composite":
            return (self,)
        return tuple(leaf for part in self.parts for leaf in part.leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What it takes to run a model whose parameters are in memory.

    Attributes:
        model: to be called.
        layers: what state its layers keep.
        own_caches: makes the caches that it would run on by itself, for one row.
        vocabulary: width of its logits.
        heads: query heads of a layer.
        weight_bytes: of its parameters.
        best_lane: that may be tried: some faults only a long sequence shows.
        body: called as the model, gives its last hidden states, (B, L, ``width``); None where
            the model's file does not tell it from the head.
    """

    model: LanguageModel
    layers: Sequence[LayerCache]
    own_caches: Callable[[], Sequence[object]]
    vocabulary: int
    heads: int
    weight_bytes: int
    best_lane: Lane = Lane.BATCHED
    body: LanguageModel | None = None
    width: int = 0
