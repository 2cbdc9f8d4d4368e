"""What a format of tool calls is: how to read it, and how to make the model write it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from bramley.worker.reading.events import Reader, ToolSpec

# How a marker stands in a Lark grammar: as a quoted text, or as a special token's <name>.
Terminal = Callable[[str], str]


class ToolFormat(Protocol):
    """One format; it has no state.

    Attributes:
        name: as mlx-lm names its parser.
        opens: the text that begins a call, or a run of calls.
        markers: every text with a meaning: a special token that is one of them is shown to readers.
    """

    name: str
    opens: str
    markers: frozenset[str]

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading content in which there may be calls.

        Args:
            tools: of the request; their schemas say what type an argument has where the format
                writes all as text. A call of another name is a call as well.
        """
        ...

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write a Lark grammar (llguidance's) of calls and nothing else.

        Args:
            tools: that may be called; one at least.
            terminal: how a marker is written.
            many: whether several calls may follow each other.

        Returns:
            The grammar's text; its first rule is ``start``.
        """
        ...
