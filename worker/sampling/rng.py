"""Randomness that depends on (seed, position) alone, whatever shares the batch."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """Draw from [0, 1) in steps of 2**-24, which float32 holds exactly."""
    # SplitMix64 (Steele, Lea and Flood 2014), used as a hash of the pair.
    return (_mix(_mix(seed & _MASK) + (position + 1) * _GOLDEN) >> 40) / (1 << 24)


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
