"""Detokenizers over vocabularies made up here."""

import pytest

from bramley.worker.text.detokenizer import ByteDetokenizer, WindowDetokenizer

# A vocabulary in SentencePiece's way: a mark for spaces, a token for each byte at need.
PIECES = ["<s>", "▁", "▁a", "b", "▁▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x41>", "\n"]
START, SPACE, A, B, SPACES, F0, N9F, N98, N80, BYTE_A, NEWLINE = range(len(PIECES))


def decode(ids: list[int]) -> str:
    """As SentencePiece tokenizers do: a run of bytes is read whole or not at all."""
    text, run = "", b""
    for number in [*ids, START]:
        piece = PIECES[number]
        if piece.startswith("<0x"):
            run += bytes.fromhex(piece[3:5])
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        run = b""
        text += "" if number == START else piece.replace("▁", " ")
    return text.removeprefix(" ")


def windowed() -> WindowDetokenizer:
    return WindowDetokenizer(decode, PIECES.__getitem__, lambda number: number == START)


def test_a_character_split_over_tokens_comes_out_once_whole() -> None:
    detokenizer = ByteDetokenizer(lambda number: bytes([number]))
    pieces = [detokenizer.push([value]) for value in "a😀é".encode()]
    assert pieces == ["a", "", "", "", "😀", "", "é"]
    assert detokenizer.finish() == ""


def test_an_incomplete_character_at_the_end_becomes_a_mark() -> None:
    detokenizer = ByteDetokenizer(lambda number: bytes([number]))
    assert detokenizer.push([*b"a\xf0\x9f"]) == "a"
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize(
    "ids",
    [
        [A, B, A],
        [SPACE, A],
        [SPACES, SPACES, B],
        [NEWLINE, A],
        [START, A, START, A],
        [A, F0, N9F, N98, N80, B],
        [A, F0, N9F, N98, N80, BYTE_A, F0],
        [F0, N9F, B, N80],
        [A, F0, N9F],
        [],
    ],
)
def test_windowed_pieces_join_to_the_whole_decode(ids: list[int]) -> None:
    for size in (1, 2, len(ids) or 1):
        detokenizer = windowed()
        pieces = [detokenizer.push(ids[at : at + size]) for at in range(0, len(ids), size)]
        assert "".join(pieces) + detokenizer.finish() == decode(ids)


def test_a_run_of_byte_tokens_is_held_until_it_ends() -> None:
    detokenizer = windowed()
    assert detokenizer.push([A]) == "a"
    assert [detokenizer.push([number]) for number in (F0, N9F, N98, N80)] == [""] * 4
    assert detokenizer.push([B]) == "😀b"
