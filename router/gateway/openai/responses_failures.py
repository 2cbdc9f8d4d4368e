"""OpenAI's responses: failures, told of the fields of their bodies (pure)."""

import re
from dataclasses import replace
from typing import Final

from bramley.router.gateway.failures import Failure
from bramley.router.gateway.openai import objects
from bramley.router.gateway.openai.options import renamed

# From the router's paths to those of a body, where they are not as in chat completions.
_NAMES: Final = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"chat.*", "input"),
        (r"constraint.*", "text.format"),
        (r"stop\.max_tokens", "max_output_tokens"),
        (r"tools\[(\d+)\]\.parameters_json_schema", r"tools[\1].parameters"),
        (r"tools\[.*|tool_choice\.name", r"\g<0>"),
        (r"reasoning\..*", "reasoning.effort"),
    )
]


def refusal(failure: Failure) -> bytes:
    """Say a failure as a body; the router's name of a field becomes the body's."""
    return objects.refusal(named(failure))


def named(failure: Failure) -> Failure:
    """Name a failure's field as the body does."""
    if not (failure.is_router and failure.field):
        return failure
    field = renamed(failure.field)
    for pattern, name in _NAMES:
        if found := pattern.fullmatch(failure.field):
            field = found.expand(name)
            break
    rest = failure.message.removeprefix(f"{failure.field}: ")
    message = failure.message if rest == failure.message else f"{field}: {rest}"
    return replace(failure, field=field, message=message, is_router=False)
