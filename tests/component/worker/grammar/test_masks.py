"""Masks of a step: packed, and laid on the logits."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from bramley.worker.grammar import masks
from bramley.worker.grammar.compiler import make
from bramley.worker.grammar.guide import Guide
from support.byte_tokenizer import VOCABULARY
from support.schemas import byte_vocabulary

TYPES = (mx.float32, mx.float16, mx.bfloat16)
ODD = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-40, 65504.0, -3.5]


def guide(lark: str) -> Guide:
    return Guide(byte_vocabulary(), byte_vocabulary().end_ids, make(byte_vocabulary(), lark))


def as_bits(array: mx.array) -> NDArray[Any]:
    size = mx.uint32 if array.dtype == mx.float32 else mx.uint16
    bits: Any = array.view(size)
    return np.array(bits)


@pytest.mark.parametrize("width", [31, 32, 33, 256, 1000])
@pytest.mark.parametrize("dtype", TYPES)
def test_forbidden_ids_get_minus_infinity_and_others_keep_their_bits(
    dtype: mx.Dtype, width: int
) -> None:
    random = np.random.default_rng(width)
    words = -(-width // 32)
    packed = random.integers(0, 2**32, (3, words), dtype=np.uint32)
    packed[1] = 0xFFFFFFFF
    values = random.standard_normal((3, width))
    values[:, : len(ODD)] = ODD
    logits = mx.array(values).astype(dtype)
    bits = np.unpackbits(packed.view(np.uint8), axis=1, bitorder="little")[:, :width] == 1
    out = masks.apply(logits, packed)
    assert out.dtype == dtype
    assert out.shape == logits.shape
    kept = bits & ~np.isnan(values)
    assert np.array_equal(as_bits(out)[kept], as_bits(logits)[kept])
    as_floats: Any = out.astype(mx.float32)
    told: NDArray[Any] = np.array(as_floats)
    assert np.isnan(told[np.isnan(values)]).all()
    assert (told[~bits & ~np.isnan(values)] == -np.inf).all()


def test_no_mask_is_made_where_every_row_is_free() -> None:
    assert masks.fill([None, None], 300) is None


def test_rows_without_a_guide_are_all_ones() -> None:
    packed = masks.fill([None, guide('start: "a"'), None], 300)
    assert packed is not None
    assert packed.shape == (3, 10)
    assert packed[[0, 2]].min() == 0xFFFFFFFF
    assert packed[1].sum() == 1 << (ord("a") % 32)


@pytest.mark.parametrize("width", [VOCABULARY - 40, VOCABULARY, VOCABULARY + 1, 2 * VOCABULARY])
def test_the_model_may_have_more_logits_than_the_tokenizer_ids_or_fewer(width: int) -> None:
    packed = masks.fill([guide("start: /(.|\\n)*/")], width)
    assert packed is not None
    out = masks.apply(mx.zeros((1, width)), packed)
    allowed = np.flatnonzero(np.array(out)[0] == 0)
    assert ord("a") in allowed
    assert max(allowed) < VOCABULARY


def test_each_row_has_its_own_grammar() -> None:
    texts = "abcdefgh"
    packed = masks.fill([guide(f'start: "{text}"') for text in texts], VOCABULARY)
    assert packed is not None
    out = masks.apply(mx.zeros((8, VOCABULARY)), packed)
    assert mx.argmax(out, axis=-1).tolist() == [ord(text) for text in texts]
