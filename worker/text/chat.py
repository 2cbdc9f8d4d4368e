"""Conversations to token ids, through the model's own chat template (docs/chat.md).

``conversation_of`` makes one of a request, and ``Conversation.render`` the prompt of that.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2
from bramley.worker.reading.events import ToolSpec
from bramley.worker.text import turns
from bramley.worker.text.template import Message, Template, TemplateRefusal
from bramley.worker.text.tokenizer import Tokenizer


def characters(request: generation_pb2.GenerateRequest) -> int:
    """Count what is tokenized for sure; what a template adds is little beside the bound."""
    messages = request.chat.messages
    return len(request.text) + sum(
        len(message.content) + sum(len(part.text) for part in message.parts) for message in messages
    )


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is given.

    Attributes:
        messages: dicts as templates know them.
        tools: that the model is told of.
        switches: the template's own.
        is_continued: whether the answer goes on from the last message.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    switches: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_continued: bool = False

    def followed_by(self, messages: Sequence[Message]) -> "Conversation":
        """Go on with more turns."""
        return replace(self, messages=[*self.messages, *messages])

    def render(self, tokenizer: Tokenizer, *, opens_answer: bool = True) -> list[int]:
        """Render and tokenize; see ``render``."""
        return render(
            tokenizer,
            self.messages,
            tools=[_as_function(tool) for tool in self.tools],
            template_kwargs=self.switches,
            continue_final_message=self.is_continued,
            opens_answer=opens_answer,
        )


def conversation_of(
    request: generation_pb2.GenerateRequest, tokenizer: Tokenizer, *, reasons: bool = False
) -> Conversation:
    """Make what the model's template is given.

    Args:
        request: with a chat for its input.
        tokenizer: of the model.
        reasons: whether the model has a reasoning format: then it cannot be told not to reason
            where its template has no switch for that.

    Returns:
        The conversation.

    Raises:
        InvalidRequest: names the field.
    """
    return Conversation(
        messages=turns.messages_of(request.chat),
        tools=turns.tools_of(request),
        switches=turns.switches_of(request, tokenizer.template, reasons=reasons),
        is_continued=request.chat.continue_final_message,
    )


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    template_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
    opens_answer: bool = True,
) -> list[int]:
    """Render a conversation and tokenize it.

    Args:
        tokenizer: of the model that will answer.
        messages: dicts as templates know them: role, content (text, None, or text parts),
            tool_calls, tool_call_id, ...
        tools: function descriptions as templates know them.
        template_kwargs: the template's own switches, as in ``enable_thinking``.
        continue_final_message: leave the last message open instead of starting a new one.
        opens_answer: start a new message of the assistant.

    Returns:
        The prompt's ids; the template alone decides on special tokens.

    Raises:
        InvalidRequest: no template, no message, or the template refuses the conversation.
    """
    if not tokenizer.has_chat_template:
        raise InvalidRequest("chat", "this model has no chat template: send text instead")
    if not messages:
        raise InvalidRequest("chat.messages", "at least one message is needed")
    if continue_final_message and messages[-1].get("role") != "assistant":
        problem = "needs a last message of the assistant to go on from"
        raise InvalidRequest("chat.continue_final_message", problem)
    template = tokenizer.template
    if tools and not template.reads("tools", with_tools=True):
        raise InvalidRequest("tools", "this model's chat template does not show them")
    try:
        return template.render(
            _folded([_readable(message, template) for message in messages], template),
            tools=tools,
            switches=template_kwargs or {},
            is_continued=continue_final_message,
            opens_answer=opens_answer,
        )
    except TemplateRefusal as refusal:
        problem = f"the model's chat template refuses them: {refusal}"
        raise InvalidRequest("chat.messages", problem) from refusal


def _folded(messages: Sequence[Message], template: Template) -> Sequence[Message]:
    """Put what the system says before what the first user does, if the template knows no system."""
    users = next((n for n, each in enumerate(messages) if each.get("role") != "system"), 0)
    if not users or messages[users].get("role") != "user" or not template.refuses_system:
        return messages
    texts = [str(each["content"]) for each in messages[: users + 1]]
    return [{**messages[users], "content": "\n\n".join(texts)}, *messages[users + 1 :]]


def _readable(message: Message, template: Template) -> dict[str, Any]:
    # Templates of text models add content to strings, and walk through arguments.
    plain = {**message, "content": _text(message.get("content"))}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_call(call, template) for call in calls]
    return plain


def _text(content: object) -> object:
    if content is None:
        return ""
    if isinstance(content, list):
        parts = cast("list[object]", content)
        if all(isinstance(part, dict) and "text" in part for part in parts):
            return "".join(cast("dict[str, str]", part)["text"] for part in parts)
        raise InvalidRequest("chat.messages", "only text can be part of a message's content")
    return content


def _call(call: Mapping[str, Any], template: Template) -> dict[str, Any]:
    function = dict(cast("Mapping[str, Any]", call.get("function") or {}))
    arguments = function.get("arguments")
    if template.wants_text_arguments:
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
    elif isinstance(arguments, str):
        arguments = turns.as_object(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _as_function(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}
