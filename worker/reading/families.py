"""How a model writes its answers: which family it is of, and the reader for that. Pure."""

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from bramley.worker.reading import harmony
from bramley.worker.reading.events import AnswerReader, PlainReader, Reader, ToolSpec
from bramley.worker.reading.frames import FrameReader
from bramley.worker.reading.reasoning import ContentReader, ReasoningReader
from bramley.worker.reading.tools.contract import ToolFormat
from bramley.worker.reading.tools.formats import FORMATS

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
        closing: what is written for the model once it has reasoned enough: it ends the reasoning.
        lead: what stands between that and content; not before calls. Often nothing.
        first: what stands before content where there is no reasoning. Often nothing.
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
    lead: str = ""
    first: str = ""
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
    calls = FORMATS.get(facts.tool_parser)
    called = calls.markers if calls else frozenset[str]()
    needed = _needed({start, end, *frames, *called}, facts.special)
    return Family(
        name=name,
        start=start,
        end=end,
        # Where the marker stands on a line of its own, as these models write it.
        closing=f"\n{end}\n\n" if end.startswith("</") else end,
        lead=frames[0] if frames else "",
        first=frames[0] if frames else "",
        markers=needed,
        turns=frozenset(facts.special) - needed,
        frames=frames,
        tool_format=calls.name if calls else "",
    )


def tool_format(family: Family) -> ToolFormat | None:
    """The family's way to call tools, where it has one."""
    if family.tool_format == harmony.FORMAT.name:
        return harmony.FORMAT
    return FORMATS.get(family.tool_format)


def reader(
    family: Family,
    tools: Sequence[ToolSpec],
    *,
    is_open: bool,
    is_strict: bool = False,
    is_off: bool = False,
) -> AnswerReader:
    """Make the reader of an answer.

    Args:
        family: of the model.
        tools: that may be called; with none, what looks like a call is content.
        is_open: whether the prompt ends inside reasoning.
        is_strict: whether a grammar says what follows reasoning.
        is_off: whether there is no reasoning but what the prompt has opened.

    Returns:
        One that has read nothing.
    """
    if family.name == "harmony":
        return harmony.HarmonyReader(tools, is_open=is_open)
    calls = tool_format(family) if tools else None
    inner: Reader = calls.reader(tools) if calls else PlainReader()
    if family.frames:
        inner = FrameReader(family.frames, inner)
    if family.start and (is_open or not is_off):
        opens = (calls.opens,) if calls else ()
        return ReasoningReader(
            family.start, family.end, inner, is_open=is_open, opens=opens, is_strict=is_strict
        )
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


def before_content(prompt_tail: str, family: Family) -> str:
    """Return what an answer without reasoning begins with, unless the prompt has said it."""
    return "" if prompt_tail.endswith(family.first) else family.first


def _harmony(facts: Facts) -> Family:
    return Family(
        name="harmony",
        start=harmony.REASONING_START,
        end=harmony.REASONING_END,
        closing=harmony.REASONING_END,
        lead=harmony.CONTENT_LEAD,
        first=harmony.CONTENT_START,
        markers=frozenset(harmony.MARKERS),
        turns=frozenset(facts.special) - {harmony.MESSAGE} | {harmony.START},
        tool_format=harmony.FORMAT.name,
    )


def _needed(texts: Collection[str], special: Collection[str]) -> frozenset[str]:
    return frozenset(token for token in special if any(token in text for text in texts))
