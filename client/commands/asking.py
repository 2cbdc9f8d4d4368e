"""Options of what an answer has to be, and of tools and reasoning: for commands that generate."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bramley.common.errors import InvalidRequest

if TYPE_CHECKING:
    from bramley.client.requests import PromptOptions, TurnOptions

_FIRST_RULE = re.compile(r"\bstart\s*:")  # every grammar has it
_TOOLS = 'a list of {"name": ..., "description": ..., "parameters": {JSON Schema}}'

JsonSchema = Annotated[
    str, typer.Option(help="JSON Schema that the answer follows: a file, or the text itself.")
]
Regex = Annotated[str, typer.Option(help="Regular expression that the answer matches.")]
Choice = Annotated[
    list[str] | None, typer.Option(help="Text that the answer is; of several, one of them.")
]
Grammar = Annotated[
    str,
    typer.Option(help="Grammar of the answer, in Lark syntax: a file, or the text itself."),
]
Tools = Annotated[
    str,
    typer.Option(
        help="JSON file with the tools that the model may call: a list of"
        ' {"name", "description", "parameters"}, or of these in OpenAI\'s form.'
    ),
]
ToolChoice = Annotated[
    str, typer.Option(help="none, auto, required, or the name of the tool to be called.")
]
Reasoning = Annotated[str, typer.Option(help="on or off. [default: the model's own]")]
ReasoningBudget = Annotated[
    int | None, typer.Option(help="Tokens of reasoning at most. [default: no limit]", min=0)
]
ReasoningEffort = Annotated[
    str, typer.Option(help="As the model knows it: low, medium, high. [default: the model's own]")
]


def turn_options(  # noqa: PLR0913 -- an option each
    *,
    json_schema: str,
    regex: str,
    choice: list[str] | None,
    grammar: str,
    tools: str,
    tool_choice: str,
    reasoning: str,
    reasoning_budget: int | None,
    reasoning_effort: str,
) -> "TurnOptions":
    """Make what a request is told of these options, and read the files that they name.

    Returns:
        Only what was set.

    Raises:
        InvalidRequest: names the option.
    """
    options: TurnOptions = {
        **prompt_options(tools, tool_choice, reasoning, reasoning_effort),
        "reasoning_budget": reasoning_budget,
    }
    if json_schema:
        is_text = json_schema.lstrip().startswith("{")
        options["json_schema"] = json_schema if is_text else _read("--json-schema", json_schema)
    if regex:
        options["regex"] = regex
    if choice:
        options["choice"] = choice
    if grammar:
        is_text = _FIRST_RULE.search(grammar) is not None
        options["grammar"] = grammar if is_text else _read("--grammar", grammar)
    return options


def prompt_options(
    tools: str, tool_choice: str, reasoning: str, reasoning_effort: str
) -> "PromptOptions":
    """Make what a prompt is told of these options, and read the file that they name.

    Returns:
        Only what was set.

    Raises:
        InvalidRequest: names the option.
    """
    if reasoning not in {"", "on", "off"}:
        raise InvalidRequest("--reasoning", f"{reasoning!r} is neither on nor off")
    options: PromptOptions = {
        "tool_choice": tool_choice,
        "reasoning": None if not reasoning else reasoning == "on",
        "reasoning_effort": reasoning_effort,
    }
    if tools:
        options["tools"] = _tools(_read("--tools", tools))
    return options


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        raise InvalidRequest(option, f"cannot read {path}: {error}") from error


def _tools(text: str) -> list[Any]:
    try:
        tools: object = json.loads(text)
    except ValueError as error:
        raise InvalidRequest("--tools", f"is no JSON: {error}") from error
    if not isinstance(tools, list):
        raise InvalidRequest("--tools", f"is no list of tools: it is {_TOOLS}")
    return cast("list[Any]", tools)
