"""Bodies are read strictly, and what is wrong is named by its path."""

from time import thread_time
from typing import Annotated, Any

import msgspec
import pytest

from bramley.common.errors import InvalidRequest
from bramley.router.gateway.bodies import convert, decode


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """A part."""

    text: str


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    """A body."""

    count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    parts: list[Inner] = []
    bias: dict[int, float] = {}


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is not JSON"),
        (b"{}{}", "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b'"\xc3"', "byte 1 is not UTF-8"),
        (b'"\xed\xa0\xbd"', "byte 1 is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "is not UTF-8"),
        (b"[NaN]", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"[1e400]", "1e400 is too big a number"),
        (b"1" * 5000, "is too big a number"),
        (b"[-" + b"1" * 310 + b"]", "is too big a number"),
        (b'[{"a": 1, "b": 2, "a": 1}]', "the key 'a' twice"),
    ],
)
def test_what_is_not_strictly_json_is_refused(body: bytes, said: str) -> None:
    error = refusal(body)
    assert error.field == "body"
    assert said in error.problem


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (rb'"\ud83d"', "body"),
        (rb'{"a": [{"b": "x\ude00"}]}', "a[0].b"),
        (rb'{"a": {"\ud83d": 1}}', "a"),
        (rb'{"a": "\ude00\ud83d"}', "a"),
    ],
)
def test_half_a_pair_is_named(body: bytes, field: str) -> None:
    assert refusal(body).field == field


def test_a_pair_and_other_escapes_are_text() -> None:
    assert decode(rb'["\ud83d\ude00", "\u0000", "\\ud83d"]') == ["\U0001f600", "\0", r"\ud83d"]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "body"),
        ({"speed": 1}, "speed"),
        ({"count": -1}, "count"),
        ({"count": 1.5}, "count"),
        ({"count": "4"}, "count"),
        ({"count": True}, "count"),
        ({"parts": [{"text": "x"}, {}]}, "parts[1].text"),
        ({"parts": [{"text": "x", "speed": 1}]}, "parts[0].speed"),
        ({"parts": [{"text": None}]}, "parts[0].text"),
        ({"bias": {"x": 1}}, "bias"),
        ({"bias": {"1": "x"}}, "bias[...]"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert(value, Outer)
    assert caught.value.field == field


def test_digits_may_be_many_in_a_text_and_in_a_number_that_is_one() -> None:
    many = "1" * 305
    assert decode(f'["{many * 20}", {many}]'.encode()) == [many * 20, int(many)]


def test_keys_may_be_numbers() -> None:
    assert convert({"bias": {"12": 1}}, Outer).bias == {12: 1.0}


def test_a_key_twice_among_many_is_soon_found() -> None:
    keys = ",".join(f'"{number}":1' for number in range(20_000))
    began_s = thread_time()
    assert "the key '19999' twice" in refusal(f'{{{keys},"19999":1}}'.encode()).problem
    assert thread_time() - began_s < 2.0


def test_little_is_shown_of_what_is_long() -> None:
    for value in ({"k" * 100_000: 1}, {"bias": {"k" * 100_000: 1}}):
        with pytest.raises(InvalidRequest) as caught:
            convert(value, Outer)
        assert len(str(caught.value)) < 2000
