"""A row's tokens as the parts of a snapshot, and back.

A part holds one block, or a shorter run at the end: every layer's state of its tokens, layer
after layer. Parts follow each other in memory, each padded to the store's alignment. The
copies touch live state, so they run on the engine's thread and leave no view behind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np

from bramley.cachestore.objects import BLOCK, padded
from bramley.worker.cache.contract import Bytes, LayerState


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens that become one stored object: whole blocks, or the tail after the last.

    Attributes:
        first: tokens before it, a multiple of BLOCK.
        parts: tokens of each part.
    """

    kind: Literal["extent", "tail"]
    first: int
    parts: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Tokens up to its end."""
        return self.first + sum(self.parts)


def spans(stored: int, stop: int, extent_blocks: int) -> list[Span]:
    """Cut what is not stored yet into objects.

    Args:
        stored: tokens that are stored already; only whole blocks of them count.
        stop: tokens to store in all.
        extent_blocks: blocks of one extent at most.

    Returns:
        Extents in order, then a tail if ``stop`` is within a block.
    """
    first, whole = stored // BLOCK, stop // BLOCK
    cut = [
        Span("extent", block * BLOCK, (BLOCK,) * min(extent_blocks, whole - block))
        for block in range(first, whole, extent_blocks)
    ]
    if stop % BLOCK and stop > stored:
        cut.append(Span("tail", whole * BLOCK, (stop % BLOCK,)))
    return cut


def part_bytes(layers: Sequence[LayerState], tokens: int) -> int:
    """Return the bytes of a part of so many tokens, without padding."""
    return sum(layer.export_bytes(tokens) for layer in layers)


def span_bytes(layers: Sequence[LayerState], span: Span) -> int:
    """Return the bytes of a span, each part padded."""
    return sum(padded(part_bytes(layers, tokens)) for tokens in span.parts)


def layout(layers: Sequence[LayerState]) -> str:
    """Say what a part's bytes mean: equal layouts can restore each other's parts."""
    return "; ".join(layer.layout for layer in layers)


def copy_out(layers: Sequence[LayerState], row: int, span: Span, target: memoryview) -> None:
    """Copy a span of a row into ``target``, of ``span_bytes``."""
    mx.eval([array for layer in layers for array in layer.arrays()])
    memory: Bytes = np.frombuffer(target, np.uint8)
    start, at = span.first, 0
    for tokens in span.parts:
        for layer, place in _places(layers, tokens, memory[at:]):
            layer.export_row(row, start, start + tokens, place)
        start += tokens
        at += padded(part_bytes(layers, tokens))


def copy_in(
    layers: Sequence[LayerState], row: int, start: int, tokens: int, part: memoryview, stored: int
) -> None:
    """Copy the leading tokens of a stored part into a row.

    Args:
        layers: of the cohort.
        row: has room at ``start``; its length is the caller's to raise.
        start: place of the part's first token.
        tokens: how many of the part's tokens are wanted.
        part: its payload.
        stored: how many tokens the part holds.
    """
    memory: Bytes = np.frombuffer(part, np.uint8)
    for layer, place in _places(layers, stored, memory):
        layer.import_row(row, start, start + tokens, place, stored)


def _places(
    layers: Sequence[LayerState], tokens: int, memory: Bytes
) -> Iterator[tuple[LayerState, Bytes]]:
    at = 0
    for layer in layers:
        size = layer.export_bytes(tokens)
        yield layer, memory[at : at + size]
        at += size
