"""Where a vocabulary has a blank before every first word, the text told keeps to the grammar."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bramley.protos.v1.types_pb2 import Constraint
from bramley.worker.grammar import masks
from bramley.worker.grammar.compiler import make
from bramley.worker.grammar.constraint import to_lark
from bramley.worker.grammar.guide import Guide
from bramley.worker.grammar.vocabulary import Vocabulary
from bramley.worker.models.mlx_lm import load_tokenizer
from bramley.worker.text.tokenizer import Tokenizer
from support.schemas import byte_tokenizer
from support.sentencepiece import write_with_normalizer, write_with_pre_tokenizer

END = 0


@pytest.fixture(params=[write_with_normalizer, write_with_pre_tokenizer])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    write: Callable[[Path], None] = request.param
    write(tmp_path / "model")
    return Tokenizer(load_tokenizer(tmp_path / "model"))


def first(vocabulary: Vocabulary, constraint: Constraint) -> set[bytes]:
    """What an answer may begin with."""
    one = guide(vocabulary, constraint)
    return {vocabulary.token_bytes(number) for number in allowed(one)}


def guide(vocabulary: Vocabulary, constraint: Constraint) -> Guide:
    lark = to_lark(constraint, drops_blank=vocabulary.drops_blank)
    return Guide(vocabulary, (END,), make(vocabulary, lark))


def allowed(one: Guide) -> list[int]:
    packed = masks.fill([one], one.vocabulary.size)
    assert packed is not None
    assert one.error is None
    bits = np.unpackbits(packed.view(np.uint8), bitorder="little")[: one.vocabulary.size]
    return np.flatnonzero(bits).tolist()


def test_an_answer_may_begin_with_a_word_s_own_token(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.drops_blank
    begins = first(vocabulary, Constraint(regex="ab+"))
    assert {b" ", b" a", b"a", b"ab"} <= begins
    assert b" {" not in begins
    assert {b" ", b"{"} <= first(vocabulary, Constraint(json_object=True))


def test_what_begins_with_a_blank_itself_has_one_more(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer)
    assert first(vocabulary, Constraint(regex=" a")) == {b" "}
    choice = Constraint.Choice(values=[" a", "b"])
    assert first(vocabulary, Constraint(choice=choice)) == {b" ", b"b"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("constraint", "meant"),
    [
        (Constraint(regex="ab+"), "ab+"),
        (Constraint(regex=" a?b"), " a?b"),
        (Constraint(regex=" ?a"), " ?a"),
        (Constraint(choice=Constraint.Choice(values=[" a", "ab", "b b"])), " a|ab|b b"),
        (Constraint(grammar='start: " "? "a" | "b"'), " ?a|b"),
        (Constraint(json_schema='{"enum": ["a b", 1]}'), '"a b"|1'),
    ],
    ids=str,
)
def test_the_text_that_is_told_is_what_the_constraint_says(
    tokenizer: Tokenizer, constraint: Constraint, meant: str, seed: int
) -> None:
    draws = np.random.default_rng(seed)
    one = guide(Vocabulary(tokenizer), constraint)
    told = tokenizer.detokenizer()
    text = ""
    for _ in range(200):
        token = int(draws.choice(allowed(one)))
        is_whole = one.take(token)
        if token != END:
            text += told.push([token])
        if is_whole:
            break
    assert re.fullmatch(meant, text + told.finish())


def test_a_vocabulary_of_bytes_drops_none() -> None:
    assert not byte_tokenizer().drops_blank
    assert to_lark(Constraint(regex="a")) == "start: TEXT\nTEXT: /a/\n"
