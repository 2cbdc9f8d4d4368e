"""MLX arrays as typed numpy arrays and lists."""

from typing import cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


def floats(array: mx.array) -> NDArray[np.float32]:
    """Copy an array out as float32."""
    copied: NDArray[np.float32] = np.array(array, dtype=np.float32)
    return copied


def ids(array: mx.array) -> list[int]:
    """Copy a one-dimensional array of ids out."""
    return cast("list[int]", array.tolist())
