"""A row's tokens as the parts of a snapshot, and back.

Sliceable layers are stored in parts of one block, or of a shorter run at the end: every such
layer's state of its tokens, layer after layer. Parts follow each other in memory, each padded
to the store's alignment. The other layers are stored together, as one *state*: what each of
them has at one boundary. A row starts from both, or from neither.

The copies touch live state, so they run on the engine's thread and leave no view behind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np

from bramley.cachestore.objects import BLOCK, padded
from bramley.worker.cache.contract import Bytes, LayerState
from bramley.worker.cache.saved import Restore


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens that become one stored object.

    An extent is whole blocks and a tail what comes after the last, both of the sliceable
    layers. A state is of the others, at the span's end: its own tokens only name the place.

    Attributes:
        first: tokens before it, a multiple of BLOCK.
        parts: tokens of each part; a state's one part has none where a block ends.
    """

    kind: Literal["extent", "tail", "state"]
    first: int
    parts: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Tokens up to its end."""
        return self.first + sum(self.parts)


def sliceable(layers: Sequence[LayerState]) -> list[LayerState]:
    """Those whose tokens are stored in parts."""
    return [layer for layer in layers if layer.is_sliceable]


def stateful(layers: Sequence[LayerState]) -> list[LayerState]:
    """Those that are stored whole, at a boundary."""
    return [layer for layer in layers if not layer.is_sliceable]


def spans(layers: Sequence[LayerState], stored: int, stop: int, extent_blocks: int) -> list[Span]:
    """Cut what is not stored yet into objects.

    Args:
        layers: of the model.
        stored: tokens that are stored already; only whole blocks of them count.
        stop: tokens to store in all.
        extent_blocks: blocks of one extent at most.

    Returns:
        Extents in order, then a tail if ``stop`` is within a block, then the state there.
    """
    if stop <= stored or part_bytes(layers, stop) == 0:
        return []
    first, whole, rest = stored // BLOCK, stop // BLOCK, stop % BLOCK
    cut: list[Span] = []
    if sliceable(layers):
        cut += [
            Span("extent", block * BLOCK, (BLOCK,) * min(extent_blocks, whole - block))
            for block in range(first, whole, extent_blocks)
        ]
        if rest:
            cut.append(Span("tail", whole * BLOCK, (rest,)))
    if stateful(layers):
        cut.append(Span("state", whole * BLOCK, (rest,)))
    return cut


def part_bytes(layers: Sequence[LayerState], tokens: int) -> int:
    """Return the bytes that layers export of so many tokens, without padding."""
    return sum(layer.export_bytes(tokens) for layer in layers)


def span_bytes(layers: Sequence[LayerState], span: Span) -> int:
    """Return the bytes of a span, each part padded."""
    if span.kind == "state":
        return padded(part_bytes(stateful(layers), span.stop))
    cut = sliceable(layers)
    return sum(padded(part_bytes(cut, tokens)) for tokens in span.parts)


def layout(layers: Sequence[LayerState]) -> str:
    """Say what the bytes mean: equal layouts can restore each other's parts and states."""
    return "; ".join(layer.layout for layer in layers)


def copy_out(layers: Sequence[LayerState], row: int, span: Span, target: memoryview) -> None:
    """Copy a span of a row into ``target``, of ``span_bytes``.

    Raises:
        CannotExport: the row has gone on too far from the place of a state.
    """
    mx.eval([array for layer in layers for array in layer.arrays()])
    memory: Bytes = np.frombuffer(target, np.uint8)
    if span.kind == "state":
        for layer, place in _places(stateful(layers), span.stop, memory):
            layer.export_row(row, 0, span.stop, place)
        return
    cut = sliceable(layers)
    start, at = span.first, 0
    for tokens in span.parts:
        for layer, place in _places(cut, tokens, memory[at:]):
            layer.export_row(row, start, start + tokens, place)
        start += tokens
        at += padded(part_bytes(cut, tokens))


def fits(layers: Sequence[LayerState], restore: Restore) -> bool:
    """Whether a stored prefix is all that the layers need, part by part of the right size."""
    cut, whole, reached = sliceable(layers), stateful(layers), 0
    for part in restore.parts:
        if part.first != reached or len(part.memory) != part_bytes(cut, part.held):
            return False
        reached += part.tokens
    if reached != (restore.tokens if cut else 0):
        return False
    if restore.state is None:
        return not whole
    return bool(whole) and len(restore.state.memory) == part_bytes(whole, restore.tokens)


def copy_in(layers: Sequence[LayerState], row: int, restore: Restore) -> None:
    """Copy a stored prefix, which fits, into an empty row; its length is the caller's to raise."""
    for part in restore.parts:
        memory: Bytes = np.frombuffer(part.memory, np.uint8)
        for layer, place in _places(sliceable(layers), part.held, memory):
            layer.import_row(row, part.first, part.first + part.tokens, place, part.held)
    if restore.state is not None:
        tokens = restore.state.tokens
        memory = np.frombuffer(restore.state.memory, np.uint8)
        for layer, place in _places(stateful(layers), tokens, memory):
            layer.import_row(row, 0, tokens, place, tokens)


def _places(
    layers: Sequence[LayerState], tokens: int, memory: Bytes
) -> Iterator[tuple[LayerState, Bytes]]:
    at = 0
    for layer in layers:
        size = layer.export_bytes(tokens)
        yield layer, memory[at : at + size]
        at += size
