"""``bramley generate``: one answer, to stdout as it comes or as one JSON object."""

import sys
import time
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bramley.client.commands import asking
from bramley.client.commands.answer import read_prompt, stream_text, wait_for
from bramley.client.commands.connection import router
from bramley.client.commands.sampling import (
    MAX_TOKENS,
    MODELS_OWN,
    MaxTokens,
    Seed,
    Temperature,
)
from bramley.client.commands.screen import print_json
from bramley.client.events import Completion

if TYPE_CHECKING:
    from bramley.client.requests import Options, Priority


def generate(  # noqa: PLR0913 -- an option each
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="-: read it from stdin.")],
    *,
    max_tokens: MaxTokens = MAX_TOKENS,
    temperature: Temperature = None,
    top_p: Annotated[
        float | None,
        typer.Option(help=f"Likeliest share to choose from. {MODELS_OWN.format(1)}", min=0, max=1),
    ] = None,
    seed: Seed = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Render the prompt with the model's chat template, or send it as it is."
            " Without either: a template where the model has one.",
            show_default=False,
        ),
    ] = None,
    session: Annotated[
        str, typer.Option(help="Conversation that it belongs to, for the cache.")
    ] = "",
    priority: Annotated[
        str, typer.Option(help="bulk, default, interactive or system: who waits for whom.")
    ] = "default",
    fairness_key: Annotated[
        str, typer.Option(help="Client that asks: clients of one class take turns.")
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for the whole. [default: no limit]", min=0)
    ] = None,
) -> None:
    """Generate one answer."""
    text = read_prompt(prompt)
    options: Options = {
        "stop": stop or [],
        "progress": sys.stderr.isatty(),
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
    options["session_key"], options["fairness_key"] = session, fairness_key
    options["priority"] = cast("Priority", priority)  # refused by name where it is none
    options["max_tokens"] = max_tokens
    options["temperature"] = temperature
    options["top_p"] = top_p
    options["seed"] = seed
    until_s = inf if timeout is None else time.monotonic() + timeout
    from bramley.common.status import RemoteError  # noqa: PLC0415 -- loads gRPC

    with router(context.obj) as client:

        def answered(*, chat: bool) -> Completion:
            left_s = None if timeout is None else until_s - time.monotonic()
            if chat:
                options["messages"] = [{"role": "user", "content": text}]
                events = client.generate(model, timeout_s=left_s, **options)
            else:
                options.pop("messages", None)
                events = client.generate(model, text, timeout_s=left_s, **options)
            with closing(events):
                return stream_text(events, write=not as_json)

        has_template = wait_for(client, model, timeout).has_chat_template if chat is None else chat
        try:
            # Of a model that is not loaded nobody knows: this loads it, or says why it cannot.
            completion = answered(chat=has_template is not False)
        except RemoteError as error:
            if has_template is not None or error.field != "chat":
                raise
            completion = answered(chat=False)
    if as_json:
        print_json(_as_json(completion))


def _as_json(completion: Completion) -> dict[str, object]:
    timings = completion.timings
    return {
        "text": completion.text,
        "reasoning_text": completion.reasoning_text,
        "tool_calls": completion.tool_calls,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "usage": completion.usage,
        "timings": {
            "queue_s": timings.queue_s,
            "ttft_s": timings.ttft_s,
            "total_s": timings.total_s,
        },
    }
