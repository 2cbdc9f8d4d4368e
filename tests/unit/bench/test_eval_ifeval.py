"""Each instruction: an answer that follows it, one that does not, and the odd ones between."""

from typing import Any

import pytest

from bramley.bench.eval.tasks import ifeval
from bramley.bench.eval.tasks.contract import Answer, Setting
from bramley.bench.eval.tasks.instructions import CHECKS, KEYWORDS, sentences, words

# Of each instruction: its keywords, answers that follow it, answers that do not.
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "change_case:capital_word_frequency",
        {"capital_relation": "at least", "capital_frequency": 2},
        ["NO and NO", "A BIG day"],
        ["NO and no", ""],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_relation": "less than", "capital_frequency": 1},
        ["quiet"],
        ["LOUD"],
    ),
    ("change_case:english_capital", {}, ["ALL OF IT, 100 %"], ["ALL oF IT", "12"]),
    ("change_case:english_lowercase", {}, ["all of it"], ["All of it", "…"]),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Say hello"},
        ["Say hello\nHello!", " say hello. Hello"],
        ["Hello! Say hello", ""],
    ),
    (
        "combination:two_responses",
        {},
        ["one ****** two", "one\n******\ntwo"],
        ["one", "one ****** one", "one ****** two ****** three", "one *** two"],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] and [date]"],
        ["[name]", "[] and []", "[a\nb] [c\nd]"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye\nP.S. Write soon", "**P.S.** Write"],
        ["Bye", "P.S.", "word P.S. more"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is no.", "Well: My answer is maybe."],
        ["No.", "my answer is no"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": [1]}', '```json\n{"a": 1}\n```', "[]"],
        ['Here: {"a": 1}', "{a: 1}", ""],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\nx\nSECTION 2\ny", "**SECTION 1**\n## SECTION 2"],
        ["SECTION 1", "see SECTION 1 and SECTION 2", "SECTION\nSECTION"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "intro\n - a\n - b"],
        ["* a", "* a\n* b\n* c", "*a\n*b", "**a** b\n**c** d"],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a b* and *c*", "**a** then *b*"],
        ["*a*", "2 * 3 * 4", "* a\n* b"],
    ),
    ("detectable_format:title", {}, ["<<Hi>>\ntext"], ["<Hi>", "<<>>", "<< >>"]),
    (
        "keywords:existence",
        {"keywords": ["lake", "blue"]},
        ["A Blue lake."],
        ["A blue lakeside.", "blue"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["book"]},
        ["A bookshop"],
        ["A Book.", "book"],
    ),
    (
        "keywords:frequency",
        {"keyword": "sea", "frequency": 2, "relation": "at least"},
        ["sea, Sea"],
        ["sea and season"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "q", "let_frequency": 2, "let_relation": "less than"},
        ["Quick"],
        ["quick Quiz"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        ["One.\n\nThen two.", 'One.\n\n"Then" two.'],
        ["Then one.\n\nTwo.", "One.\n\nThen.\n\nThree."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n\nb", "a\n***\nb\n\nb", "\n\na\n \nb\n"],
        ["a", "a\nb", "a\n\nb\n\nc"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        ["One. Two.", "One! And two"],
        ["One.", "3.14 is pi"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "less than"},
        ["don't go", "well-known fact", "…"],
        ["one two three"],
    ),
    ("length_constraints:number_words", {"num_words": 1}, ["one"], ["—"]),
    ("punctuation:no_comma", {}, ["a; b"], ["a, b", "一、二"]),
    (
        "startend:end_checker",
        {"end_phrase": "Good bye."},
        ["So: good bye.", 'He said "Good bye."\n'],
        ["Good bye. Then", "Good bye"],
    ),
    ("startend:quotation", {}, ['"Yes."', " “Yes.” "], ['"Yes', "'Yes'", '""', 'a "b"']),
]


def test_every_instruction_has_its_cases() -> None:
    assert {name for name, *_ in CASES} == CHECKS.keys()
    assert KEYWORDS.keys() <= CHECKS.keys()


@pytest.mark.parametrize(("name", "keywords", "right", "wrong"), CASES)
def test_an_instruction_is_followed_or_not(
    name: str, keywords: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    for text in right:
        assert CHECKS[name](text, keywords) == "", text
    for text in wrong:
        assert CHECKS[name](text, keywords), text


def test_words_and_sentences_are_counted_in_many_scripts() -> None:
    assert words("L\u2019été, c'est beau!") == ["L\u2019été", "c'est", "beau"]
    assert sentences("好。很好。") == 1  # no spaces between: the last mark alone ends one
    assert sentences('He said "no." Then he left…') == 2


def wish(*names: str) -> ifeval.Wish:
    return ifeval.Wish(
        id="w",
        prompt="?",
        instruction_id_list=list(names),
        kwargs=[{"num_bullets": 1, "relation": None} for _ in names],
    )


def test_an_answer_is_right_if_it_follows_all_and_tells_its_share() -> None:
    both = wish("punctuation:no_comma", "detectable_format:number_bullet_lists")
    right = ifeval.judge(both, Answer(text="* one"), Setting())
    assert (right.is_right, right.share) == (True, 1.0)
    half = ifeval.judge(both, Answer(text="* one, two"), Setting())
    assert (half.is_right, half.share) == (False, 0.5)
    assert half.why == "punctuation:no_comma: has a comma"


def test_an_empty_answer_follows_nothing() -> None:
    verdict = ifeval.judge(wish("punctuation:no_comma"), Answer(text=" \n"), Setting())
    assert (verdict.is_right, verdict.share) == (False, 0.0)
