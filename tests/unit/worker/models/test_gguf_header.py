"""Headers of GGUF files: what they say, and every way to be damaged."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bramley.worker.models.errors import ModelError
from bramley.worker.models.gguf_header import Length, made_of, read_gguf_header
from support.weight_files import gguf, text

FACTS = {
    "general.architecture": (8, text("llama")),
    "llama.block_count": (4, struct.pack("<I", 2)),
    "llama.rope.freq_base": (6, struct.pack("<f", 0.5)),
    "tokenizer.ggml.tokens": (9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
    "tokenizer.ggml.scores": (9, struct.pack("<IQ", 6, 2) + bytes(8)),
    "odd": (9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 3) + bytes(3)),
}
TENSORS = {"token_embd.weight": (2, (64, 3), 108), "output_norm.weight": (0, (64,), 256)}


def test_facts_and_tensors_are_read_and_arrays_only_counted(tmp_path: Path) -> None:
    gguf(tmp_path / "m.gguf", FACTS, TENSORS)
    found = read_gguf_header(tmp_path / "m.gguf")
    assert found.facts == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.rope.freq_base": 0.5,
        "tokenizer.ggml.tokens": Length(2),
        "tokenizer.ggml.scores": Length(2),
        "odd": Length(1),
    }
    embedding = found.tensors["token_embd.weight"]
    assert (embedding.dtype, embedding.shape, embedding.nbytes) == ("Q4_0", (3, 64), 108)


def test_what_mlx_keeps_quantized_has_scales_and_biases(tmp_path: Path) -> None:
    gguf(tmp_path / "m.gguf", {}, {"x.weight": (8, (64, 3), 204), "y.weight": (12, (256,), 144)})
    tensors = read_gguf_header(tmp_path / "m.gguf").tensors
    made = [(one.name, one.dtype, one.shape) for one in made_of(tensors["x.weight"])]
    assert made == [
        ("x.weight", "U32", (3, 16)),
        ("x.scales", "F16", (3, 2)),
        ("x.biases", "F16", (3, 2)),
    ]
    assert [(one.dtype, one.shape) for one in made_of(tensors["y.weight"])] == [("F16", (256,))]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not a GGUF file"),
        (b"GGML" + bytes(40), "is not a GGUF file"),
        (b"GGUF", "torn"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "counts more than fits"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "counts more than fits"),
    ],
)
def test_a_head_that_cannot_be_right_is_told_with_its_file(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=problem) as raised:
        read_gguf_header(file)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        ((99, b""), "unknown type, 99"),
        ((8, struct.pack("<Q", 1 << 62)), "too long"),
        ((9, struct.pack("<IQ", 8, 1 << 60)), "counts more than fits"),
        ((9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", (1 << 64) - 1)), "torn"),
        ((9, struct.pack("<IQ", 8, 2) + struct.pack("<Q", 1 << 40)), "torn"),
        ((9, struct.pack("<IQ", 10, 1 << 60)), "counts more than fits"),
        ((9, struct.pack("<IQ", 9, 1) * 20), "unknown type"),
    ],
)
def test_a_fact_that_cannot_be_right_is_told(
    tmp_path: Path, fact: tuple[int, bytes], problem: str
) -> None:
    gguf(tmp_path / "m.gguf", {"k": fact}, TENSORS)
    with pytest.raises(ModelError, match=problem):
        read_gguf_header(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        ((99, (64,), 0), "unknown type, 99"),
        ((2, (63,), 0), "a shape that Q4_0 does not hold"),
        ((0, (), 0), "no possible shape"),
        ((0, (1,) * 5, 0), "no possible shape"),
        ((0, (1 << 60, 1 << 60), 0), "it is torn"),
        ((0, (64,), 0), "it is torn"),
    ],
)
def test_a_tensor_that_cannot_be_right_is_told(
    tmp_path: Path, tensor: tuple[int, tuple[int, ...], int], problem: str
) -> None:
    gguf(tmp_path / "m.gguf", {}, {"t": tensor})
    with pytest.raises(ModelError, match=problem):
        read_gguf_header(tmp_path / "m.gguf")


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_is_read_or_told_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    file = tmp_path_factory.mktemp("flip") / "m.gguf"
    gguf(file, FACTS, TENSORS)
    whole = bytearray(file.read_bytes())
    whole[place % len(whole)] = value
    file.write_bytes(whole)
    with suppress(ModelError):
        read_gguf_header(file)


@given(st.integers(0, 600))
def test_a_torn_file_is_told(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    file = tmp_path_factory.mktemp("torn") / "m.gguf"
    gguf(file, FACTS, TENSORS)
    whole = file.read_bytes()
    file.write_bytes(whole[: size % len(whole)])
    with pytest.raises(ModelError, match=str(file)):
        read_gguf_header(file)
