"""Follows one answer on the screen: the model's load, the prompt's prefill, then its text."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from bramley.client.cluster import Model
from bramley.client.commands.screen import fail, progress_bar
from bramley.client.events import Completion, Delta, Event, Gathering, Progress

if TYPE_CHECKING:
    from bramley.client.sync import Client

SERVING = ("ready", "degraded")


def load(client: "Client", name: str) -> Model:
    """Wait until the model ``name`` serves.

    Returns:
        The model, with its limits.
    """
    model = client.get_model(name)
    if model.state in SERVING:
        return model
    with progress_bar() as bar:
        for model in client.load_model(name):
            bar.draw(f"{model.state} {name}", model.load_progress)
    if model.state not in SERVING:
        fail(f"{name} is {model.state}: {model.reason or 'no reason given'}")
    return model


def stream_text(events: Iterable[Event], *, write: bool) -> Completion:
    """Follow ``events`` to their end, writing the text to stdout as it comes if ``write``.

    Returns:
        The whole answer.
    """
    gathering = Gathering()
    with progress_bar() as bar:
        for event in events:
            gathering.add(event)
            if isinstance(event, Progress):
                bar.draw("prefill", event.done_tokens / max(event.prompt_tokens, 1))
            elif isinstance(event, Delta) and write:
                bar.erase()
                typer.echo(event.text, nl=False)
                sys.stdout.flush()
    completion = gathering.completion()
    if write and not completion.text.endswith("\n"):
        typer.echo()
    return completion
