"""What a model's weight files say of their tensors, read from headers alone. Pure but for reading.

A safetensors file is eight bytes with the header's length, a JSON header, and the tensors' bytes;
a GGUF file has a header of its own (gguf_header.py). Files may be torn or hostile: every number is
checked against the file's size before it is believed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bramley.worker.models.errors import ModelError

HEADER_BYTES_MAX = 100_000_000  # as the format's own readers have it
INDEX = "model.safetensors.index.json"
_DIMENSIONS_MAX = 32

BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file.

    Attributes:
        dtype: as the file names it: "F16", "U32", in a GGUF "Q4_K".
        shape: with the longest stride first.
        nbytes: in the file.
        file: name of the file in its folder.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str

    @property
    def size(self) -> int:
        """Elements; of a packed dtype those that are stored."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Stored:
    """A model's tensors, as far as its files are there.

    Attributes:
        tensors: by name; in the order of files, and of places in them.
        files: sizes, by name.
        missing: files that the index lists and that are not there.
        absent: tensors that the index lists and that no file has, those of missing files aside.
    """

    tensors: Mapping[str, Tensor]
    files: Mapping[str, int]
    missing: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def read_folder(folder: Path) -> Stored:
    """Read the headers of a folder's ``model*.safetensors``.

    Returns:
        The tensors; none where there are no files.

    Raises:
        ModelError: a file is torn, is no safetensors file, or cannot be read.
    """
    listed = _listed(folder / INDEX)
    paths = sorted(folder.glob("model*.safetensors"))
    there = {path.name for path in paths}
    tensors: dict[str, Tensor] = {}
    for path in paths:
        for tensor in read_safetensors(path):
            if tensor.name in tensors:
                other = tensors[tensor.name].file
                raise ModelError(f"{path}: {tensor.name!r} is in {other} as well")
            tensors[tensor.name] = tensor
    missing = {file for file in listed.values() if file not in there}
    return Stored(
        tensors=tensors,
        files={path.name: path.stat().st_size for path in paths},
        missing=tuple(sorted(missing)),
        absent=tuple(
            name
            for name, file in sorted(listed.items())
            if file not in missing and name not in tensors
        ),
    )


def read_safetensors(path: Path) -> list[Tensor]:
    """Read a header and check it.

    Returns:
        The tensors, in the order of their places.

    Raises:
        ModelError: naming the file, and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise ModelError(f"{path}: the file is torn: its header does not fit into it")
            if length > HEADER_BYTES_MAX:
                raise ModelError(f"{path}: a header of {length} bytes is no safetensors header")
            text = file.read(length)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    body = size - 8 - length
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(each, type=_Entry) for name, each in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: the header cannot be read: {error}") from error
    end, tensors = 0, list[Tensor]()
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        tensors.append(_checked(path, name, entry, end, body))
        end = entry.data_offsets[1]
    return tensors


def _checked(path: Path, name: str, entry: _Entry, before: int, body: int) -> Tensor:
    start, stop = entry.data_offsets
    where = f"{path}: the tensor {name!r}"
    if entry.dtype not in BITS:
        raise ModelError(f"{where} is of an unknown dtype, {entry.dtype!r}")
    if len(entry.shape) > _DIMENSIONS_MAX or any(length < 0 for length in entry.shape):
        raise ModelError(f"{where} has no possible shape")
    bits = math.prod(entry.shape) * BITS[entry.dtype]
    if not 0 <= start <= stop or (stop - start) * 8 != bits:
        raise ModelError(f"{where} has a shape that its {stop - start} bytes do not hold")
    if start < before:
        raise ModelError(f"{where} overlaps another")
    if stop > body:
        raise ModelError(f"{where} ends {stop - body} bytes behind the file: the file is torn")
    return Tensor(name, entry.dtype, tuple(entry.shape), stop - start, path.name)


def _listed(index: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelError(f"{index}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{index}: it cannot be read: {error}") from error
