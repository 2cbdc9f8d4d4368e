"""Randomness that depends on (seed, position) alone, whatever shares the batch."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STREAM = 0xD1B54A32D192ED03


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """Draw from [0, 1) in steps of 2**-24, which float32 holds exactly.

    Args:
        seed: 64 bits.
        position: of the token that is drawn.
        stream: another gives numbers that have nothing to do with the first's.

    Returns:
        The same for the same arguments, on every machine.
    """
    # SplitMix64 (Steele, Lea and Flood 2014), used as a hash.
    start = _mix((seed ^ (stream * _STREAM)) & _MASK)
    return (_mix(start + (position + 1) * _GOLDEN) >> 40) / (1 << 24)


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
