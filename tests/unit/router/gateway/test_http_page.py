"""docs/http.md has every field of every body, and says of each what is true."""

import re
from pathlib import Path

import msgspec
import pytest

from bramley.router.gateway.anthropic.messages import MessagesBody, PromptBody
from bramley.router.gateway.openai.chat import ChatBody
from bramley.router.gateway.openai.completions import CompletionBody
from bramley.router.gateway.openai.embeddings import EmbeddingBody
from bramley.router.gateway.openai.options import Options
from bramley.router.gateway.openai.responses_body import ResponseBody

PAGE = (Path(__file__).parents[4] / "docs" / "http.md").read_text()


def said(title: str) -> dict[str, str]:
    """What a section's table says of each field."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for row in section.splitlines():
        if row.startswith("| `"):
            names, kind, *_ = row.strip("| ").split(" | ")
            found |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind.strip(" |"))
    return found


def true_of(kind: type[Options | ResponseBody | PromptBody]) -> dict[str, str]:
    """What is so."""
    made: dict[str, str] = {}
    for name in kind.__struct_fields__:
        if name not in kind.ONLY:
            made[name] = "yes"
        elif allowed := kind.ONLY[name]:
            made[name] = f"only `{msgspec.json.encode(allowed[0]).decode()}`"
        else:
            made[name] = "refused"
    return made


@pytest.mark.parametrize(
    ("kind", "title"),
    [(ChatBody, "Fields of chat completions"), (CompletionBody, "Fields of completions")],
)
def test_the_page_has_each_field_as_it_is(kind: type[Options], title: str) -> None:
    common, own = said("Fields of both kinds of completion"), said(title)
    assert not common.keys() & own.keys()
    assert common | own == true_of(kind)


def test_the_page_has_each_field_of_responses_as_it_is() -> None:
    assert said("Fields of responses") == true_of(ResponseBody)


def test_the_page_has_each_field_of_embeddings_as_it_is() -> None:
    fields = dict.fromkeys(EmbeddingBody.__struct_fields__, "yes")
    assert said("Fields of embeddings") == fields


def test_the_page_has_each_field_of_messages_as_it_is() -> None:
    common, own = said("Fields of both bodies of messages"), said("Fields of messages")
    assert not common.keys() & own.keys()
    assert common == true_of(PromptBody)
    assert common | own == true_of(MessagesBody)
