"""Calls as Gemma 4 writes them: between <|tool_call> and <tool_call|>. Pure.

<|tool_call>call:f{text:<|"|>one "two"<|"|>,number:3,list:[1,2],object:{key:true}}<tool_call|>
"""

from collections.abc import Sequence

from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.gemma import GemmaCalls
from bramley.worker.reading.tools.gemma_grammar import gemma_grammar
from bramley.worker.reading.tools.steps import content_reader

_OPEN = "<|tool_call>"
_CLOSE = "<tool_call|>"
_QUOTE = '<|"|>'


class Gemma4:
    """The format of Gemma 4."""

    name = "gemma4"
    opens = _OPEN
    markers = frozenset({_OPEN, _CLOSE, _QUOTE})

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading; the notation says itself what type a value has."""
        return content_reader((_OPEN,), GemmaCalls(_QUOTE, _OPEN, _CLOSE).read)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of calls, each between markers of its own."""
        return gemma_grammar(_QUOTE, (_OPEN, _CLOSE), tools, terminal, many=many)


FORMAT = Gemma4()
