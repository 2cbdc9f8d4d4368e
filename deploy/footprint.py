"""What a model's weights will take in memory, by its files: a guess until one was loaded."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

# By `general.file_type`: bits of a weight with its share of the scales.
_GGUF_BITS: Final = {0: 32.0, 1: 16.0, 2: 4.5, 3: 5.0, 7: 8.5, 32: 16.0}
_GGUF_BITS_UNKNOWN: Final = 8.0
_GGUF_BITS_MADE: Final = 16.0  # of the formats that MLX does not compute with
_GGUF_FILE_TYPE: Final = b"\x11\0\0\0\0\0\0\0general.file_type\x04\0\0\0"  # a word follows
_GGUF_HEAD_BYTES: Final = 1 << 16
_FLOAT_BITS: Final = {"float32": 32.0, "bfloat16": 16.0, "float16": 16.0}
_BITS: Final = 32.0


def weights_bytes(path: Path, *, on_cpu: bool | None = None) -> int:
    """Guess what the weights of a model folder, or of a GGUF file, take once loaded.

    Args:
        path: of the folder or the file.
        on_cpu: whether MLX will compute on the CPU, where all weights become float32; as this
            machine looks, if not given.

    Returns:
        The bytes; 0 where the files are not there or cannot be read.
    """
    on_cpu = computes_on_cpu() if on_cpu is None else on_cpu
    try:
        if path.suffix == ".gguf":
            return _of_gguf(path, on_cpu=on_cpu)
        stored = sum(file.stat().st_size for file in path.glob("model*.safetensors"))
        if not on_cpu or not stored:
            return stored
        config = msgspec.json.decode((path / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return 0
    return int(stored * _BITS / _bits(config))


def computes_on_cpu(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has no GPU that MLX could use: neither Apple's nor one of NVIDIA's."""
    return sys.platform != "darwin" and not any(devices.glob("nvidia[0-9]*"))


def _of_gguf(path: Path, *, on_cpu: bool) -> int:
    with path.open("rb") as file:
        head = file.read(_GGUF_HEAD_BYTES)
    found = head.find(_GGUF_FILE_TYPE)
    at = found + len(_GGUF_FILE_TYPE)
    file_type = int.from_bytes(head[at : at + 4], "little") if found >= 0 else -1
    bits = _GGUF_BITS.get(file_type, _GGUF_BITS_UNKNOWN)
    loaded = _BITS if on_cpu else bits if file_type in _GGUF_BITS else _GGUF_BITS_MADE
    return int(path.stat().st_size * loaded / bits)


def _bits(config: Mapping[str, Any]) -> float:
    """Bits of a stored weight, by config.json."""
    for key in ("quantization", "quantization_config"):
        quantization = config.get(key)
        if isinstance(quantization, dict):
            bits: object = cast("dict[str, Any]", quantization).get("bits")
            return float(bits) if isinstance(bits, int) and 0 < bits <= _BITS else 4.0
    dtype: object = config.get("torch_dtype") or config.get("dtype")
    return _FLOAT_BITS.get(str(dtype), 16.0)
