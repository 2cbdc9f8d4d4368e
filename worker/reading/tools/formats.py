"""The formats in which calls of tools are read and written, by the name that mlx-lm gives each."""

from collections.abc import Mapping

from bramley.worker.reading.tools import json_tools, qwen3_coder
from bramley.worker.reading.tools.contract import ToolFormat

FORMATS: Mapping[str, ToolFormat] = {
    one.name: one for one in (json_tools.FORMAT, qwen3_coder.FORMAT)
}
