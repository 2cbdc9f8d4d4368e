"""An object's file, as bytes."""

import random
from typing import Any

import msgspec
import pytest
import safetensors
import xxhash

from bramley.cachestore.format import NotOurs, decode_header, encode_header, file_bytes
from bramley.cachestore.objects import ALIGN, padded
from support.stored import make_stored

SIZES = [(1,), (ALIGN,), (5000, 20_000), (ALIGN - 1, ALIGN + 1, 3 * ALIGN), (100,) * 64]


def tensors_of(file: bytes) -> dict[str, dict[str, Any]]:
    return dict(safetensors.deserialize(file))  # pyright: ignore[reportUnknownArgumentType]


@pytest.mark.parametrize("sizes", SIZES)
def test_a_header_tells_its_object(sizes: tuple[int, ...]) -> None:
    stored, _ = make_stored(1, sizes)
    assert decode_header(encode_header(stored)) == stored


@pytest.mark.parametrize("sizes", SIZES)
def test_the_payload_starts_on_a_boundary(sizes: tuple[int, ...]) -> None:
    assert len(encode_header(make_stored(1, sizes)[0])) % ALIGN == 0


@pytest.mark.parametrize("sizes", SIZES)
def test_a_file_is_no_larger_than_it_is_said_to_become(sizes: tuple[int, ...]) -> None:
    stored, payload = make_stored(1, sizes)
    odd = msgspec.structs.replace(stored, header=bytes(range(256)) * 20)
    for one in (stored, odd):
        size = len(encode_header(one)) + len(payload)
        assert size <= file_bytes(one) <= size + 4 * ALIGN


@pytest.mark.parametrize("sizes", SIZES)
def test_safetensors_reads_each_part(sizes: tuple[int, ...]) -> None:
    stored, payload = make_stored(1, sizes)
    tensors = tensors_of(encode_header(stored) + payload)
    start = 0
    for number, part in enumerate(stored.parts):
        tensor = tensors[f"b{number:04}"]
        assert (tensor["dtype"], tensor["shape"]) == ("U8", [part.nbytes])
        assert bytes(tensor["data"]) == payload[start : start + part.nbytes]
        start += padded(part.nbytes)
    assert sum(len(tensor["data"]) for tensor in tensors.values()) == stored.payload_bytes


def test_odd_names_survive() -> None:
    stored, _ = make_stored(1)
    odd = msgspec.structs.replace(stored, session_key='"}\\\0é\n', header=bytes(range(256)))
    assert decode_header(encode_header(odd)) == odd


def test_b028_a_flipped_bit_anywhere_in_a_header_is_noticed() -> None:
    stored, _ = make_stored(1)
    header = encode_header(stored)
    chance = random.Random(28)  # noqa: S311
    places = [*range(200), *(chance.randrange(len(header)) for _ in range(1000))]
    for place in places:
        flipped = bytearray(header)
        flipped[place] ^= 1 << chance.randrange(8)
        with pytest.raises((ValueError, NotOurs)):
            decode_header(bytes(flipped))


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 100, ALIGN // 2, ALIGN - 1])
def test_b028_a_cut_header_is_noticed(cut: int) -> None:
    with pytest.raises(ValueError, match=r"header|begin"):
        decode_header(encode_header(make_stored(1)[0])[:cut])


def as_newer(header: bytes) -> bytes:
    """What a later version that keeps the rule of the first bytes would write."""
    newer = header.replace(b'"reader":"1"', b'"reader":"2"')
    before, key, after = newer.partition(b'"xxh3":"')
    checksum = xxhash.xxh3_128_hexdigest(before + key + b"0" * 32 + after[32:])
    return before + key + checksum.encode() + after[32:]


def test_a_newer_format_is_told_apart() -> None:
    header = as_newer(encode_header(make_stored(1)[0]))
    with pytest.raises(NotOurs, match="newer"):
        decode_header(header)


def test_a_damaged_file_is_not_taken_for_a_newer_one() -> None:
    header = encode_header(make_stored(1)[0])
    with pytest.raises(ValueError, match="checksum"):
        decode_header(header.replace(b'"reader":"1"', b'"reader":"3"'))


def test_a_sound_file_of_another_program_is_told_apart() -> None:
    text = b'{"weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    with pytest.raises(NotOurs, match="another program"):
        decode_header(len(text).to_bytes(8, "little") + text)
