"""Cuts and normalises vectors, as they are on the wire (pure)."""

import numpy as np

from bramley.common.errors import EngineFault

VALUE_BYTES = 4
_LEAST = 1e-12  # a vector of zeros stays one


def finish(values_le: bytes, *, dimensions: int, normalize: bool) -> bytes:
    """Leave the first ``dimensions`` values, 0 for all, and bring them to length 1 if asked.

    Returns:
        The vector, float32, little-endian as it came.

    Raises:
        EngineFault: some value is no number.
    """
    values = np.frombuffer(values_le, "<f4")
    if not np.isfinite(values).all():
        raise EngineFault("the model gave no finite hidden states")
    values = values[: dimensions or None]
    if normalize:
        length = np.linalg.norm(values.astype(np.float64))
        values = (values / max(length, _LEAST)).astype("<f4")
    return values.tobytes()
