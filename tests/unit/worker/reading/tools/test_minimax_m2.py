"""MiniMax M2: a run of calls between its own markers."""

import pytest

from bramley.worker.reading.events import CallArguments, CallEnd, CallStart
from bramley.worker.reading.tools.minimax_m2 import FORMAT
from support.tool_calls import TOOLS, check_cuts, check_limits, check_oracle, parsed, read

OPEN, CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
CITY = '<invoke name="get_weather">\n<parameter name="city">A</parameter>\n</invoke>'
PING = '<invoke name="ping">\n</invoke>'


def test_a_string_is_handed_on_while_it_is_written() -> None:
    reader = FORMAT.reader(TOOLS)
    assert reader.push(f'{OPEN}\n<invoke name="get_weather"') == []
    assert reader.push(">") == [CallStart(0, "get_weather")]
    assert reader.push('<parameter name="city">A\n') == [CallArguments(0, '{"city": "A\\n')]
    assert reader.push("B</parameter>") == [CallArguments(0, 'B"')]
    assert reader.push("</invoke>") == [CallArguments(0, "}"), CallEnd(0)]
    assert reader.push(f"\n{CLOSE}") == []
    assert reader.finish() == []


@pytest.mark.parametrize("name", ['"ping"', "'ping'", "ping", ' "ping" '])
def test_a_name_stands_in_quotes_or_without(name: str) -> None:
    body = f"<invoke name={name}></invoke>"
    made = read(FORMAT, OPEN + body + CLOSE)
    check_oracle(made, parsed("minimax_m2", body))


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        (f"{OPEN}{CITY} and {PING}{CLOSE}!", " and !", ["get_weather", "ping"]),
        (f"{OPEN}{CITY}\n{OPEN}{PING}{CLOSE}", "", ["get_weather", "ping"]),
        (f"{OPEN}{CITY}<invoke name=>{CLOSE}", "<invoke name=>", ["get_weather"]),
        (f"{OPEN}{CITY} and nothing more", " and nothing more", ["get_weather"]),
    ],
)
def test_what_is_no_call_in_a_run_is_content(text: str, content: str, names: list[str]) -> None:
    made = read(FORMAT, text)
    assert made.text == content
    assert [call.name for call in made.calls] == names
    check_cuts(FORMAT, text)
    check_limits(FORMAT, text)
