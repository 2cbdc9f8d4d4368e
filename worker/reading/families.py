"""How a model writes its answers: which family it is of, and the reader for that. Pure."""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from bramley.worker.reading import harmony
from bramley.worker.reading.events import AnswerReader, PlainReader, Reader, ToolSpec
from bramley.worker.reading.frames import FrameReader
from bramley.worker.reading.reasoning import ContentReader, ReasoningReader
from bramley.worker.reading.tools.contract import ToolFormat

FORMATS: Mapping[str, ToolFormat] = {}

_NAMES = {
    "<think>": "think",
    "<longcat_think>": "longcat",
    "<|think:start|>": "think_colon",
    "<|channel>thought": "channel",
    "<|open|>think<|sep|>": "xtml",
}
_XTML_FRAMES = (
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model's tokenizer.

    Attributes:
        vocabulary: every token, added ones included.
        special: texts of the special tokens.
        chat_template: its text; empty where there is none, or where it is a program.
        think_start: as mlx-lm's wrapper tells it; empty where it tells none.
        think_end: likewise.
        tool_parser: the name of mlx-lm's parser; empty where there is none.
    """

    vocabulary: Container[str]
    special: Collection[str] = ()
    chat_template: str = ""
    think_start: str = ""
    think_end: str = ""
    tool_parser: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """How a model writes its answers.

    Attributes:
        name: of its way to write reasoning; empty where it has none.
        start: the text that opens reasoning; empty where it has none.
        end: the text that closes it.
        closing: what is written for the model once it has reasoned enough: it ends the reasoning
            and begins the content.
        content: the text behind which content begins; empty where it begins with the answer or
            at the end of reasoning.
        markers: special tokens whose text a reader needs. One that ends the turn is shown to the
            reader as well.
        turns: the other special tokens: in a prompt, where one stands, a turn begins or ends.
        frames: texts around content that are no part of it.
        tool_format: the name of its way to call tools; empty where it has none.
    """

    name: str = ""
    start: str = ""
    end: str = ""
    closing: str = ""
    content: str = ""
    markers: frozenset[str] = frozenset()
    turns: frozenset[str] = frozenset()
    frames: tuple[str, ...] = ()
    tool_format: str = ""


def family_of(facts: Facts) -> Family:
    """Tell how a model writes, from what is known of its tokenizer."""
    if "<|channel|>" in facts.vocabulary and "<|message|>" in facts.vocabulary:
        return _harmony(facts)
    start, end = facts.think_start, facts.think_end
    if not start and "<think>" in facts.chat_template and "</think>" in facts.chat_template:
        start, end = "<think>", "</think>"  # tags of plain characters
    name = _NAMES.get(start, "tags") if start else ""
    frames = _XTML_FRAMES if name == "xtml" else ()
    tool_format = facts.tool_parser if facts.tool_parser in FORMATS else ""
    texts = {start, end, *frames}
    if tool_format:
        texts |= FORMATS[tool_format].markers
    return Family(
        name=name,
        start=start,
        end=end,
        closing=_closing(name, end),
        content=frames[0] if frames else "",
        markers=_needed(texts, facts.special),
        turns=frozenset(facts.special) - _needed(texts, facts.special),
        frames=frames,
        tool_format=tool_format,
    )


def tool_format(family: Family) -> ToolFormat | None:
    """The family's way to call tools, where it has one."""
    if family.tool_format == harmony.FORMAT.name:
        return harmony.FORMAT
    return FORMATS.get(family.tool_format)


def reader(family: Family, tools: Sequence[ToolSpec], *, is_open: bool) -> AnswerReader:
    """Make the reader of an answer.

    Args:
        family: of the model.
        tools: that may be called; with none, what looks like a call is content.
        is_open: whether the prompt ends inside reasoning.

    Returns:
        One that has read nothing.
    """
    if family.name == "harmony":
        return harmony.HarmonyReader(tools, is_open=is_open)
    calls = tool_format(family) if tools else None
    inner: Reader = calls.reader(tools) if calls else PlainReader()
    if family.frames:
        inner = FrameReader(family.frames, inner)
    if family.start:
        opens = (calls.opens,) if calls else ()
        return ReasoningReader(family.start, family.end, inner, is_open=is_open, opens=opens)
    return inner if isinstance(inner, PlainReader) else ContentReader(inner)


def is_open(prompt_tail: str, family: Family) -> bool:
    """Look whether a prompt ends inside reasoning.

    Args:
        prompt_tail: its end, special tokens included; from the last turn's start at the least.
        family: of the model.

    Returns:
        Whether reasoning was opened and not closed, in the turn that the answer belongs to.
    """
    if not family.start:
        return False
    place = prompt_tail.rfind(family.start)
    if place < 0:
        return False
    inside = prompt_tail[place + len(family.start) :]
    # A turn that begins later: the marker is of what somebody said, not of the answer.
    return family.end not in inside and not any(token in inside for token in family.turns)


def _harmony(facts: Facts) -> Family:
    return Family(
        name="harmony",
        start=harmony.REASONING_START,
        end=harmony.REASONING_END,
        closing=harmony.CLOSING,
        content=harmony.CONTENT_START,
        markers=frozenset(harmony.MARKERS),
        turns=frozenset(facts.special) - {harmony.MESSAGE} | {harmony.START},
        tool_format=harmony.FORMAT.name,
    )


def _closing(name: str, end: str) -> str:
    if name == "xtml":
        return end + _XTML_FRAMES[0]
    # Where the marker stands on a line of its own, as these models write it.
    return f"\n{end}\n\n" if end.startswith("</") else end


def _needed(texts: Collection[str], special: Collection[str]) -> frozenset[str]:
    return frozenset(token for token in special if any(token in text for text in texts))
