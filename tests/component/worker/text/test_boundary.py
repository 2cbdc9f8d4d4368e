"""Where a prompt ends that the next turn shares, for templates with tails of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.text import boundary
from bramley.worker.text.boundary import StableBoundary

Messages = Sequence[Mapping[str, Any]]
ASK = {"role": "user", "content": "hello there"}


class Template:
    """Renders by concatenation; counts how often it is asked."""

    def __init__(self, tail: str, kept: str) -> None:
        self.tail = tail
        self.kept = kept
        self.renders = 0

    def render(self, _: object, messages: Messages, **__: object) -> list[int]:
        self.renders += 1
        text = ""
        for message in messages:
            if message["role"] == "assistant":
                text += self.kept
            text += f"<{message['role']}>{message['content']}"
        return [ord(c) for c in text + ("" if messages[-1]["role"] == "assistant" else self.tail)]


def stable(template: Template, monkeypatch: pytest.MonkeyPatch) -> StableBoundary:
    monkeypatch.setattr(boundary, "render", template.render)
    return StableBoundary(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tail", "own"), [("<assistant>", 0), ("<assistant>[think]\n", 8), ("[sys]<assistant>", 16)]
)
def test_tokens_that_the_history_leaves_out_are_not_shared(
    monkeypatch: pytest.MonkeyPatch, tail: str, own: int
) -> None:
    template = Template(tail, kept="")
    found = stable(template, monkeypatch)
    ids = template.render(None, [ASK])
    assert found.of([ASK], {}, ids) == len(ids) - own


def test_the_template_is_asked_once_for_each_of_its_switches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = Template("<assistant>[think]\n", kept="")
    found = stable(template, monkeypatch)
    ids = template.render(None, [ASK])
    longer = [*ids, 1, 2, 3]
    before = template.renders
    assert len(ids) - found.of([ASK], {}, ids) == len(longer) - found.of([ASK, ASK], {}, longer)
    assert template.renders == before + 1
    found.of([ASK], {"enable_thinking": False}, ids)
    assert template.renders == before + 2


def test_a_template_that_refuses_the_dummy_reply_shares_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> list[int]:
        raise InvalidRequest("chat.messages", "roles must alternate")

    monkeypatch.setattr(boundary, "render", refuse)
    assert StableBoundary(None).of([ASK], {}, [1, 2, 3]) == 3  # type: ignore[arg-type]
