"""Stop strings over any pieces of the same text give the same text."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bramley.worker.text.stop_strings import StopStrings


def run(
    text: str, stops: list[str], cuts: list[int] | None = None, *, include: bool = False
) -> tuple[str, str | None]:
    matcher = StopStrings(stops, include_stop=include)
    edges = sorted({0, len(text), *(cut for cut in cuts or [] if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        if matcher.matched is not None:
            return shown, matcher.matched
    return shown + matcher.flush(), None


EVERY_CHARACTER = list(range(64))

CASES = [
    ("The quick brown fox jumps", ["own fox"], "The quick br", "own fox"),
    ("xxabcd", ["ab", "abcd"], "xx", "ab"),
    ("xxabcd", ["abcd", "bc"], "xxa", "bc"),
    ("xxabcd", ["cd", "abcd"], "xx", "abcd"),
    ("a </en b", ["</end>"], "a </en b", None),
    ("one 😀 two", ["😀 "], "one ", "😀 "),
    ("aaab", ["aab"], "a", "aab"),
    ("held </en", ["</end>"], "held </en", None),
]


@pytest.mark.parametrize(("text", "stops", "shown", "matched"), CASES)
def test_b004_a_stop_string_over_pieces_is_met_and_never_partly_shown(
    text: str, stops: list[str], shown: str, matched: str | None
) -> None:
    assert run(text, stops, EVERY_CHARACTER) == (shown, matched)
    assert run(text, stops) == (shown, matched)


def test_the_stop_string_stays_when_asked_for() -> None:
    assert run("say stop now", ["stop"], include=True) == ("say stop", "stop")


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopStrings([]).push("anything") == "anything"


def test_only_what_may_become_a_match_is_held_back() -> None:
    matcher = StopStrings(["</end>"])
    assert matcher.push("a </") == "a "
    assert matcher.push("b") == "</b"


def test_many_long_strings_that_almost_match_cost_little() -> None:
    stops = ["abc " * 255 + f"X{number}" for number in range(64)]
    matcher = StopStrings(stops)
    began_s = time.process_time()
    for _ in range(1500):
        matcher.push("abc ")
    per_token_s = (time.process_time() - began_s) / 1500
    assert per_token_s < 1e-3  # a thousandth of a second for four characters and 64 strings


@given(
    st.text("ab", max_size=24),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 24)),
)
def test_any_pieces_give_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    assert run(text, stops, cuts) == run(text, stops)


@given(
    st.text("ab", max_size=24),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.integers(0, 24),
)
def test_what_is_completed_too_early_is_text_and_the_next_end_counts(
    text: str, stops: list[str], first: int
) -> None:
    matcher = StopStrings(stops)
    shown = "".join([matcher.push(character, may_end=False) for character in text[:first]])
    assert matcher.matched is None
    shown += matcher.push(text[first:])
    ends = [
        (place, -len(stop), stop)
        for place in range(first + 1, len(text) + 1)
        for stop in stops
        if text[:place].endswith(stop)
    ]
    if not ends:
        assert shown + matcher.flush() == text
        return
    place, _, stop = min(ends)
    # What was shown already cannot be taken back, and is never a part of the match.
    assert (matcher.matched, shown) == (stop, text[: place - len(stop)])
