"""Tells a lack of memory from other faults of a step. Pure."""

from bramley.common.errors import BramleyError, DeviceOom, EngineFault

# What MLX's allocators say: "[malloc] Unable to allocate 123 bytes.", "[metal::malloc] Attempting
# to allocate ...", "cudaMalloc failed: out of memory".
_SIGNS = ("unable to allocate", "attempting to allocate", "out of memory", "bad_alloc")

# What a model file's code may raise on what it was not made for: stand-ins of arrays, rows of
# different lengths.
MODEL_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether a step failed because the device had no memory for it."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)


def told(error: Exception) -> BramleyError:
    """What a request is told of a fault that ends it."""
    if isinstance(error, BramleyError):
        return error
    text = f"{type(error).__name__}: {error}"[:500]
    if is_lack_of_memory(error):
        return DeviceOom(f"the device has no memory for this request: {text}")
    return EngineFault(f"the step failed: {text}")
