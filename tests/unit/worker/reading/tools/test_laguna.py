"""Laguna: the same as GLM 4.7, under a name of its own."""

from bramley.worker.reading.tools import glm47
from bramley.worker.reading.tools.laguna import FORMAT
from support.tool_calls import TOOLS, check_oracle, parsed, quoted_terminal, read


def test_it_is_glm47_by_another_name() -> None:
    assert (FORMAT.name, glm47.FORMAT.name) == ("laguna", "glm47")
    assert (FORMAT.opens, FORMAT.markers) == (glm47.FORMAT.opens, glm47.FORMAT.markers)
    for many in (True, False):
        theirs = glm47.FORMAT.lark(TOOLS, quoted_terminal, many=many)
        assert FORMAT.lark(TOOLS, quoted_terminal, many=many) == theirs


def test_a_call_is_what_mlx_lm_makes_of_it() -> None:
    body = "get_weather<arg_key>city</arg_key><arg_value>A</arg_value>"
    check_oracle(read(FORMAT, f"<tool_call>{body}</tool_call>"), parsed("laguna", body))
