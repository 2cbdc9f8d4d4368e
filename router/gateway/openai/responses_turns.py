"""OpenAI's responses: a conversation's items to turns (pure).

A model's turn is several items: what it thought, what it said, what it called.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import cast

from bramley.protos.v1 import types_pb2
from bramley.router.gateway.openai.responses_items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
)


def turns_of(items: Iterable[Item], instructions: str | None = None) -> list[types_pb2.ChatMessage]:
    """Make turns.

    Args:
        items: of the whole conversation.
        instructions: that stand before it.

    Returns:
        The turns. Of a call each item's place is its turn's: they go with what was said before
        them, and with what was thought.
    """
    turns: list[types_pb2.ChatMessage] = []
    if instructions is not None:
        turns.append(types_pb2.ChatMessage(role="system", content=instructions))
    open_turn: types_pb2.ChatMessage | None = None  # of the model, that may have more to it
    for item in _joined(items):
        turn = _gone_on(open_turn, item)
        if turn is None:
            turn = _begun(item)
            turns.append(turn)
        open_turn = turn if turn.role == "assistant" else None
    for turn in turns:
        if turn.role == "assistant" and not turn.tool_calls and not _has_content(turn):
            turn.content = ""  # it was thought, and then cut
    return turns


def _gone_on(turn: types_pb2.ChatMessage | None, item: Item) -> types_pb2.ChatMessage | None:
    """Add an item to the model's turn before it; None where it begins another."""
    if turn is None:
        return None
    if isinstance(item, FunctionCall):
        turn.tool_calls.add(id=item.call_id, name=item.name, arguments_json=item.arguments)
        return turn
    has_begun = _has_content(turn) or bool(turn.tool_calls)
    if isinstance(item, Message) and item.role == "assistant" and not has_begun:
        _put_content(turn, item.content)
        return turn
    return None


def _joined(items: Iterable[Item]) -> Iterator[Item]:
    """Make one of thoughts that follow each other."""
    for kind, alike in groupby(items, type):
        if kind is Reasoning:
            thoughts = cast("Iterator[Reasoning]", alike)
            yield Reasoning(content=[part for each in thoughts for part in each.content or ()])
        else:
            yield from alike


def _begun(item: Item) -> types_pb2.ChatMessage:
    match item:
        case Message():
            # To a template, who wrote the system's message is all the same.
            role = "system" if item.role == "developer" else item.role
            turn = types_pb2.ChatMessage(role=role)
            _put_content(turn, item.content)
        case Reasoning():
            turn = types_pb2.ChatMessage(role="assistant", reasoning_content=_thought(item))
        case FunctionCall():
            turn = types_pb2.ChatMessage(role="assistant")
            turn.tool_calls.add(id=item.call_id, name=item.name, arguments_json=item.arguments)
        case FunctionCallOutput():
            turn = types_pb2.ChatMessage(role="tool", tool_call_id=item.call_id)
            turn.name = item.name or ""
            _put_content(turn, item.output)
    return turn


def _has_content(turn: types_pb2.ChatMessage) -> bool:
    return turn.HasField("content") or bool(turn.parts)


def _put_content(
    turn: types_pb2.ChatMessage, content: str | Sequence[InputText | OutputText]
) -> None:
    """Say a content of one piece, and every one of a model's, as a text: as it was said."""
    if isinstance(content, str):
        turn.content = content
    elif turn.role == "assistant" or len(content) < 2:
        turn.content = "".join([part.text for part in content])
    else:
        turn.parts.extend([types_pb2.ContentPart(text=part.text) for part in content])


def _thought(item: Reasoning) -> str:
    return "".join([part.text for part in item.content or ()])
