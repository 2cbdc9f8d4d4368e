"""Markers are found wherever they are cut; what may become one is held back, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bramley.worker.reading.scanner import Scanner

Parts = list[tuple[str, str | None]]


def scan(scanner: Scanner, pieces: list[str]) -> Parts:
    """Text and markers in turn; texts without a marker between them are joined."""
    parts: Parts = []
    for piece in pieces:
        parts += step(scanner, piece)
    while True:
        before, marker, rest = scanner.finish()
        parts.append((before, marker))
        if marker is None:
            break
        parts += step(scanner, rest)
    return tidy(parts)


def step(scanner: Scanner, text: str) -> Parts:
    parts: Parts = []
    marker: str | None = ""
    while marker is not None:
        before, marker, text = scanner.push(text)
        parts.append((before, marker))
    return parts


def tidy(parts: Parts) -> Parts:
    made: Parts = [("", None)]
    for before, marker in parts:
        made[-1] = (made[-1][0] + before, marker)
        if marker is not None:
            made.append(("", None))
    return made


def expected(markers: list[str], text: str) -> Parts:
    """The first marker, of several the longest, and so on behind it."""
    parts: Parts = [("", None)]
    place = 0
    while place < len(text):
        here = [marker for marker in markers if text.startswith(marker, place)]
        if here:
            marker = max(here, key=len)
            parts[-1] = (parts[-1][0], marker)
            parts.append(("", None))
            place += len(marker)
        else:
            parts[-1] = (parts[-1][0] + text[place], None)
            place += 1
    return parts


@given(
    markers=st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4),
    pieces=st.lists(st.text("ab<", max_size=6), max_size=8),
)
def test_any_text_in_any_pieces_is_parted_at_the_first_and_longest_markers(
    markers: list[str], pieces: list[str]
) -> None:
    assert scan(Scanner(markers), pieces) == expected(markers, "".join(pieces))


@given(
    markers=st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4),
    pieces=st.lists(st.text("ab<", max_size=6), max_size=8),
)
def test_no_more_is_held_back_than_may_become_part_of_a_marker(
    markers: list[str], pieces: list[str]
) -> None:
    scanner = Scanner(markers)
    given_out = ""
    longest = max(map(len, markers))
    for place, piece in enumerate(pieces):
        parts = step(scanner, piece)
        given_out += "".join(before + (marker or "") for before, marker in parts)
        so_far = "".join(pieces[: place + 1])
        assert so_far.startswith(given_out)
        held = so_far[len(given_out) :]
        assert len(held) < 2 * longest
        if held:
            assert any(marker.startswith(held[:1]) for marker in markers)


def test_text_that_can_be_no_marker_is_given_out_at_once() -> None:
    scanner = Scanner(["</think>"])
    assert scanner.push("a < b") == ("a < b", None, "")
    assert scanner.push("</thin") == ("", None, "")
    assert scanner.push("gs") == ("</things", None, "")


def test_what_stands_behind_a_marker_is_not_looked_at() -> None:
    scanner = Scanner(["<a>"])
    assert scanner.push("x<a>y<a>z") == ("x", "<a>", "y<a>z")
    assert scanner.finish() == ("", None, "")


def test_a_longer_marker_is_waited_for() -> None:
    scanner = Scanner(["<a", "<abc>"])
    assert scanner.push("x<a") == ("x", None, "")
    assert scanner.push("bc") == ("", None, "")
    assert scanner.push(">") == ("", "<abc>", "")
    assert scanner.push("<ab") == ("", None, "")
    assert scanner.push("-") == ("", "<a", "b-")


@pytest.mark.parametrize(("held", "found"), [("<a", ("", "<a", "")), ("<ab", ("", "<a", "b"))])
def test_at_the_end_a_marker_that_may_have_grown_is_one(
    held: str, found: tuple[str, str | None, str]
) -> None:
    scanner = Scanner(["<a", "<abc>"])
    assert scanner.push(held) == ("", None, "")
    assert scanner.finish() == found
    assert scanner.finish() == ("", None, "")
