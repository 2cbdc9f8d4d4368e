"""OpenAI's responses: the items of a conversation, in bodies and in answers (pure).

What an answer has can be given back as it is. openai/responses_turns.py makes turns of items.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, cast

import msgspec

from bramley.common.errors import InvalidRequest
from bramley.router.gateway.bodies import convert

Status = Literal["in_progress", "completed", "incomplete"]
Unset = msgspec.UnsetType


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is read field by field.

    Attributes:
        ONLY: fields that are taken with these values alone, which change nothing.
    """

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    def check(self, path: str = "") -> None:
        """Refuse what is not served.

        Raises:
            InvalidRequest: names the field.
        """
        for name, allowed in self.ONLY.items():
            value = getattr(self, name)
            if value not in (None, msgspec.UNSET, *allowed):
                told = name.rstrip("_")  # "async" is no name in Python
                raise InvalidRequest(f"{path}.{told}" if path else told, "is not supported")


class InputText(Strict, frozen=True, tag_field="type", tag="input_text"):
    """A piece of a message, or of what a tool answered."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {"prompt_cache_breakpoint": ()}

    text: str
    prompt_cache_breakpoint: Any = msgspec.UNSET


class OutputText(Strict, frozen=True, tag_field="type", tag="output_text"):
    """What a model said; log-probabilities are there where they were asked for."""

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {"annotations": ([],)}

    text: str
    annotations: list[Any] | None = []
    logprobs: list[Any] | None = []


class ReasoningText(Strict, frozen=True, tag_field="type", tag="reasoning_text"):
    """What a model thought."""

    text: str


class Message(Strict, frozen=True, tag_field="type", tag="message"):
    """What somebody said."""

    PREFIX: ClassVar[str] = "msg"  # of its ids
    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {"phase": ()}

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Sequence[InputText | OutputText]
    id: str | None = None
    status: Status | Unset | None = msgspec.UNSET
    phase: Any = msgspec.UNSET


class Reasoning(Strict, frozen=True, tag_field="type", tag="reasoning"):
    """What was thought before what follows: it is told in full, and there is no summary."""

    PREFIX: ClassVar[str] = "rs"  # of its ids
    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "summary": ([],),
        "encrypted_content": (),
    }

    id: str | None = None
    summary: list[Any] | None = []
    content: Sequence[ReasoningText] | None = None
    encrypted_content: Any = msgspec.UNSET
    status: Status | Unset | None = msgspec.UNSET


class FunctionCall(Strict, frozen=True, tag_field="type", tag="function_call"):
    """A call of a tool; the arguments are as the model wrote them."""

    PREFIX: ClassVar[str] = "fc"  # of its ids
    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "async_": (False,),
        "caller": (),
        "namespace": (),
    }

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | Unset | None = msgspec.UNSET
    async_: Any = msgspec.field(default=msgspec.UNSET, name="async")
    caller: Any = msgspec.UNSET
    namespace: Any = msgspec.UNSET


class FunctionCallOutput(Strict, frozen=True, tag_field="type", tag="function_call_output"):
    """What a tool answered."""

    PREFIX: ClassVar[str] = "fco"  # of its ids
    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {"caller": (), "namespace": ()}

    call_id: str
    output: str | Sequence[InputText]
    id: str | None = None
    name: str | Unset | None = msgspec.UNSET
    status: Status | Unset | None = msgspec.UNSET
    caller: Any = msgspec.UNSET
    namespace: Any = msgspec.UNSET


Item = Message | Reasoning | FunctionCall | FunctionCallOutput

_KINDS: Final[Mapping[str, type[Item]]] = {
    "message": Message,
    "reasoning": Reasoning,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
}
_PARTS: Final = {"input_text", "output_text", "reasoning_text"}


def read_items(given: str | list[dict[str, Any]]) -> list[Item]:
    """Read a body's input.

    Returns:
        Its items.

    Raises:
        InvalidRequest: names the field.
    """
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    return [_read(value, f"input[{place}]") for place, value in enumerate(given)]


def _read(value: dict[str, Any], path: str) -> Item:
    kind = value.get("type") or ("message" if "role" in value else None)
    found = _KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise InvalidRequest(f"{path}.type", f"{kind!r} is not served" if kind else "is missing")
    for name in ("content", "output"):
        _check_parts(value.get(name), f"{path}.{name}")
    item = convert({**value, "type": kind}, found, path)
    item.check(path)
    for name in ("content", "output"):
        parts = getattr(item, name, None)
        if isinstance(parts, list):
            for place, part in enumerate(cast("list[Strict]", parts)):
                part.check(f"{path}.{name}[{place}]")
    return item


def _check_parts(parts: object, path: str) -> None:
    """Name what a part is, where it is none that can be read: an image, a file."""
    if not isinstance(parts, list):
        return
    for place, part in enumerate(cast("list[object]", parts)):
        kind = cast("dict[str, object]", part).get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in _PARTS:
            raise InvalidRequest(f"{path}[{place}].type", f"{kind!r} is not served")


def named(item: Item, name: str) -> Item:
    """Give an item an id, if it has none, and the form that all are kept in.

    Returns:
        It. Texts are parts of messages; log-probabilities, which no turn has, are left out: they
        take many times the memory that they have as JSON.
    """
    item = item if item.id else msgspec.structs.replace(item, id=name)
    if not isinstance(item, Message):
        return item
    if not isinstance(item.content, str):
        return msgspec.structs.replace(item, content=[_bare(part) for part in item.content])
    if item.role != "assistant":
        return msgspec.structs.replace(item, content=[InputText(text=item.content)])
    content, status = [OutputText(text=item.content)], item.status or "completed"
    return msgspec.structs.replace(item, content=content, status=status)


def _bare(part: InputText | OutputText) -> InputText | OutputText:
    has_more = isinstance(part, OutputText) and part.logprobs
    return msgspec.structs.replace(part, logprobs=[]) if has_more else part
