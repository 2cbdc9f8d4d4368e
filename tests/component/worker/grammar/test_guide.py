"""Which ids may come next: reasoning, its budget, white space, a grammar, an end."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from bramley.protos.v1.types_pb2 import Constraint
from bramley.worker.grammar import masks
from bramley.worker.grammar.compiler import Compiled, make
from bramley.worker.grammar.constraint import to_lark
from bramley.worker.grammar.guide import GAP_TOKENS, Guide, Reasoning
from support.byte_tokenizer import END, EOS, STOP
from support.schemas import byte_tokenizer, byte_vocabulary, reasoning

WIDTH = 320  # logits: more than ids
OBJECT = 'start: %json {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], \
"additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}'


def grammar(lark: str) -> Compiled:
    return make(byte_vocabulary(), lark)


def guide(
    compiled: Compiled | None, rule: Reasoning | None = None, ends: Sequence[int] = (EOS,)
) -> Guide:
    return Guide(byte_vocabulary(), ends, compiled, rule)


def allowed(one: Guide) -> set[int]:
    packed = masks.fill([one], WIDTH)
    if packed is None:
        return set(range(WIDTH))
    assert one.error is None
    return set(np.flatnonzero(np.unpackbits(packed.view(np.uint8), bitorder="little")).tolist())


def write(one: Guide, text: str) -> bool:
    """Take a text, each of whose bytes must be allowed; says whether it is whole at its end."""
    is_whole = False
    for token in text.encode():
        assert not is_whole, "it was whole before"
        assert token in allowed(one), (text, chr(token))
        is_whole = one.take(token)
        assert one.error is None
    return is_whole


def forced(one: Guide) -> str:
    """Take tokens as long as there is but one."""
    text = b""
    while len(may := allowed(one)) == 1 and max(may) < 256:
        text += bytes(may)
        if one.take(may.pop()):
            break
    return text.decode()


def test_an_answer_is_whole_at_once_where_nothing_may_follow() -> None:
    one = guide(grammar(OBJECT))
    assert not write(one, '{"a":1')
    assert write(one, "}")


@pytest.mark.parametrize("ends", [(EOS,), (END,), (EOS, END, STOP), (EOS, ord("z"))])
def test_the_end_is_allowed_where_the_grammar_may_end_and_nowhere_else(ends: list[int]) -> None:
    one = guide(grammar("start: /a+/"), ends=ends)
    assert allowed(one) == {ord("a")}
    assert not write(one, "a")
    assert allowed(one) == {ord("a"), *ends}
    assert one.take(ends[-1])


def test_an_end_token_that_ends_nothing_here_is_never_allowed() -> None:
    one = guide(grammar("start: /a+/"), ends=())
    write(one, "aa")
    assert allowed(one) == {ord("a")}


def test_a_stop_id_is_not_drawn_where_the_grammar_must_go_on() -> None:
    one = guide(grammar('start: "ab" | "b"'), ends=(EOS, ord("b")))
    assert allowed(one) == {ord("a")}


def test_a_row_that_nothing_may_follow_is_in_error_alone() -> None:
    stuck = guide(grammar('start: "ab"'), ends=(EOS, ord("b")))
    fine = guide(grammar('start: "ab"'))
    for one in (stuck, fine):
        one.take(ord("a"))
    packed = masks.fill([fine, stuck], WIDTH)
    assert packed is not None
    assert packed[1].min() == 0xFFFFFFFF
    assert stuck.error is not None
    assert stuck.error.code == "INTERNAL"
    assert fine.error is None
    assert allowed(fine) == {ord("b")}
    assert stuck.is_free
    assert not stuck.take(ord("b"))


def test_a_matcher_that_gives_up_is_an_error_of_its_row() -> None:
    text = LLMatcher.grammar_from_lark('start: ("a"|"b"|"ab"|start start)+')
    limits = LLParserLimits(step_max_items=60, max_items_in_row=20)
    one = guide(Compiled(LLMatcher(byte_vocabulary().build(), text, log_level=0, limits=limits)))
    for _ in range(50):
        if masks.fill([one], WIDTH) is None or one.error is not None:
            break
        one.take(ord("a"))
    assert one.error is not None
    assert one.error.reason == "GRAMMAR"


def test_a_token_that_was_not_allowed_is_an_error() -> None:
    one = guide(grammar('start: "a"'))
    assert not one.take(ord("b"))
    assert one.error is not None


def test_answers_of_one_grammar_do_not_know_each_other() -> None:
    compiled = grammar('start: "ab"')
    first, second = guide(compiled), guide(compiled)
    write(first, "a")
    assert allowed(second) == {ord("a")}
    assert write(first, "b")


@pytest.mark.parametrize("white", ["", "\n\n", " ", "\r\n\t "])
def test_white_space_may_stand_between_reasoning_and_the_grammar(white: str) -> None:
    one = guide(grammar(OBJECT), reasoning(byte_tokenizer()))
    write(one, "so</think>")
    assert write(one, white + '{"a":1}')


def test_white_space_before_the_grammar_has_an_end() -> None:
    one = guide(grammar(OBJECT), reasoning(byte_tokenizer()))
    write(one, "</think>" + "\n" * GAP_TOKENS)
    assert allowed(one) == {ord("{")}


def test_without_reasoning_no_white_space_comes_first() -> None:
    assert allowed(guide(grammar(OBJECT))) == {ord("{")}


def test_reasoning_is_free_but_for_the_end_of_the_answer() -> None:
    one = guide(grammar(OBJECT), reasoning(byte_tokenizer()), ends=(EOS, STOP))
    assert allowed(one) == set(range(WIDTH)) - {EOS, STOP}


def test_a_marker_of_plain_tokens_ends_reasoning_only_when_it_is_whole() -> None:
    one = guide(grammar(OBJECT), reasoning(byte_tokenizer()))
    write(one, "a</thin</think")
    assert ord("x") in allowed(one)
    write(one, ">")
    assert ord("x") not in allowed(one)
    assert one.reasoning_tokens == len("a</thin</think")


def test_a_budget_is_a_number_of_tokens_and_then_the_marker_comes() -> None:
    one = guide(grammar(OBJECT), reasoning(byte_tokenizer(), budget=3))
    write(one, "abc")
    assert forced(one) == "\n</think>\n\n"
    assert one.reasoning_tokens == 3
    assert write(one, '{"a":1}')


def test_a_budget_of_nothing_ends_what_the_prompt_opened_at_once() -> None:
    one = guide(grammar(OBJECT), reasoning(byte_tokenizer(), budget=0))
    assert forced(one) == "\n</think>\n\n"


def test_a_budget_of_nothing_ends_what_the_model_opens_as_soon_as_it_has() -> None:
    one = guide(None, reasoning(byte_tokenizer(), is_open=False, budget=0))
    assert one.is_free
    write(one, "<think>")
    assert not one.is_free
    assert forced(one) == "\n</think>\n\n"
    assert one.is_free
    write(one, "content <think> is content")
    assert one.is_free


def test_a_budget_without_a_grammar_asks_for_no_mask_until_it_is_used_up() -> None:
    one = guide(None, reasoning(byte_tokenizer(), budget=4))
    for token in b"abcd":
        assert masks.fill([one, None], WIDTH) is None
        assert not one.take(token)
    assert forced(one) == "\n</think>\n\n"
    assert masks.fill([one], WIDTH) is None
    assert not one.take(ord("x"))


def test_a_budget_binds_only_shortly_before_it_is_used_up() -> None:
    one = guide(None, reasoning(byte_tokenizer(), budget=4))
    bound: list[bool] = []
    for token in b"abc":
        bound.append(one.binds_soon)
        one.take(token)
    assert bound == [False, False, False]
    assert one.binds_soon
    one.take(ord("d"))
    assert forced(one) == "\n</think>\n\n"
    assert guide(grammar(OBJECT)).binds_soon
    assert not guide(None, reasoning(byte_tokenizer())).binds_soon


def test_reasoning_that_ends_by_itself_uses_no_more_of_the_budget() -> None:
    one = guide(None, reasoning(byte_tokenizer(), budget=20))
    write(one, "ab</think>" + "c" * 30)
    assert one.reasoning_tokens == len("ab</think")
    assert one.is_free


def test_an_end_token_ends_reasoning_where_no_grammar_follows() -> None:
    assert guide(None, reasoning(byte_tokenizer(), budget=4)).take(EOS)


def test_the_answer_may_begin_with_reasoning_or_with_the_grammar() -> None:
    compiled, tokenizer = grammar(OBJECT), byte_tokenizer()
    one = guide(compiled, reasoning(tokenizer, is_open=False))
    assert allowed(one) == {ord("<"), ord("{")}
    write(one, "<think>any</think>")
    assert write(one, '{"a":1}')
    other = guide(compiled, reasoning(tokenizer, is_open=False))
    assert write(other, '{"a":1}')


def test_where_reasoning_is_off_the_answer_begins_with_the_grammar() -> None:
    rule = reasoning(byte_tokenizer(), is_open=False)
    rule.is_off = True
    one = guide(grammar(OBJECT), rule)
    assert allowed(one) == {ord("{")}
    assert write(one, '{"a":1}')
    headed = reasoning(byte_tokenizer(), is_open=False, first="<final>")
    headed.is_off = True
    assert forced(guide(grammar('start: "yes"'), headed)) == "<final>yes"


@pytest.mark.parametrize(("lark", "is_barred"), [("start: /[<a]+/", True), ("start: /<+/", False)])
def test_where_reasoning_is_off_its_marker_comes_first_only_if_nothing_else_may(
    lark: str, *, is_barred: bool
) -> None:
    rule = reasoning(byte_tokenizer(), is_open=False)
    rule.is_off, rule.start_ids = True, [ord("<")]  # a marker that is one token
    one = guide(grammar(lark), rule)
    assert (ord("<") in allowed(one)) is not is_barred
    write(one, "a" if is_barred else "<")
    assert ord("<") in allowed(one)


def test_what_begins_as_the_marker_does_may_still_be_content() -> None:
    compiled, tokenizer = grammar('start: "<thing>" | "<t" /[a-z]+/ "!"'), byte_tokenizer()
    one = guide(compiled, reasoning(tokenizer, is_open=False))
    assert write(one, "<thing>")
    two = guide(compiled, reasoning(tokenizer, is_open=False))
    write(two, "<think>hm</think>")
    assert write(two, "<tip!")


def test_a_marker_opens_reasoning_however_it_is_cut_into_tokens() -> None:
    rule = reasoning(byte_tokenizer(), is_open=False)
    rule.start_ids = [STOP]  # as one token; here it comes in seven
    one = guide(grammar("start: /[a-z<>]+/"), rule)
    assert {STOP, ord("<")} <= allowed(one)
    write(one, "<think>")
    assert EOS not in allowed(one)
    write(one, "it is free, 1 2 3</think>")
    assert not write(one, "<think>")  # behind reasoning it is content
    assert EOS in allowed(one)


def test_the_start_of_a_marker_may_be_the_whole_answer() -> None:
    rule = reasoning(byte_tokenizer(), is_open=False)
    rule.start_ids = [STOP]
    assert write(guide(grammar('start: "<th"'), rule), "<th")
    other = guide(grammar('start: "<th" "e"?'), rule)
    write(other, "<th")
    assert allowed(other) == {EOS, ord("e")}


@pytest.mark.parametrize("ends", [(), (EOS,)])
@pytest.mark.parametrize("lark", ['start: ""', "start: /a{0}/", 'start: ("" | "")'])
def test_an_answer_of_nothing_is_whole_with_an_end_be_it_ignored(
    ends: tuple[int, ...], lark: str
) -> None:
    one = guide(grammar(lark), ends=ends)
    assert EOS in allowed(one)
    assert allowed(one) <= byte_vocabulary().end_ids
    assert one.take(EOS)
    assert one.error is None


def test_texts_that_stand_before_content_are_written_and_no_part_of_the_grammar() -> None:
    compiled, tokenizer = grammar('start: "yes"'), byte_tokenizer()
    direct = guide(compiled, reasoning(tokenizer, is_open=False, first="<final>", lead="<on>"))
    assert allowed(direct) == {ord("<")}
    assert write(direct, "<final>yes")
    through = guide(compiled, reasoning(tokenizer, is_open=False, first="<final>", lead="<on>"))
    write(through, "<think>a</think>")
    assert forced(through) == "<on>yes"  # white space behind it would be content


def test_no_white_space_follows_what_stands_before_content() -> None:
    one = guide(
        grammar('start: "yes"'), reasoning(byte_tokenizer(), is_open=False, first="<final>")
    )
    write(one, "<final>")
    assert allowed(one) == {ord("y")}


@pytest.mark.parametrize("ends", [(EOS,), (EOS, STOP), ()])
def test_an_end_token_that_the_grammar_writes_comes_where_it_must(ends: tuple[int, ...]) -> None:
    one = guide(grammar(f'start: "a" <[{EOS}]>'), ends=ends)
    assert allowed(one) == {ord("a")}
    write(one, "a")
    assert allowed(one) == {EOS}
    assert one.take(EOS)


def test_a_closing_that_closes_nothing_is_an_error() -> None:
    rule = reasoning(byte_tokenizer(), budget=0)
    rule.closing_ids = [ord("x")]
    one = guide(None, rule)
    one.take(ord("x"))
    assert one.error is not None


@pytest.mark.parametrize("text", ['{"a":1}', '{\n  "a": 1\n}'])
def test_b039_an_answer_is_one_value_and_ends_at_its_last_brace(text: str) -> None:
    constraint = Constraint(json_schema='{"type":"object","properties":{"a":{"type":"integer"}}}')
    one = guide(grammar(to_lark(constraint)))
    assert write(one, text)
    assert allowed(one) == {EOS}  # of a blank drawn beyond it nothing would come


@pytest.mark.parametrize("seed", range(5))
def test_b039_white_space_is_nowhere_endless(seed: int) -> None:
    schema = '{"type": "array", "items": {"type": "null"}, "maxItems": 3}'
    one = guide(grammar(to_lark(Constraint(json_schema=schema))))
    draws, whole = np.random.default_rng(seed), False
    text = b""
    while not whole and len(text) < 300:
        blank = sorted(allowed(one) & set(b" \n\t\r"))
        others = sorted(allowed(one) - {EOS} - set(blank))
        text += bytes([int(draws.choice(blank or others))])
        whole = one.take(text[-1])
    assert max(map(len, re.findall(rb"[ \t\r\n]+", text)), default=0) <= 66
