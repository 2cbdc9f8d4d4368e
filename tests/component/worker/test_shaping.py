"""A request's shape: what reads its answers and what guides them say the same."""

import json
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_lm import tokenizer_utils

from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.answer import Answer
from bramley.worker.engine.outputs import Token
from bramley.worker.engine.stopping import Finish
from bramley.worker.grammar import masks
from bramley.worker.grammar.guide import Guide
from bramley.worker.reading import harmony
from bramley.worker.shaping import Shape, Shaper, family_of
from bramley.worker.text.tokenizer import Tokenizer
from bramley.worker.text.turns import tools_of
from support.byte_tokenizer import EOS, SCRIPTED, VOCABULARY, write_byte_tokenizer

# gpt-oss's vocabulary in small. A call ends the model's turn.
MARKERS = sorted(harmony.MARKERS)
IDS = {marker: VOCABULARY + place for place, marker in enumerate(MARKERS)}
ENDS = frozenset({IDS[harmony.RETURN], IDS[harmony.CALL]})
TOOL = types_pb2.Tool(
    name="weather",
    parameters_json_schema=json.dumps(
        {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
    ),
)
REQUIRED = types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_REQUIRED)
COLOUR = types_pb2.Constraint(choice=types_pb2.Constraint.Choice(values=["red", "blue"]))
NO_EOS = types_pb2.StopConditions(ignore_eos=True)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    load: Any = vars(tokenizer_utils)["load"]
    with tempfile.TemporaryDirectory() as folder:
        write_byte_tokenizer(Path(folder), more=MARKERS)
        return Tokenizer(load(Path(folder), eos_token_ids=sorted(ENDS)))


@pytest.fixture(scope="module")
def tagged() -> Tokenizer:
    """Of a model whose markers are plain characters."""
    load: Any = vars(tokenizer_utils)["load"]
    with tempfile.TemporaryDirectory() as folder:
        write_byte_tokenizer(Path(folder), chat_template=SCRIPTED)
        return Tokenizer(load(Path(folder), eos_token_ids=[EOS]))


@pytest.fixture
async def shaper(tokenizer: Tokenizer) -> AsyncIterator[Shaper]:
    one = Shaper(tokenizer, family_of(tokenizer), ENDS)
    yield one
    one.close()


def ids(text: str) -> list[int]:
    parts = re.split(f"({'|'.join(map(re.escape, MARKERS))})", text)
    return [number for part in parts for number in ([IDS[part]] if part in IDS else part.encode())]


def allowed(guide: Guide) -> list[int]:
    width = VOCABULARY + len(MARKERS)
    packed = masks.fill([guide], width)
    assert packed is not None
    assert guide.error is None
    bits = np.unpackbits(packed.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


async def shape_of(shaper: Shaper, kwargs: dict[str, Any] | None = None, **fields: Any) -> Shape:
    message = types_pb2.ChatMessage(role="user", content="x")
    chat = types_pb2.ChatInput(messages=[message])
    chat.template_kwargs.update(kwargs or {})
    request = generation_pb2.GenerateRequest(chat=chat, **fields)
    compiled = await shaper.compile(request)
    return Shape(request, [ord("x")], tools_of(request), compiled)


async def drawn(shaper: Shaper, seed: int, written: str = "", **fields: Any) -> Answer:
    """An answer that begins as written, and goes on at random as its guide allows."""
    shape = await shape_of(shaper, **fields)
    guide, random = shaper.guide(shape), np.random.default_rng(seed)
    assert guide is not None
    answer = Answer(shape.request, 0, shaper.reading(shape), shape.prompt, types_pb2.CachedTokens())
    start = ids(written)
    for place in range(400):
        choices = allowed(guide)
        token = start[place] if place < len(start) else int(random.choice(choices))
        assert token in choices
        is_whole = guide.take(token)
        assert guide.error is None
        finish = Finish("grammar") if is_whole else None
        if token in ENDS and not shape.request.stop.ignore_eos:
            finish = Finish("stop", token)
        answer.take(Token("r", token, 1.0, finish))
        answer.read()
        if answer.finished is not None:
            return answer
    raise AssertionError("it does not end")


def said(answer: Answer) -> tuple[str, str, list[tuple[str, Any]]]:
    """Its reasoning, content, and calls."""
    deltas = list(answer.deltas())
    parts = [part for delta in deltas for part in delta.tool_calls]
    calls: list[tuple[str, Any]] = []
    for index in sorted({part.index for part in parts}):
        mine = [part for part in parts if part.index == index]
        assert mine[-1].ended
        name = "".join(part.name for part in mine)
        calls.append((name, json.loads("".join(part.arguments_json for part in mine))))
    return "".join(d.reasoning_text for d in deltas), "".join(d.text for d in deltas), calls


THOUGHT = f"{harmony.REASONING_START}Hm.{harmony.REASONING_END}"


@pytest.mark.parametrize("stop", [types_pb2.StopConditions(), NO_EOS], ids=["eos", "ignored"])
@pytest.mark.parametrize(("written", "reasoning"), [("", ""), (THOUGHT, "Hm.")])
async def test_a_call_that_must_be_made_ends_with_the_token_that_ends_the_turn(
    shaper: Shaper, written: str, reasoning: str, stop: types_pb2.StopConditions
) -> None:
    for seed in range(4):
        options: dict[str, Any] = {"tools": [TOOL], "tool_choice": REQUIRED, "stop": stop}
        answer = await drawn(shaper, seed, written or harmony.CHANNEL + "commentary", **options)
        told, text, calls = said(answer)
        assert (told, text.strip()) == (reasoning, "")
        assert [name for name, _ in calls] == ["weather"]
        assert calls[0][1]["city"] in {"Oslo", "Rome"}
        assert answer.finished is not None
        assert answer.finished.reason == types_pb2.FINISH_REASON_TOOL_CALLS


@pytest.mark.parametrize(
    "written", ["", THOUGHT, harmony.CONTENT_START], ids=["free", "reasoned", "direct"]
)
async def test_constrained_content_is_the_content_and_nothing_beside_it(
    shaper: Shaper, written: str
) -> None:
    for seed in range(4):
        start = written or harmony.CHANNEL + "final"
        answer = await drawn(shaper, seed, start, constraint=COLOUR)
        _, text, calls = said(answer)
        assert text in {"red", "blue"}
        assert not calls


async def test_without_a_constraint_and_a_budget_nothing_is_guided(shaper: Shaper) -> None:
    assert shaper.guide(await shape_of(shaper, tools=[TOOL])) is None
    assert shaper.guide(await shape_of(shaper, reasoning={"enabled": True})) is None
    assert shaper.guide(await shape_of(shaper, reasoning={"budget_tokens": 3})) is not None


@pytest.mark.parametrize(
    "off",
    [
        {"reasoning": {"enabled": False}},
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"budget_tokens": 0}},
        {"kwargs": {"enable_thinking": False}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("asked", "start"),
    [
        ({"tools": [TOOL], "tool_choice": REQUIRED}, "<tool_call>"),
        ({"tools": [TOOL], "constraint": COLOUR}, "<tool_call>"),
        ({"constraint": types_pb2.Constraint(regex="<t[a-z]+>?")}, "<think>"),
    ],
)
async def test_where_reasoning_is_off_no_constrained_answer_reasons(
    tagged: Tokenizer, off: dict[str, Any], asked: dict[str, Any], start: str
) -> None:
    shaper = Shaper(tagged, family_of(tagged), ENDS)
    for options, may_reason in ((off, False), ({}, True)):
        shape = await shape_of(shaper, **options, **asked)
        guide, reader = shaper.guide(shape), shaper.reading(shape).reader
        assert guide is not None
        for token in b"<t":
            assert token in allowed(guide)
            guide.take(token)
        other = start == "<tool_call>" and not may_reason
        assert (ord("h") in allowed(guide)) is not other
        reader.push("<think>Hm")
        assert reader.is_reasoning is may_reason
    shaper.close()


@pytest.mark.parametrize(("thought", "is_inside"), [("Hm. " * 3000, True), ("", False)])
async def test_reasoning_that_goes_on_from_far_back_is_found_in_its_turn_alone(
    shaper: Shaper, thought: str, *, is_inside: bool
) -> None:
    shape = await shape_of(shaper)
    said = harmony.REASONING_START if thought else f"{harmony.REASONING_START}Hm.{harmony.END}"
    prompt = ids(
        f"{harmony.START}user{harmony.MESSAGE}a{harmony.END}{harmony.START}assistant{said}"
    )
    assert shaper.is_reasoning(shape.request, [*prompt, *ids(thought)]) is is_inside
