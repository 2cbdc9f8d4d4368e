"""The examples of docs/client.md do what the page says, against a scripted router."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bramley.protos.v1 import generation_pb2, types_pb2
from support.fake_router import MODEL, answer, answers, serving, told

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
EXAMPLES: dict[str, str] = dict(
    re.findall(r"^## (.+?)$(?:(?!^## ).)*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
)
PRINTED = {
    "Stream": "Hello\nstop, 2 tokens\n",
    "Asyncio": "['Hello', 'Hello']\n",
    "Several answers, and how likely they were": (
        "ab -1.0\nc 0.0\nd 0.0\n97 0.0 {1: -0.5, 2: -1.5}\n98 -1.0 {1: -0.5, 2: -1.5}\n5 4\n"
    ),
    "Embeddings": "2 6\n2 7\n",
    "Reasoning and tools": "weather Rome\nLet me see.\n",
    "Structured output": "yes\n",
    "Cancel": "first words: Hel\n",
    "Errors": "NOT_FOUND NOT_FOUND None None\nno model is named 'nobody'\ninput\n",
    "Deadlines and retries": "Hello\n",
    "Sessions": "Hello\n",
    "Tokens and certificates": "['fake']\n",
    "Cache": (
        "{'parked': 0, 'ram': 256, 'ssd': 0} of 300\n"
        "block 1 is the first that differs\n"
        "5 tokens of a prompt\n"
        "all that is stored outlives a power cut\n"
    ),
    "Models": f"ready 100%\nTrue {6 << 30}\n",
}


def test_every_section_has_one_example() -> None:
    assert list(EXAMPLES) == re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert PAGE.count("```python") == len(EXAMPLES)


@pytest.mark.parametrize("section", EXAMPLES)
def test_the_example_prints_what_it_should(section: str) -> None:
    with serving() as (router, target):
        if section.startswith("Several"):
            router.script = answers("ab", "c", "d")
        if section.startswith("Structured"):
            router.script = answer("yes")
        if section.startswith("Reasoning"):
            call = types_pb2.ToolCallDelta(id="c", name="weather", ended=True)
            call.arguments_json = '{"city": "Rome"}'
            said = generation_pb2.Delta(text="Let me see.", tool_calls=[call])
            router.script = told(said, reason=types_pb2.FINISH_REASON_TOOL_CALLS)
        code = EXAMPLES[section].replace("127.0.0.1:7410", target).replace("smollm2", MODEL)
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == PRINTED[section]
