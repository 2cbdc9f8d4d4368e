"""GLM 4.7: a key and a value, each between markers."""

import json

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart
from bramley.worker.reading.tools.glm47 import FORMAT
from support.tool_calls import TOOLS, accepts, check_cuts, check_limits, check_oracle, parsed, read


def test_a_string_is_handed_on_while_it_is_written() -> None:
    reader = FORMAT.reader(TOOLS)
    assert reader.push("<tool_call>get_weather<arg_") == []
    assert reader.push("key>city</arg_key>") == [CallStart(0, "get_weather")]
    assert reader.push("<arg_value>A <") == [CallArguments(0, '{"city": "A ')]
    assert reader.push("b> </arg_value>") == [CallArguments(0, '<b> "')]
    assert reader.push("</tool_call>") == [CallArguments(0, "}"), CallEnd(0)]
    assert reader.finish() == []


@pytest.mark.parametrize(
    "body",
    [
        "get_weather\n<arg_key>city</arg_key>\n<arg_value>A</arg_value>\n",
        "\nget_weather\n<arg_key> city </arg_key><arg_value>A</arg_value>",
        'get_weather\n{"city": "A"}\n',
        'get_weather {"city": "A"}',
        'get_weather{"city": "A", "more": [{}]}',
        "ping",
        "ping\n",
    ],
)
def test_other_ways_to_write_a_call_are_read_as_mlx_lm_does(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    made = read(FORMAT, text)
    if not body.startswith("get_weather{"):  # there the name ends at a space
        check_oracle(made, parsed("glm47", body))
    assert made.text == ""
    assert not made.calls[0].is_malformed
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)


def test_white_space_at_the_ends_of_a_string_is_kept() -> None:
    """mlx-lm takes it off, though the template writes nothing there."""
    body = "get_weather<arg_key>city</arg_key><arg_value> x = 1\n</arg_value>"
    made = read(FORMAT, f"<tool_call>{body}</tool_call>")
    assert json.loads(made.calls[0].arguments) == {"city": " x = 1\n"}
    assert parsed("glm47", body)[0]["arguments"] == {"city": "x = 1"}


def test_a_key_without_a_value_spoils_its_call() -> None:
    text = "<tool_call>f<arg_key>a</arg_key><arg_key>b</arg_key></tool_call>"
    made = read(FORMAT, text)
    assert [(one.arguments, one.is_malformed) for one in made.calls] == [
        ("<arg_key>a</arg_key><arg_key>b</arg_key>", True)
    ]
    check_cuts(FORMAT, text)


def test_the_grammar_has_text_up_to_a_special_token() -> None:
    """A token that is text in this vocabulary stands for each marker."""
    names = {marker: chr(1 + at) for at, marker in enumerate(sorted(FORMAT.markers))}

    def terminal(marker: str) -> str:
        return f"<[{ord(names[marker])}]>"

    grammar = FORMAT.lark(TOOLS, terminal, many=False)
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</b></arg_value></tool_call>"
    for marker, token in names.items():
        text = text.replace(marker, token)
    assert accepts(grammar, text)
    assert not accepts(grammar, text.replace("a</b>", "a</arg_value>"))
