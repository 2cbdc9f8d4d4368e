"""A tokenizer as grammars see it."""

import threading

import pytest

from bramley.worker.grammar.compiler import make
from bramley.worker.grammar.vocabulary import Vocabulary
from support.byte_tokenizer import END, EOS
from support.schemas import byte_vocabulary, smollm2_tokenizer, smollm2_vocabulary


def test_a_special_token_stands_by_its_id_and_other_markers_as_text() -> None:
    vocabulary = byte_vocabulary()
    assert vocabulary.terminal("<|end|>") == f"<[{END}]>"
    assert vocabulary.terminal('<tool "x">\n') == r'"<tool \"x\">\n"'


def test_a_grammar_asks_for_a_special_token_and_takes_no_text_for_it() -> None:
    vocabulary = byte_vocabulary()
    matcher = make(vocabulary, f'start: {vocabulary.terminal("<|end|>")} "a"').matcher()
    assert matcher.validate_tokens([ord("<")]) == 0
    assert matcher.validate_tokens([END, ord("a")]) == 2


def test_special_tokens_are_no_text_of_a_grammar() -> None:
    matcher = make(byte_vocabulary(), "start: /(.|\\n)*/").matcher()
    assert matcher.validate_tokens([END]) == 0
    assert matcher.validate_tokens(list(b"<|end|>")) == 7


def test_every_token_of_a_real_vocabulary_has_its_bytes() -> None:
    tokenizer, vocabulary = smollm2_tokenizer(), smollm2_vocabulary()
    library = vocabulary.build()
    assert library.vocab_size == vocabulary.size == 49152
    assert library.eos_tokens == sorted(tokenizer.eos_token_ids)
    text = 'Déjà vu: 42 %\n\t{"a": [1]} 😀'
    ids = tokenizer.encode(text, special_tokens=False)
    assert library.decode_bytes(ids) == text.encode()
    assert all(library.is_special_token(number) for number in tokenizer.special_ids)


def test_one_thread_builds_and_the_others_wait_for_it() -> None:
    vocabulary = Vocabulary(smollm2_tokenizer())
    built: list[object] = []
    threads = [threading.Thread(target=lambda: built.append(vocabulary.build())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, built))) == 1


@pytest.mark.parametrize("number", [ord(" "), ord("\n"), ord("\t")])
def test_white_space_is_what_is_nothing_else(number: int) -> None:
    vocabulary = byte_vocabulary()
    assert number in vocabulary.spaces
    assert not {ord("a"), ord("\f"), END, EOS} & vocabulary.spaces
    assert vocabulary.space_words[number // 32] >> (number % 32) & 1


def test_tokens_that_end_a_marker_and_go_on_are_known() -> None:
    vocabulary = smollm2_vocabulary()
    marker = b"</think>"
    for known in range(len(marker)):
        for number in vocabulary.crossing(marker, known):
            text = marker[:known] + vocabulary.token_bytes(number)
            assert text.partition(marker)[2].strip()
    ends = {vocabulary.token_bytes(number) for number in vocabulary.crossing(marker, 7)}
    assert b"></" in ends
    assert not {b">", b">\n"} & ends
