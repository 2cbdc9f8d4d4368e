"""``bramley chat``: a conversation at the terminal."""

import re
import sys
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from bramley.client.commands import asking
from bramley.client.commands.answer import stream_text, wait_for
from bramley.client.commands.connection import router
from bramley.client.commands.sampling import MAX_TOKENS, MaxTokens, Seed, Temperature

if TYPE_CHECKING:
    from bramley.client.events import Completion
    from bramley.client.requests import Options, Turn
    from bramley.client.sync import Client

_COMMAND = re.compile(r"/[a-z]+")  # and no more than that, as a path or a question has
_HELP = """/help   list the commands
/reset  forget the conversation
/exit   end, as Ctrl-D does
Ctrl-C  interrupt an answer"""


def chat(  # noqa: PLR0913 -- an option each
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    *,
    max_tokens: MaxTokens = MAX_TOKENS,
    temperature: Temperature = None,
    seed: Seed = None,
    session: Annotated[
        str, typer.Option(help="Name of the conversation, for the cache. [default: a random one]")
    ] = "",
    json_schema: asking.JsonSchema = "",
    regex: asking.Regex = "",
    choice: asking.Choice = None,
    grammar: asking.Grammar = "",
    tools: asking.Tools = "",
    tool_choice: asking.ToolChoice = "",
    reasoning: asking.Reasoning = "",
    reasoning_budget: asking.ReasoningBudget = None,
    reasoning_effort: asking.ReasoningEffort = "",
) -> None:
    """Talk with a model. /reset forgets the conversation, /exit or Ctrl-D ends it, /help lists."""
    history: list[Turn] = []
    options: Options = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        **asking.turn_options(
            json_schema=json_schema,
            regex=regex,
            choice=choice,
            grammar=grammar,
            tools=tools,
            tool_choice=tool_choice,
            reasoning=reasoning,
            reasoning_budget=reasoning_budget,
            reasoning_effort=reasoning_effort,
        ),
    }
    options["progress"] = sys.stderr.isatty()
    options["session_key"] = session or _session_key()
    with router(context.obj) as client:
        wait_for(client, model)
        while (line := _read_line()) is not None:
            if line == "/exit":
                return
            if line == "/reset":
                history.clear()
                options["session_key"] = _session_key()
            elif line == "/help":
                typer.echo(_HELP)
            elif _COMMAND.fullmatch(line):
                typer.echo(f"there is no {line}; /help lists what there is", err=True)
            elif line:
                _turn(client, model, history, line, options)


def _session_key() -> str:
    return f"chat-{uuid.uuid4().hex}"


def _turn(
    client: "Client", model: str, history: list["Turn"], line: str, options: "Options"
) -> None:
    """Ask ``line`` and keep the turn; an interrupted one is forgotten."""
    asked: list[Turn] = [*history, {"role": "user", "content": line}]
    try:
        with closing(client.generate(model, **{**options, "messages": asked})) as events:
            answer = stream_text(events, write=True)
    except KeyboardInterrupt:
        typer.echo("(interrupted)", err=True)
        return
    history[:] = [*asked, _turn_of(answer)]


def _turn_of(answer: "Completion") -> "Turn":
    """Say an answer as a turn; what was reasoned is the template's to keep or leave out."""
    turn: Turn = {"role": "assistant", "content": answer.text}
    if answer.reasoning_text:
        turn["reasoning_content"] = answer.reasoning_text
    if answer.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    return turn


def _read_line() -> str | None:
    """Read what the person says; None at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        typer.echo()
        return ""
