"""Who gives a text that is none of a few is told which ones there are."""

from typing import Any, Literal

import msgspec
import pytest

from bramley.common.choices import told

Size = Literal["small", "large"]


class Cat(msgspec.Struct, tag="cat", tag_field="type"):
    """One of two."""


class Dog(msgspec.Struct, tag="dog", tag_field="type"):
    """The other."""

    size: Size


class Outer(msgspec.Struct):
    """A whole."""

    size: Size | None = None
    either: Size | Dog | int = 1
    renamed: Size | None = msgspec.field(default=None, name="called")
    sizes: dict[str, Size] = {}
    animals: list[Cat | Dog] = []


@pytest.mark.parametrize(
    ("value", "path", "said"),
    [
        ({"size": "big"}, "size", "'big' is none of large, small"),
        ({"either": "big"}, "either", "'big' is none of large, small"),
        ({"called": "big"}, "called", "'big' is none of large, small"),
        ({"sizes": {"x": "big"}}, "sizes[...]", "'big' is none of large, small"),
        ({"animals": [{"type": "cow"}]}, "animals[0].type", "'cow' is none of cat, dog"),
        (
            {"animals": [{"type": "dog", "size": "it's big\n"}]},
            "animals[0].size",
            '"it\'s big\\n" is none of large, small',
        ),
        ({"size": "b" * 1000}, "size", f"'{'b' * 99}… is none of large, small"),
        ({"size": 1}, "size", "Expected `str | null`, got `int`"),
    ],
)
def test_the_names_are_told(value: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Outer)
    problem, _, place = str(caught.value).partition(" - at ")
    assert place == f"`$.{path}`"
    assert told(problem, Outer, path) == said
