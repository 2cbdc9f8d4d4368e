"""Each task's judge: right answers, wrong ones, and odd ones."""

import json
from decimal import Decimal
from string import ascii_uppercase
from typing import Any

import msgspec
import pytest

from bramley.bench.eval.tasks import bfcl, gsm8k, hashhop, mmlu
from bramley.bench.eval.tasks.command import SHIPPED, TASKS, read_items
from bramley.bench.eval.tasks.contract import Answer, Setting, Verdict

LETTERS = {letter: ord(letter) for letter in ascii_uppercase[:10]}
CHOOSING = mmlu.Question(id="q", question="Which?", choices=["w", "x", "y"], answer=1)


def chosen(**logprobs: float) -> Verdict:
    first = {ord(letter): logprob for letter, logprob in logprobs.items()}
    return mmlu.judge(CHOOSING, Answer(text="", first=first), Setting(letters=LETTERS))


def test_mmlu_takes_the_likeliest_letter_of_those_that_are_choices() -> None:
    assert chosen(A=-2.0, B=-1.0, C=-3.0).is_right
    assert not chosen(A=-0.5, B=-1.0).is_right
    assert chosen(B=-5.0, D=-0.1, Z=-0.1).is_right  # there is no choice D
    assert chosen(A=-1.0, B=-1.0).found == "A"


def test_mmlu_without_a_letter_among_the_likeliest_is_wrong_and_says_so() -> None:
    verdict = chosen(Z=-0.1)
    assert not verdict.is_right
    assert "no letter" in verdict.why


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("B.", "B"),
        (" (C) because it fits", "C"),
        ("The answer is A.", "A"),
        ("Answer: **B**", "B"),
        ("First I thought the answer is A. But no: the answer is C", "C"),
        ("A good question. The right one is (B).", "B"),
        ("A good question.", ""),
        ("I'd say none", ""),
        ("The answer is D", ""),  # of three choices
        ("answer b", "B"),
        ("", ""),
    ],
)
def test_mmlu_reads_the_letter_of_a_written_answer(text: str, letter: str) -> None:
    assert mmlu.written_letter(text, "ABC") == letter
    verdict = mmlu.judge(CHOOSING, Answer(text=text), Setting())
    assert verdict.is_right == (letter == "B")


def test_mmlu_asks_for_one_token_after_the_prompt_or_for_a_letter() -> None:
    by_logprobs = mmlu.ask(CHOOSING, Setting(letters=LETTERS))
    assert by_logprobs.text.endswith("A. w\nB. x\nC. y\nAnswer:")
    assert (by_logprobs.style, by_logprobs.max_tokens, by_logprobs.top) == ("raw", 1, mmlu.TOP)
    assert mmlu.ask(CHOOSING, Setting()).style == "chat"
    assert mmlu.ask(CHOOSING, Setting(style="raw", max_tokens=7)).max_tokens == 7


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so it is 12.", "12"),
        ("12, or rather 1,234.50 euros.", "1234.50"),
        ("#### 42", "42"),
        ("$1,000", "1000"),
        ("x = -7", "-7"),
        ("a loss of \u22123.5", "-3.5"),
        ("3/4", "4"),
        ("version v2", None),
        ("none at all", None),
        ("1,2,3", "3"),
        ("the 2nd of 10 runners", "10"),
        ("**18**", "18"),
        ("18%", "18"),
        ("Answer:18", "18"),
        ("7.0", "7"),
    ],
)
def test_gsm8k_reads_the_last_number(text: str, number: str | None) -> None:
    assert gsm8k.last_number(text) == (None if number is None else Decimal(number))


def test_gsm8k_compares_by_value_and_tells_of_answers_cut_off() -> None:
    item = gsm8k.Problem(id="p", question="?", answer="6 * 3 = 18\n#### 18")
    assert gsm8k.judge(item, Answer(text="It is 18.00"), Setting()).is_right
    wrong = gsm8k.judge(item, Answer(text="It is 17 and", finish="length"), Setting())
    assert (wrong.is_right, wrong.why) == (False, "17 instead of 18 (the answer was cut off)")
    assert not gsm8k.judge(item, Answer(text="eighteen"), Setting()).is_right


def weather(city: list[Any], optional: tuple[str, ...] = (), **more: list[Any]) -> bfcl.Call:
    return bfcl.Call(name="weather", arguments={"city": city, **more}, optional=list(optional))


def called(text: str, *calls: bfcl.Call) -> Verdict:
    item = bfcl.Situation(id="s", question="?", functions=[], calls=list(calls))
    return bfcl.judge(item, Answer(text=text), Setting())


CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'


@pytest.mark.parametrize(
    "text",
    [
        f"[{CALL}]",
        CALL,
        f"Sure! ```json\n[{CALL}]\n``` [done]",
        f"<tool_call>{CALL}</tool_call>",
        '{"name": "weather", "parameters": {"city": " OSLO "}}',
        '{"type": "function", "function": {"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}}',  # noqa: E501
        f"{{broken [{CALL}]",
    ],
)
def test_bfcl_finds_a_call_in_whatever_stands_around_it(text: str) -> None:
    assert called(text, weather(["Oslo"])).is_right, called(text, weather(["Oslo"]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("The weather is fine.", "no call"),
        ("", "no call"),
        ('{"name": "weather", "arguments": {}}', "city is missing"),
        ('{"name": "climate", "arguments": {"city": "Oslo"}}', "climate instead of weather"),
        ('{"name": "weather", "arguments": {"city": "Bergen"}}', 'city is "Bergen"'),
        ('{"name": "weather", "arguments": {"city": "Oslo", "day": 1}}', "day is no argument"),
        (f"[{CALL}, {CALL}]", "2 calls instead of 1"),
        ("[]", "0 calls instead of 1"),
        ('{"name": "weather", "arguments": ["Oslo"]}', "no call"),
        ('{"name": 5, "arguments": {}}', "no call"),
    ],
)
def test_bfcl_says_what_is_wrong(text: str, why: str) -> None:
    verdict = called(text, weather(["Oslo"]))
    assert not verdict.is_right
    assert why in verdict.why


def test_bfcl_takes_calls_in_any_order_and_optional_arguments_or_none() -> None:
    both = [weather(["Oslo"]), weather(["Rome", "Roma"], ("unit",), unit=["c"])]
    for rome in ('{"city": "Roma"}', '{"city": "Rome", "unit": "C"}'):
        assert called(f'[{{"name": "weather", "arguments": {rome}}}, {CALL}]', *both).is_right
    assert not called(f"[{CALL}, {CALL}]", *both).is_right
    other = '{"name": "weather", "arguments": {"city": "Rome", "unit": "f"}}'
    assert not called(f"[{other}, {CALL}]", *both).is_right
    assert called("[]").is_right
    assert not called(CALL).is_right


@pytest.mark.parametrize(
    ("right", "made", "is_same"),
    [
        (2, 2.0, True),
        (2, "2", True),
        (2.5, " 2.50 ", True),
        (True, "true", True),
        (True, 1, False),
        ("a  B", "A b", True),
        ([1, "x"], ["1", "X"], True),
        ([1, 2], [2, 1], False),
        ({"a": 1}, {"a": "1"}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (None, "none", True),
        (1, [1], False),
        ("1e999", "2e999", False),
        (2**60, 2**60 + 1, False),
    ],
)
def test_bfcl_values_are_equal_up_to_their_types(right: Any, made: Any, is_same: bool) -> None:
    assert bfcl.same(right, made) is is_same
    assert bfcl.same(made, right) is is_same


def hops(lines: int = 30) -> tuple[hashhop.Hops, hashhop.Puzzle, Setting]:
    item = hashhop.Hops(id="h", seed=3, hops=3)
    return item, hashhop.puzzle(item, lines), Setting(lines=lines)


def test_hashhop_is_made_by_its_seed_and_its_chain_can_be_followed() -> None:
    item, made, _ = hops()
    assert made == hashhop.puzzle(item, 30)
    assert made != hashhop.puzzle(hashhop.Hops(id="h", seed=4, hops=3), 30)
    assert len(made.lines) == 30
    leads = dict(line.split(" = ") for line in made.lines)
    assert len(leads) == 30  # no name leads to two others
    name = made.start
    for step in made.path:
        name = leads[name]
        assert name == step
    assert name not in leads  # it is the end


def test_hashhop_takes_the_last_name_of_the_list_in_the_answer() -> None:
    item, made, setting = hops()
    end, before = made.path[-1], made.path[-2]
    assert hashhop.judge(item, Answer(text=f"{before}, then {end}. Finished!"), setting).is_right
    assert hashhop.judge(item, Answer(text=end.upper()), setting).is_right
    assert hashhop.judge(item, Answer(text=f"{end} is the solution"), setting).is_right
    early = hashhop.judge(item, Answer(text=f"{end}, no, {before}"), setting)
    assert (early.is_right, early.why) == (False, f"{before} stands after 2 of 3 hops")
    for text in ("", "sentence", f"x{end}", made.start):
        assert not hashhop.judge(item, Answer(text=text), setting).is_right


@pytest.mark.parametrize("name", TASKS)
def test_ten_items_of_each_task_ship_and_can_be_asked_in_both_styles(name: str) -> None:
    task = TASKS[name]
    items = read_items(task, SHIPPED / f"{name}.jsonl", None)
    assert len(items) == 10
    texts = {
        task.ask(item, Setting(style=style, lines=20)).text
        for item in items
        for style in ("chat", "raw")
    }
    assert len(texts) == 20


def test_the_right_answers_that_ship_are_right() -> None:
    for item in read_items(TASKS["bfcl"], SHIPPED / "bfcl.jsonl", None):
        assert isinstance(item, bfcl.Situation)
        for pick in (0, -1):
            calls = [
                {"name": call.name, "arguments": {k: v[pick] for k, v in call.arguments.items()}}
                for call in item.calls
            ]
            assert bfcl.judge(item, Answer(text=json.dumps(calls)), Setting()).is_right
            known = {one["name"]: one["parameters"] for one in item.functions}
            for call in item.calls:
                assert call.arguments.keys() <= known[call.name]["properties"].keys()
                required = call.arguments.keys() - set(call.optional)
                assert set(known[call.name]["required"]) <= required
    for item in read_items(TASKS["gsm8k"], SHIPPED / "gsm8k.jsonl", None):
        assert isinstance(item, gsm8k.Problem)
        assert gsm8k.judge(item, Answer(text=item.answer), Setting()).is_right


WISH = {"id": "a", "prompt": "?"}
UNFIT: list[tuple[str, dict[str, Any]]] = [
    ("mmlu", {"id": "a", "question": "?", "choices": ["x", "y"], "answer": 2}),
    ("mmlu", {"id": "a", "question": "?", "choices": ["x"], "answer": 0}),
    ("gsm8k", {"id": "a", "question": "?", "answer": "many"}),
    ("gsm8k", {"id": "a", "question": "?", "answer": "1", "level": 3}),
    ("ifeval", {**WISH, "instruction_id_list": [], "kwargs": []}),
    ("ifeval", {**WISH, "instruction_id_list": ["x:y"], "kwargs": [{}]}),
    (
        "ifeval",
        {
            **WISH,
            "instruction_id_list": ["startend:end_checker"],
            "kwargs": [{"end_phrase": None}],
        },
    ),
    ("hashhop", {"id": "a", "seed": 1, "hops": 0}),
    ("bfcl", {"id": "a", "question": "?", "functions": [], "calls": [{"name": "f"}]}),
]


@pytest.mark.parametrize(("name", "line"), UNFIT)
def test_an_item_that_cannot_be_judged_is_refused(name: str, line: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(line), type=TASKS[name].kind)
