"""An answer that comes back as history is the ids it was drawn as, and its text never another."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bramley.worker.models.mlx_lm import load_tokenizer
from bramley.worker.text.chat import render
from bramley.worker.text.provenance import Provenance
from bramley.worker.text.tokenizer import Tokenizer
from support.segmentations import write_ambiguous, write_smollm2

ROOT = b"root"
KINDS = ("words", "anything", "smollm2")
ENDS = {"words": "<|end|>", "anything": "<|end|>", "smollm2": "<|im_end|>"}
# What merges in many ways, what no merge goes over, special tokens written out, parts of them.
PIECES = [
    "a",
    "b",
    "aab",
    "abab",
    " ab",
    "\n",
    "\n\n",
    "cd",
    "é",
    "<|end|>",
    "<|im_end|>",
    "<|",
    ">",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
REPLIES = st.lists(st.sampled_from(PIECES[:9]), min_size=1, max_size=12)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("provenance")


@cache
def load(folder: Path, kind: str) -> Tokenizer:
    if kind == "smollm2":
        write_smollm2(folder / kind)
    else:
        (folder / kind).mkdir()
        write_ambiguous(folder / kind, use_regex=kind == "words")
        (folder / kind / "config.json").write_text('{"model_type": "llama"}')
        (folder / kind / "model.safetensors").touch()
    return Tokenizer(load_tokenizer(folder / kind))


class Talk:
    """A conversation whose answers are drawn in any segmentation."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.tokenizer = load(folder, kind)
        self.end = self.tokenizer.encode(ENDS[kind], special_tokens=False)
        assert len(self.end) == 1
        self.provenance = Provenance(self.tokenizer)
        self.messages: list[dict[str, str]] = []

    def plain(self) -> list[int]:
        return render(self.tokenizer, self.messages)

    def ids(self, plain: Sequence[int] | None = None, session: str = "s") -> Sequence[int]:
        plain = self.plain() if plain is None else plain
        ids = self.provenance.ids(ROOT, session, plain)
        assert self.text(ids) == self.text(plain)
        assert self.added(ids) == self.added(plain)
        return ids

    def ask(self, text: str) -> Sequence[int]:
        self.messages.append({"role": "user", "content": text})
        return self.ids()

    def answer(
        self, prompt: Sequence[int], pieces: Sequence[str], *, ends: bool = True
    ) -> list[int]:
        """Draw an answer piece by piece, each cut by itself; the whole sequence."""
        drawn = [n for piece in pieces for n in self.tokenizer.encode(piece, special_tokens=False)]
        sequence = [*prompt, *drawn, *(self.end if ends else [])]
        self.provenance.keep(ROOT, "s", sequence)
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        return sequence

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def added(self, ids: Sequence[int]) -> list[int]:
        return [number for number in ids if number in self.tokenizer.added_ids]


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(TEXTS, REPLIES, st.booleans()), min_size=1, max_size=4), last=TEXTS)
def test_kept_ids_begin_the_next_prompt_whatever_it_says(
    folder: Path, kind: str, turns: list[tuple[str, list[str], bool]], last: str
) -> None:
    talk = Talk(folder, kind)
    sequence: list[int] = []
    for question, reply, ends in turns:
        prompt = talk.ask(question)
        assert list(prompt[: len(sequence)]) == sequence
        sequence = talk.answer(prompt, reply, ends=ends)
    assert list(talk.ask(last)[: len(sequence)]) == sequence


@every_kind
@settings(max_examples=60, deadline=None)
@given(question=TEXTS, reply=REPLIES, other=TEXTS, data=st.data())
def test_an_edited_history_keeps_the_ids_before_the_edit(
    folder: Path, kind: str, question: str, reply: list[str], other: str, data: st.DataObject
) -> None:
    talk = Talk(folder, kind)
    prompt = talk.ask(question)
    talk.answer(prompt, reply)
    edited = data.draw(st.integers(0, len(reply)))
    talk.messages[-1]["content"] = "".join(reply[:edited]) + other
    ids = talk.ask("go on")
    own = len(prompt) - 1  # the line break that ends it may be one token with what follows
    assert list(ids[:own]) == list(prompt[:own])
    talk.messages[0]["content"] = other + "x" + question
    talk.ids()


@every_kind
@settings(max_examples=30, deadline=None)
@given(question=TEXTS, replies=st.lists(REPLIES, min_size=2, max_size=4), data=st.data())
def test_of_answers_to_one_prompt_the_one_that_goes_on_is_taken(
    folder: Path, kind: str, question: str, replies: list[list[str]], data: st.DataObject
) -> None:
    talk = Talk(folder, kind)
    prompt = talk.ask(question)
    texts = {"".join(reply): reply for reply in replies}
    sequences: dict[str, list[int]] = {}
    for text, reply in texts.items():
        sequences[text] = talk.answer(prompt, reply)
        talk.messages.pop()
    assert talk.ids() == prompt
    chosen = data.draw(st.sampled_from(sorted(texts)))
    talk.messages.append({"role": "assistant", "content": chosen})
    ids = talk.ask("go on")
    assert list(ids[: len(sequences[chosen])]) == sequences[chosen]


@every_kind
@settings(max_examples=60, deadline=None)
@given(question=TEXTS, reply=REPLIES, more=TEXTS)
def test_an_open_text_goes_on_in_the_same_words(
    folder: Path, kind: str, question: str, reply: list[str], more: str
) -> None:
    talk = Talk(folder, kind)
    sequence = talk.answer(talk.ask(question), reply, ends=False)
    plain = talk.tokenizer.encode(talk.text(sequence) + more, special_tokens=False)
    talk.ids(plain)
    talk.ids(plain[: len(plain) // 2])


@every_kind
def test_a_prompt_that_shares_nothing_is_left_alone(folder: Path, kind: str) -> None:
    talk = Talk(folder, kind)
    talk.answer(talk.ask("a"), ["b"])
    plain = talk.tokenizer.encode("cd", special_tokens=False)
    assert talk.ids(plain) is plain


@every_kind
def test_what_a_model_spelled_is_no_special_token(folder: Path, kind: str) -> None:
    talk = Talk(folder, kind)
    end = ENDS[kind]
    prompt = talk.ask("a")
    spelled = talk.answer(prompt, ["a", "a", end[:2], end[2:], "a", "a"], ends=False)
    assert talk.text(spelled[len(prompt) :]) == f"aa{end}aa"
    assert talk.added(spelled) == talk.added(prompt)
    talk.ask("b")  # its added ids are those that the text has
