"""Headers of safetensors files: what they say, and every way to be damaged."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bramley.worker.models.errors import ModelError
from bramley.worker.models.headers import HEADER_BYTES_MAX, INDEX, read_folder, read_safetensors
from support.weight_files import safetensors, with_header

WHOLE = {"a": ("F16", (4, 3)), "b": ("F32", ()), "c": ("U8", (0, 7))}


def _entry(**changes: Any) -> bytes:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return json.dumps({"t": entry}).encode()


def test_tensors_come_in_the_order_of_their_places_with_shape_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    safetensors(file, WHOLE)
    found = {one.name: (one.dtype, one.shape, one.nbytes) for one in read_safetensors(file)}
    assert found == {"a": ("F16", (4, 3), 24), "b": ("F32", (), 4), "c": ("U8", (0, 7), 0)}
    assert {one.file for one in read_safetensors(file)} == {"model.safetensors"}


def test_only_the_header_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    safetensors(file, {"huge": ("BF16", (1 << 20, 1 << 20))})  # two TB of hole
    assert read_safetensors(file)[0].nbytes == 2 << 40


@pytest.mark.parametrize(
    ("header", "body", "problem"),
    [
        (b"", 0, "header cannot be read"),
        (b"[]", 0, "header cannot be read"),
        (b"{", 0, "header cannot be read"),
        (b'{"t": 1}', 0, "header cannot be read"),
        (b"\xff\xfe", 0, "header cannot be read"),
        (b'{"t": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 0, "header cannot be read"),
        (_entry(dtype="Q4"), 8, "unknown dtype"),
        (_entry(shape=[-2]), 8, "no possible shape"),
        (_entry(shape=[1] * 100), 8, "no possible shape"),
        (_entry(shape=[3]), 8, "8 bytes do not hold"),
        (_entry(shape=[1 << 62, 1 << 62]), 8, "8 bytes do not hold"),
        (_entry(data_offsets=[8, 0]), 8, "do not hold"),
        (_entry(data_offsets=[-8, 0]), 8, "do not hold"),
        (_entry(data_offsets=[0]), 8, "header cannot be read"),
        (_entry(data_offsets=["0", "8"]), 8, "header cannot be read"),
        (_entry(), 7, "the file is torn"),
        (_entry(data_offsets=[1 << 62, (1 << 62) + 8]), 8, "the file is torn"),
    ],
)
def test_a_header_that_cannot_be_right_is_told_with_its_file(
    tmp_path: Path, header: bytes, body: int, problem: str
) -> None:
    file = tmp_path / "model.safetensors"
    with_header(file, header, body)
    with pytest.raises(ModelError, match=problem) as raised:
        read_safetensors(file)
    assert str(file) in str(raised.value)


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    other = {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}
    with_header(file, json.dumps({"one": one, "other": other}).encode(), 12)
    with pytest.raises(ModelError, match="'other' overlaps another"):
        read_safetensors(file)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_shorter_than_a_length_is_torn(tmp_path: Path, size: int) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(size))
    with pytest.raises(ModelError, match="the file is torn"):
        read_safetensors(file)


def test_a_length_beyond_the_file_or_all_reason_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with_header(file, b"{}", 0, length=3)
    with pytest.raises(ModelError, match="the file is torn"):
        read_safetensors(file)
    with_header(file, b"{}", HEADER_BYTES_MAX, length=HEADER_BYTES_MAX + 1)
    with pytest.raises(ModelError, match="is no safetensors header"):
        read_safetensors(file)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_flipped_byte_is_read_or_told_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    file = tmp_path_factory.mktemp("flip") / "model.safetensors"
    safetensors(file, WHOLE)
    whole = bytearray(file.read_bytes())
    whole[place % len(whole)] = value
    file.write_bytes(whole)
    with suppress(ModelError):
        read_safetensors(file)


def test_shards_that_are_missing_and_tensors_that_are_absent_are_named(tmp_path: Path) -> None:
    safetensors(tmp_path / "model-1.safetensors", {"a": ("F16", (2,))})
    listed = {"a": "model-1.safetensors", "x": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": listed}))
    found = read_folder(tmp_path)
    assert (list(found.tensors), found.missing, found.absent) == (
        ["a"],
        ("model-2.safetensors",),
        ("x",),
    )


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        safetensors(tmp_path / f"model-{number}.safetensors", {"a": ("F16", (2,))})
    with pytest.raises(ModelError, match=r"model-2.*'a' is in model-1.safetensors as well"):
        read_folder(tmp_path)


@pytest.mark.parametrize("index", ["", "{}", '{"weight_map": []}', "\xff"])
def test_an_index_that_cannot_be_read_is_told(tmp_path: Path, index: str) -> None:
    (tmp_path / INDEX).write_text(index, encoding="latin-1")
    with pytest.raises(ModelError, match="it cannot be read"):
        read_folder(tmp_path)


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(ModelError, match="No such file"):
        read_folder(tmp_path)
