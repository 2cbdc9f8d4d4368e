"""What a task is: items, what is asked for each, and how an answer is judged; all of it pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

Style = Literal["chat", "raw"]


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every item has: a name that is its own within the file."""

    id: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is asked for one item.

    Attributes:
        text: the user's message, or in style "raw" the prompt as it is.
        top: alternatives of each token that are wanted with their log-probabilities.
    """

    text: str
    style: Style
    max_tokens: int
    stop: tuple[str, ...] = ()
    top: int | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said; ``first`` has the alternatives of its first token, id to logprob."""

    text: str
    finish: str = "stop"
    first: dict[int, float] = {}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an answer is right, what was read out of it, and why it was judged so.

    Attributes:
        share: of the item's parts that are right, where it has several.
    """

    is_right: bool
    found: str
    why: str
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What items are asked with; equal for all of a run.

    Attributes:
        style: chat template or plain text.
        max_tokens: of an answer, instead of the task's own.
        letters: of mmlu: id of the token that each letter is after the prompt; empty where the
            letter is read from a generated answer.
        gap: likewise: what the prompt ends on before the letter.
        lines: of hashhop: how many assignments a prompt holds.
    """

    style: Style = "chat"
    max_tokens: int | None = None
    letters: Mapping[str, int] = field(default_factory=dict[str, int])
    gap: str = ""
    lines: int = 0

    def limit(self, tokens: int) -> int:
        """The longest answer of a task that would have so many tokens."""
        return self.max_tokens or tokens


I = TypeVar("I", bound=Item)  # noqa: E741 -- of item


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[I]):
    """A task.

    Attributes:
        kind: of its items.
        ask: makes of an item what the model is asked.
        judge: of an item and what the model said.
        runs_code: whether judging runs what the model wrote.
    """

    name: str
    kind: type[I]
    ask: Callable[[I, Setting], Asked]
    judge: Callable[[I, Answer, Setting], Verdict]
    runs_code: bool = False


AnyTask = Task[Any]
