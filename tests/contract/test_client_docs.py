"""The examples of docs/client.md and of README do what they say, against a scripted router."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bramley.protos.v1 import generation_pb2, types_pb2
from support.fake_router import MODEL, answer, answers, serving, told, write_state
from support.shell import Shell

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
README = (ROOT / "README.md").read_text()
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
        code = EXAMPLES[section].replace("127.0.0.1:7410", target)
        code = code.replace("smollm2", MODEL).replace("qwen3", MODEL)
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == PRINTED[section]


def test_the_readme_s_requests_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tools,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    (tmp_path / "tools.json").write_text(tools)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^bramley (generate qwen3 .*)$", README, re.MULTILINE)
    with serving() as (router, target):
        write_state(tmp_path / "state", router=target, node=target)
        shell = Shell(tmp_path / "state", monkeypatch)
        for command in commands:
            assert shell.run(*shlex.split(command.replace("qwen3", MODEL))) == 0, command
    reasoned, called, schema, regex, grammar = router.requests
    assert reasoned.reasoning == types_pb2.ReasoningOptions(enabled=True, budget_tokens=200)
    assert [tool.name for tool in called.tools] == ["weather"]
    kinds = [one.constraint.WhichOneof("constraint") for one in (schema, regex, grammar)]
    assert kinds == ["json_schema", "regex", "grammar"]
    (body,) = re.findall(r"^curl .*? -d '(.*?)'$", README, re.MULTILINE | re.DOTALL)
    (tool,) = json.loads(body)["tools"]
    assert [tool["function"]] == json.loads(tools)
