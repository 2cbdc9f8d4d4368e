"""Calls as FunctionGemma writes them: between <start_function_call> and <end_function_call>. Pure.

<start_function_call>call:f{text:<escape>one<escape>,list:[1,2]}<end_function_call>
"""

from collections.abc import Sequence

from bramley.worker.reading.events import Reader, ToolSpec
from bramley.worker.reading.tools.contract import Terminal
from bramley.worker.reading.tools.gemma import GemmaCalls
from bramley.worker.reading.tools.gemma_grammar import gemma_grammar
from bramley.worker.reading.tools.steps import content_reader

_OPEN = "<start_function_call>"
_CLOSE = "<end_function_call>"
_QUOTE = "<escape>"


class FunctionGemma:
    """The format of FunctionGemma."""

    name = "function_gemma"
    opens = _OPEN
    markers = frozenset({_OPEN, _CLOSE, _QUOTE})

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Start reading; the notation says itself what type a value has."""
        return content_reader((_OPEN,), GemmaCalls(_QUOTE, _OPEN, _CLOSE).read)

    def lark(self, tools: Sequence[ToolSpec], terminal: Terminal, *, many: bool) -> str:
        """Write the grammar of calls, each between markers of its own."""
        return gemma_grammar(_QUOTE, (_OPEN, _CLOSE), tools, terminal, many=many)


FORMAT = FunctionGemma()
