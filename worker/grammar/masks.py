"""Masks of a step: a bit for each row and id, packed into words; made of guides, and applied."""

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from bramley.worker.grammar.guide import Guide
from bramley.worker.grammar.words import ALL, Words


def fill(guides: Sequence[Guide | None], width: int) -> Words | None:
    """Make the masks of a step; while grammars are asked, other threads of Python run.

    A guide that fails here is in error afterwards and its row is free: end it, draw nothing.

    Args:
        guides: one a row, None for a row without; all of one vocabulary.
        width: logits of a row.

    Returns:
        (B, ceil(width / 32)): bit ``i % 32`` of word ``i // 32`` says whether id i may come next.
        None where every row is free.
    """
    rows = [(row, guide) for row, guide in enumerate(guides) if guide and not guide.is_free]
    if not rows:
        return None
    words, known = -(-width // 32), rows[0][1].vocabulary.words
    masks = np.full((len(guides), max(words, known)), ALL, np.uint32)
    address, stride = masks.ctypes.data, masks.strides[0]
    for row, guide in rows:
        if (matcher := guide.matcher) is not None:
            # One after another: waking the library's own threads takes longer than eight masks.
            matcher.unsafe_compute_mask_ptr(address + row * stride, known * masks.itemsize)
        guide.mask(masks[row])
    return masks[:, :words]


def apply(logits: mx.array, packed: Words) -> mx.array:
    """Put -inf where the mask has no bit; all else keeps its very bits, and NaN stays NaN.

    A limit for each id goes to the device and one operation follows, a small part of what any
    forward takes: so there is no kernel of our own for it.

    Args:
        logits: (B, V), of any float type, which the result has as well.
        packed: as ``fill`` makes it for V.

    Returns:
        As lazy as the logits are.
    """
    limits = np.take(_LIMITS, packed.view(np.uint8), axis=0).reshape(len(packed), -1)
    # Not mx.where, which takes ten times as long on a CPU.
    return mx.minimum(logits, mx.array(limits[:, : logits.shape[-1]]).astype(logits.dtype))


# For each byte of a mask eight numbers: infinity where its bit is set, and minus infinity.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_LIMITS = np.where(_BITS == 1, np.float32(math.inf), np.float32(-math.inf))
