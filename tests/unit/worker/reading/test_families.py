"""A model's family is told from its tokenizer; a prompt's end, whether reasoning is open."""

from typing import Any

import pytest
from mlx_lm import tokenizer_utils

from bramley.worker.reading.events import CallStart, PlainReader, Reasoning, Text
from bramley.worker.reading.families import (
    Facts,
    Family,
    before_content,
    family_of,
    is_open,
    reader,
    tool_format,
)
from bramley.worker.reading.tools.formats import FORMATS
from support.reading import read
from support.tool_calls import TOOLS

CHATML = ("<|im_start|>", "<|im_end|>")
THINK = family_of(
    Facts(
        vocabulary={"<think>", "</think>", *CHATML},
        special=CHATML,
        think_start="<think>",
        think_end="</think>",
        tool_parser="json_tools",
    )
)
XTML_TOKENS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
XTML = family_of(
    Facts(
        vocabulary=XTML_TOKENS,
        special=XTML_TOKENS,
        think_start="<|open|>think<|sep|>",
        think_end="<|close|>think<|sep|>",
    )
)
HARMONY_TOKENS = (
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>",
    "<|return|>", "<|endoftext|>",
)  # fmt: skip
HARMONY = family_of(Facts(vocabulary=HARMONY_TOKENS, special=HARMONY_TOKENS))
GEMMA_TOKENS = ("<|channel>", "<channel|>", "<|turn>", "<turn|>")
GEMMA = family_of(
    Facts(
        vocabulary=GEMMA_TOKENS,
        special=GEMMA_TOKENS,
        think_start="<|channel>thought",
        think_end="<channel|>",
    )
)
PLAIN = family_of(Facts(vocabulary={"a"}))


class Vocabulary:
    """As much of a tokenizer as mlx-lm looks at."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [len(text)]


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (("<think>", "</think>"), "think"),
        (("<longcat_think>", "</longcat_think>"), "longcat"),
        (("<|think:start|>", "<|think:end|>"), "think_colon"),
        (GEMMA_TOKENS, "channel"),
        (XTML_TOKENS, "xtml"),
    ],
)
def test_every_family_that_mlx_lm_knows_has_a_name(tokens: tuple[str, ...], name: str) -> None:
    infer: Any = vars(tokenizer_utils)["_infer_thinking"]
    start, end, *_ = infer(Vocabulary(*tokens))
    family = family_of(Facts(tokens, tokens, think_start=start, think_end=end))
    assert (family.name, family.start, family.end) == (name, start, end)
    assert family.markers <= set(tokens)
    assert all(any(marker in text for marker in family.markers) for text in (start, end))


def test_markers_that_are_new_make_a_family_without_a_name_of_its_own() -> None:
    family = family_of(Facts(vocabulary=(), think_start="<muse>", think_end="</muse>"))
    made = reader(family, (), is_open=False)
    assert family.name == "tags"
    assert read(made, ["<muse>a</muse>b"]) == [Reasoning("a"), Text("b")]


def test_tags_that_are_no_tokens_are_told_from_the_template() -> None:
    template = "{{ content.split('</think>')[-1] }}<think>\n"
    assert family_of(Facts(vocabulary=(), chat_template=template)).name == "think"
    assert family_of(Facts(vocabulary=(), chat_template="</think>")).name == ""


def test_gpt_oss_is_told_from_its_tokens() -> None:
    assert (HARMONY.name, HARMONY.tool_format) == ("harmony", "harmony")
    assert "<|call|>" in HARMONY.markers
    assert "<|endoftext|>" not in HARMONY.markers
    made = reader(HARMONY, TOOLS, is_open=False)
    text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
    assert read(made, [text]) == [Reasoning("a"), Text("b")]


def test_a_model_that_neither_reasons_nor_calls_is_read_plainly() -> None:
    assert Family() == PLAIN
    assert isinstance(reader(PLAIN, TOOLS, is_open=False), PlainReader)
    assert tool_format(PLAIN) is None


def test_a_parser_that_is_not_known_is_none() -> None:
    assert family_of(Facts(vocabulary=(), tool_parser="no_such")).tool_format == ""


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_is_read_beside_reasoning_and_without(name: str) -> None:
    thinks = family_of(Facts((), think_start="<think>", think_end="</think>", tool_parser=name))
    plain = family_of(Facts((), tool_parser=name))
    assert tool_format(thinks) is tool_format(plain) is FORMATS[name]
    assert read(reader(thinks, TOOLS, is_open=True), ["a</think>b"]) == [
        Reasoning("a"),
        Text("b"),
    ]
    assert read(reader(plain, TOOLS, is_open=False), ["a</think>b"]) == [Text("a</think>b")]


def test_tokens_of_calls_are_shown() -> None:
    opens = FORMATS["json_tools"].opens
    family = family_of(Facts((opens, "<x>"), (opens, "<x>"), tool_parser="json_tools"))
    assert family.markers == {opens}
    assert family.turns == {"<x>"}


CALL = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'


def test_calls_are_read_where_there_are_tools_and_are_content_where_there_are_none() -> None:
    events = read(reader(THINK, TOOLS, is_open=False), [CALL])
    assert events[0] == CallStart(0, "ping")
    assert read(reader(THINK, (), is_open=False), [CALL]) == [Text(CALL)]


def test_a_call_inside_open_reasoning_is_read() -> None:
    events = read(reader(THINK, TOOLS, is_open=True), [f"a\n{CALL}"])
    assert events[:2] == [Reasoning("a"), CallStart(0, "ping")]


@pytest.mark.parametrize(
    ("tail", "family", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", THINK, True),
        ("<|im_start|>assistant\n<think>\nPerhaps", THINK, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", THINK, False),
        ("<|im_start|>assistant\n", THINK, False),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", THINK, False),
        ("<|im_start|>user\nA </think>.<|im_end|>\n<|im_start|>assistant\n<think>", THINK, True),
        ("<think>a</think>b<|im_end|>\n<|im_start|>assistant\n<think>\n", THINK, True),
        ("<|turn>model\n<|channel>thought\n<channel|>", GEMMA, False),
        ("<|turn>model\n<|channel>thought\n", GEMMA, True),
        ("<|turn>model\n", GEMMA, False),
        ('<|open|>message role="assistant"<|sep|><|open|>think<|sep|>', XTML, True),
        ("<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>", XTML, False),
        ("<|open|>think<|sep|>?<|end_of_msg|><|open|>message<|sep|>", XTML, False),
        ("<|end|><|start|>assistant", HARMONY, False),
        ("<|start|>assistant<|channel|>analysis<|message|>", HARMONY, True),
        ("<|start|>assistant<|channel|>analysis<|message|>Perhaps", HARMONY, True),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant", HARMONY, False),
        ("<|channel|>analysis<|message|>a<|start|>assistant", HARMONY, False),
        ("<|start|>assistant<|channel|>final<|message|>a", HARMONY, False),
        ("<think>", PLAIN, False),
        ("", THINK, False),
    ],
)
def test_a_prompt_ends_inside_reasoning_or_not(
    tail: str, family: Family, *, expected: bool
) -> None:
    assert is_open(tail, family) is expected


@pytest.mark.parametrize("family", [THINK, GEMMA, XTML, HARMONY], ids=lambda one: one.name)
def test_what_is_written_for_the_model_ends_reasoning_and_begins_content(family: Family) -> None:
    made = reader(family, (), is_open=True)
    made.push("abc")
    made.push(family.closing)
    assert not made.is_reasoning
    assert read(made, [family.lead, "def"]) == [Text("def")]


@pytest.mark.parametrize("family", [THINK, GEMMA, XTML, HARMONY], ids=lambda one: one.name)
def test_content_without_reasoning_is_begun(family: Family) -> None:
    assert read(reader(family, (), is_open=False), [family.first, "def"]) == [Text("def")]


def test_what_the_prompt_has_said_is_not_said_again() -> None:
    assert before_content("<|start|>assistant", HARMONY) == "<|channel|>final<|message|>"
    assert before_content("<|start|>assistant<|channel|>final<|message|>", HARMONY) == ""
    assert before_content("<|close|>think<|sep|><|open|>response<|sep|>", XTML) == ""
    assert before_content("<|im_start|>assistant\n", THINK) == ""


def test_frames_are_no_content() -> None:
    text = "<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|>"
    made = reader(XTML, (), is_open=True)
    assert read(made, [f"a{text}<|close|>message<|sep|>"]) == [Reasoning("a"), Text("Hi")]
