"""Reads the header of a GGUF file: facts and tensors, none of the weights. Pure but for reading.

The layout: a magic word, a version, two counts, key and value pairs, one entry a tensor. Nothing in
it is believed before it is known to lie within the file.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bramley.worker.models.errors import ModelError
from bramley.worker.models.headers import BITS, Tensor

GROUP: Final = 32  # weights a scale, in every format that MLX keeps quantized
_VERSIONS: Final = (2, 3)
_KEY_BYTES_MAX: Final = 1 << 16
_DIMENSIONS_MAX: Final = 4
_ALIGNMENT: Final = 32
_DEPTH_MAX: Final = 4  # of arrays in arrays

_STRING, _ARRAY = 8, 9
# By its number, how a value is packed.
_SCALARS: Final = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
# Number, name, values of a block, bytes of it.
_TYPES: Final = {
    int(number): (name, int(values), int(nbytes))
    for number, name, values, nbytes in map(
        str.split,
        """\
        0 F32 1 4
        1 F16 1 2
        2 Q4_0 32 18
        3 Q4_1 32 20
        6 Q5_0 32 22
        7 Q5_1 32 24
        8 Q8_0 32 34
        9 Q8_1 32 36
        10 Q2_K 256 84
        11 Q3_K 256 110
        12 Q4_K 256 144
        13 Q5_K 256 176
        14 Q6_K 256 210
        15 Q8_K 256 292
        16 IQ2_XXS 256 66
        17 IQ2_XS 256 74
        18 IQ3_XXS 256 98
        19 IQ1_S 256 50
        20 IQ4_NL 32 18
        21 IQ3_S 256 110
        22 IQ2_S 256 82
        23 IQ4_XS 256 136
        24 I8 1 1
        25 I16 1 2
        26 I32 1 4
        27 I64 1 8
        28 F64 1 8
        29 IQ1_M 256 56
        30 BF16 1 2
        34 TQ1_0 256 54
        35 TQ2_0 256 66
        39 MXFP4 32 17""".splitlines(),
    )
}


@dataclass(frozen=True, slots=True)
class Length:
    """Stands for an array of a GGUF, of which only this is read."""

    count: int


Fact = str | int | float | bool | Length


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself.

    Attributes:
        facts: its metadata.
        tensors: by name, shaped as rows of columns: the file's own order reversed.
        nbytes: of the file.
    """

    facts: Mapping[str, Fact]
    tensors: Mapping[str, Tensor]
    nbytes: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Read a header and check it.

    Returns:
        What it says.

    Raises:
        ModelError: naming the file, and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                return _Reader(path, memory, size).header()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error


def made_of(tensor: Tensor) -> list[Tensor]:
    """List the arrays that MLX makes of a GGUF's tensor when it reads it."""
    kept = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}.get(tensor.dtype)
    if kept is None:
        as_it_is = tensor.dtype in {"F32", "F16", "I8", "I16", "I32"}
        return [_as_array(tensor.name, tensor.dtype if as_it_is else "F16", tensor.shape)]
    path = tensor.name.removesuffix(".weight")
    *rows, columns = tensor.shape
    shared = (*rows, columns // GROUP)
    return [
        _as_array(tensor.name, "U32", (*rows, columns * kept // 32)),
        _as_array(f"{path}.scales", "F16", shared),
        _as_array(f"{path}.biases", "F16", shared),
    ]


def _as_array(name: str, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, dtype, shape, math.prod(shape) * BITS[dtype] // 8, "")


class _Reader:
    """A place in a file, and what comes next there."""

    def __init__(self, path: Path, memory: mmap.mmap, size: int) -> None:
        self._path = path
        self._memory = memory
        self._size = size
        self._at = 4

    def header(self) -> GgufHeader:
        version = self._number("I")
        if version not in _VERSIONS:
            raise self._wrong(f"GGUF of version {version} is not read")
        tensors, pairs = self._count(24), self._count(12)
        facts: dict[str, Fact] = {}
        for _ in range(pairs):
            key = self._string(_KEY_BYTES_MAX)
            facts[key] = self._value(self._number("I"))
        entries = [self._entry() for _ in range(tensors)]
        step = facts.get("general.alignment", _ALIGNMENT)
        if not isinstance(step, int) or not 0 < step <= 1 << 20:
            raise self._wrong("its alignment is impossible")
        body = -(-self._at // step) * step
        for tensor, offset in entries:
            if body + offset + tensor.nbytes > self._size:
                raise self._wrong(f"the tensor {tensor.name!r} ends behind it: it is torn")
        by_name = {tensor.name: tensor for tensor, _ in entries}
        if len(by_name) < len(entries):
            raise self._wrong("it names two tensors alike")
        return GgufHeader(facts, by_name, self._size)

    def _entry(self) -> tuple[Tensor, int]:
        name, dimensions = self._string(_KEY_BYTES_MAX), self._number("I")
        if not 0 < dimensions <= _DIMENSIONS_MAX:
            raise self._wrong(f"the tensor {name!r} has no possible shape")
        shape = tuple(reversed([self._number("Q") for _ in range(dimensions)]))
        kind, offset = self._number("I"), self._number("Q")
        if kind not in _TYPES:
            raise self._wrong(f"the tensor {name!r} is of an unknown type, {kind}")
        dtype, values, nbytes = _TYPES[kind]
        if shape[-1] % values:
            raise self._wrong(f"the tensor {name!r} has a shape that {dtype} does not hold")
        size = math.prod(shape) // values * nbytes
        return Tensor(name, dtype, shape, size, self._path.name), offset

    def _value(self, kind: int, depth: int = 0) -> Fact:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string(self._size)
        if kind != _ARRAY or depth == _DEPTH_MAX:
            raise self._wrong(f"a value is of an unknown type, {kind}")
        inner = self._number("I")
        if inner in _SCALARS:
            size = struct.calcsize(f"<{_SCALARS[inner]}")
            count = self._count(size)
            self._skip(count * size)
            return Length(count)
        count = self._count(8)
        if inner == _STRING:
            self._skip_strings(count)
        else:
            for _ in range(count):
                self._value(inner, depth + 1)
        return Length(count)

    def _skip_strings(self, count: int) -> None:
        """Pass a vocabulary, which is most of a header, without a call for each word."""
        length, at, last = struct.Struct("<Q").unpack_from, self._at, self._size - 8
        for _ in range(count):
            if at > last:
                break
            at += 8 + length(self._memory, at)[0]
        else:
            self._skip(at - self._at)
            return
        self._skip(self._size + 1)

    def _count(self, least: int) -> int:
        """Read how many things of so many bytes at least follow."""
        count = self._number("Q")
        if count * least > self._size - self._at:
            raise self._wrong("it counts more than fits into it: it is torn")
        return count

    def _string(self, most: int) -> str:
        length = self._number("Q")
        if length > most:
            raise self._wrong("a name is too long")
        start = self._at
        self._skip(length)
        return self._memory[start : self._at].decode("utf-8", "replace")

    def _number(self, kind: str) -> int:
        start, form = self._at, f"<{kind}"
        self._skip(struct.calcsize(form))
        return struct.unpack_from(form, self._memory, start)[0]

    def _skip(self, length: int) -> None:
        if length > self._size - self._at:
            raise self._wrong("its header ends behind it: it is torn")
        self._at += length

    def _wrong(self, problem: str) -> ModelError:
        return ModelError(f"{self._path}: {problem}")
