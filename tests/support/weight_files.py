"""Weight files that are all header: what comes after it is a hole, however large."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BYTES = {"F64": 8, "F32": 4, "U32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1}
Shapes = Mapping[str, tuple[str, Sequence[int]]]  # dtype and shape


def safetensors(path: Path, shapes: Shapes) -> None:
    """Write a whole file of such tensors."""
    entries: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        size = BYTES[dtype]
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    with_header(path, json.dumps(entries).encode(), end)


def with_header(path: Path, header: bytes, body: int, length: int | None = None) -> None:
    """Write a header, which may be anything, before so many bytes of hole."""
    with path.open("wb") as file:
        file.write((len(header) if length is None else length).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + body)


def text(value: str) -> bytes:
    """A string of a GGUF."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(
    path: Path,
    facts: Mapping[str, tuple[int, bytes]],
    tensors: Mapping[str, tuple[int, Sequence[int], int]],
) -> None:
    """Write a whole GGUF file.

    Args:
        path: of the file.
        facts: type and packed value, by key.
        tensors: type, dimensions as the file has them, bytes.
    """
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    for key, (kind, value) in facts.items():
        head += text(key) + struct.pack("<I", kind) + value
    offset = 0
    for name, (kind, dimensions, nbytes) in tensors.items():
        head += text(name) + struct.pack("<I", len(dimensions))
        head += struct.pack(f"<{len(dimensions)}QIQ", *dimensions, kind, offset)
        offset += -(-nbytes // 32) * 32
    with path.open("wb") as file:
        file.write(head)
        file.truncate(-(-len(head) // 32) * 32 + offset)
