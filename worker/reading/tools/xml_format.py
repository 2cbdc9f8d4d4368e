"""A format of calls whose parameters are written one by one: how it is read and written. Pure."""

from collections.abc import Sequence

from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.xml_calls import Marks, XmlReader
from bramley.worker.reading.tools.xml_grammar import Layout, calls_grammar


class XmlFormat:
    """Reads by marks and writes by a layout.

    Args:
        name: as mlx-lm names it.
        marks: what is read.
        layout: what is written.
        markers: every text with a meaning that may be a special token.
    """

    def __init__(self, name: str, marks: Marks, layout: Layout, markers: Sequence[str]) -> None:
        self.name = name
        self.opens = marks.opens
        self.markers = frozenset(markers)
        self._marks = marks
        self._layout = layout

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading."""
        return XmlReader(self._marks, tools)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of calls.

        Returns:
            The grammar's text.

        Raises:
            InvalidRequest: a tool's schema has a rule that the format cannot enforce.
        """
        return calls_grammar(self._layout, self.markers, tools, terminal, many=many)

    def named(self, name: str) -> "XmlFormat":
        """Have the same format under another name."""
        return XmlFormat(name, self._marks, self._layout, tuple(self.markers))
