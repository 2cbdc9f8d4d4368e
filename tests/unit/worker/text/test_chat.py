"""Conversations, with a stand-in for the tokenizer's renderer."""

from collections.abc import Callable
from typing import Any, cast

import jinja2
import pytest

from bramley.common.errors import InvalidRequest
from bramley.worker.text import chat
from bramley.worker.text.tokenizer import Tokenizer


class Renderer:
    """Keeps what it was asked to render."""

    has_chat_template = True

    def __init__(self, render: Callable[[], list[int]] = lambda: [1, 2]) -> None:
        self._render = render
        self.wrapper = self
        self.messages: list[dict[str, Any]] = []
        self.options: dict[str, Any] = {}

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: object) -> list[int]:
        self.messages, self.options = messages, options
        return self._render()

    @property
    def tokenizer(self) -> Tokenizer:
        return cast("Tokenizer", self)


USER = {"role": "user", "content": "hi"}


def test_an_answer_is_opened_unless_the_last_message_goes_on() -> None:
    renderer = Renderer()
    chat.render(renderer.tokenizer, [USER])
    assert renderer.options["add_generation_prompt"]
    opened = {"role": "assistant", "content": "It is"}
    chat.render(renderer.tokenizer, [USER, opened], continue_final_message=True)
    assert not renderer.options["add_generation_prompt"]
    assert renderer.options["continue_final_message"]


def test_only_the_assistant_s_own_message_can_be_continued() -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat.render(Renderer().tokenizer, [USER], continue_final_message=True)
    assert raised.value.field == "chat.continue_final_message"


def test_templates_see_strings_for_absent_content_and_for_text_parts() -> None:
    renderer = Renderer()
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    chat.render(
        renderer.tokenizer,
        [{"role": "assistant", "content": None}, {"role": "user", "content": parts}],
    )
    assert [message["content"] for message in renderer.messages] == ["", "one two"]


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [('{"a": 1}', {"a": 1}), ("", {}), ({"a": 1}, {"a": 1}), ("not json", "not json")],
)
def test_templates_see_the_arguments_of_a_call_as_an_object(
    arguments: object, seen: object
) -> None:
    renderer = Renderer()
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    chat.render(renderer.tokenizer, [{"role": "assistant", "tool_calls": [call]}])
    assert renderer.messages[0]["tool_calls"][0]["function"]["arguments"] == seen


def test_a_template_that_raises_is_the_requests_fault_with_its_reason() -> None:
    def refuse() -> list[int]:
        raise jinja2.TemplateError("roles must alternate")

    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        chat.render(Renderer(refuse).tokenizer, [USER])
    assert caught.value.field == "chat.messages"


def test_a_lone_surrogate_is_the_requests_fault() -> None:
    def encode() -> list[int]:
        return list("\ud83d".encode())

    with pytest.raises(InvalidRequest):
        chat.render(Renderer(encode).tokenizer, [USER])


def test_no_message_and_an_image_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        chat.render(Renderer().tokenizer, [])
    image = {"role": "user", "content": [{"type": "image_url"}]}
    with pytest.raises(InvalidRequest, match="only text"):
        chat.render(Renderer().tokenizer, [image])


def test_a_model_without_a_template_says_to_send_text() -> None:
    renderer = Renderer()
    renderer.has_chat_template = False
    with pytest.raises(InvalidRequest, match="send text") as caught:
        chat.render(renderer.tokenizer, [USER])
    assert caught.value.field == "chat"


def test_a_caller_cannot_choose_the_template() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat.render(Renderer().tokenizer, [USER], template_kwargs={"chat_template": "x"})
    assert caught.value.field == "chat.template_kwargs.chat_template"
