"""Conversations, with a stand-in for the tokenizer's renderer."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jinja2
import pytest

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.reading.events import ToolSpec
from bramley.worker.text import chat
from bramley.worker.text.template import Template
from bramley.worker.text.tokenizer import Tokenizer

Render = Callable[[Sequence[dict[str, Any]], dict[str, Any]], list[int] | str]
READS_ALL = "{{ enable_thinking }}{{ reasoning_effort }}{{ tools }}{{ other }}"


def _joined(messages: Sequence[dict[str, Any]], _: dict[str, Any]) -> list[int]:
    return list("".join(each["content"] for each in messages).encode())


class Renderer:
    """Keeps what it was asked to render; speaks as mlx-lm's wrapper and as a Tokenizer."""

    def __init__(self, render: Render = _joined, source: str | dict[str, str] = READS_ALL) -> None:
        self._render = render
        self.has_chat_template = True
        self.chat_template = source
        self.init_kwargs: dict[str, Any] = {}
        self.template = Template(self)
        self.messages: Sequence[dict[str, Any]] = []
        self.options: dict[str, Any] = {}

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], **options: Any
    ) -> list[int] | str:
        if options["tokenize"]:  # else it is only asked what it would do
            self.messages, self.options = messages, options
        return self._render(messages, options)

    @property
    def tokenizer(self) -> Tokenizer:
        return cast("Tokenizer", self)


USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be kind"}
CHAT = types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="user", content="hi")])


def asked(chat: types_pb2.ChatInput = CHAT, **fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(chat=chat, **fields)


def switched(**switches: Any) -> types_pb2.ChatInput:
    made = types_pb2.ChatInput(messages=CHAT.messages)
    made.template_kwargs.update(switches)
    return made


def switches(
    request: generation_pb2.GenerateRequest, source: str | dict[str, str] = READS_ALL
) -> Any:
    tokenizer = Renderer(source=source).tokenizer
    return chat.conversation_of(request, tokenizer, reasons=True).switches


def refused(
    request: generation_pb2.GenerateRequest, source: str | dict[str, str] = READS_ALL
) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        chat.conversation_of(request, Renderer(source=source).tokenizer, reasons=True)
    return caught.value.field


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


def test_b050_templates_see_strings_for_absent_content_and_for_text_parts_in_order() -> None:
    renderer = Renderer()
    parts = [types_pb2.ContentPart(text="one "), types_pb2.ContentPart(text="two")]
    call = types_pb2.ToolCall(id="1", name="f", arguments_json="{}")
    messages = [
        types_pb2.ChatMessage(role="assistant", tool_calls=[call]),
        types_pb2.ChatMessage(role="assistant", content=""),
        types_pb2.ChatMessage(role="user", parts=parts),
    ]
    request = asked(types_pb2.ChatInput(messages=messages))
    chat.conversation_of(request, renderer.tokenizer).render(renderer.tokenizer)
    assert [message["content"] for message in renderer.messages] == ["", "", "one two"]
    listed = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    ids = chat.render(renderer.tokenizer, [{"role": "user", "content": listed}])
    assert bytes(ids) == b"one two"


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ({"a": 1}, {"a": 1}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": "\\ud83d"}', '{"a": "\\ud83d"}'),
    ],
)
def test_b050_templates_see_the_arguments_of_a_call_as_an_object(
    arguments: object, seen: object
) -> None:
    renderer = Renderer()
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    chat.render(renderer.tokenizer, [{"role": "assistant", "tool_calls": [call]}])
    assert renderer.messages[0]["tool_calls"][0]["function"]["arguments"] == seen


def _concatenating(messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[int] | str:
    text = ""
    for message in messages:
        for call in message.get("tool_calls", ()):
            text += call["function"]["arguments"]
    return list(text.encode()) if options["tokenize"] else text


def _printing(messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[int] | str:
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    text = "".join(f"{call['function']['arguments']}" for call in calls)
    return list(text.encode()) if options["tokenize"] else text


@pytest.mark.parametrize("render", [_concatenating, _printing])
@pytest.mark.parametrize(
    ("arguments", "seen"), [('{"a":  1}', '{"a":  1}'), ({"a": "é"}, '{"a": "é"}'), ("", "")]
)
def test_b050_a_template_that_writes_arguments_down_as_they_are_gets_their_text(
    render: Render, arguments: object, seen: str
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert bytes(chat.render(Renderer(render).tokenizer, messages)).decode() == seen


def test_a_template_that_raises_is_the_requests_fault_with_its_reason() -> None:
    def refuse(_: object, __: object) -> list[int]:
        raise jinja2.TemplateError("roles must alternate")

    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        chat.render(Renderer(refuse).tokenizer, [USER])
    assert caught.value.field == "chat.messages"


def test_a_lone_surrogate_is_the_requests_fault() -> None:
    def encode(_: object, __: object) -> list[int]:
        return list("\ud83d".encode())

    with pytest.raises(InvalidRequest):
        chat.render(Renderer(encode).tokenizer, [USER])


def test_b050_no_message_and_an_image_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one message") as caught:
        chat.render(Renderer().tokenizer, [])
    assert caught.value.field == "chat.messages"
    image = {"role": "user", "content": [{"type": "image_url"}]}
    with pytest.raises(InvalidRequest, match="only text"):
        chat.render(Renderer().tokenizer, [image])
    other = types_pb2.ContentPart.FromString(b"\x12\x03png")  # a field that a later client knows
    parts = [types_pb2.ContentPart(text="see:"), other]
    user = types_pb2.ChatMessage(role="user", parts=parts)
    assert refused(asked(types_pb2.ChatInput(messages=[user]))) == "chat.messages[0].parts[1]"


def test_a_model_without_a_template_says_to_send_text() -> None:
    renderer = Renderer()
    renderer.has_chat_template = False
    with pytest.raises(InvalidRequest, match="send text") as caught:
        chat.render(renderer.tokenizer, [USER])
    assert caught.value.field == "chat"


@pytest.mark.parametrize("name", ["chat_template", "tools", "sanitize_control_tokens", "tokenize"])
def test_a_caller_cannot_choose_the_template(name: str) -> None:
    assert refused(asked(switched(**{name: "x"}))) == f"chat.template_kwargs.{name}"


def test_reasoning_is_asked_for_by_the_template_s_own_switches() -> None:
    reasoning = types_pb2.ReasoningOptions(enabled=False, effort="low", budget_tokens=3)
    told = {"enable_thinking": False, "reasoning_effort": "low"}
    assert switches(asked(reasoning=reasoning)) == told
    assert switches(asked(switched(**told, other=1.0), reasoning=reasoning)) == told | {"other": 1}
    off = types_pb2.ReasoningOptions(enabled=False)
    assert switches(asked(reasoning=off), "{% if thinking %}<think>{% endif %}") == {
        "thinking": False
    }
    assert switches(asked(reasoning=types_pb2.ReasoningOptions(budget_tokens=3))) == {}


@pytest.mark.parametrize(
    ("field", "chat_input", "reasoning"),
    [
        ("reasoning.enabled", switched(enable_thinking=True), {"enabled": False}),
        ("reasoning.enabled", switched(enable_thinking="no"), {"enabled": False}),
        ("reasoning.effort", switched(reasoning_effort="high"), {"effort": "low"}),
    ],
)
def test_a_switch_that_says_something_else_is_refused(
    field: str, chat_input: types_pb2.ChatInput, reasoning: Any
) -> None:
    assert refused(asked(chat_input, reasoning=types_pb2.ReasoningOptions(**reasoning))) == field


def test_what_the_template_has_no_switch_for_is_refused_unless_it_is_so_anyway() -> None:
    plain = "{{ messages }}"
    low = types_pb2.ReasoningOptions(effort="low")
    assert refused(asked(reasoning=low), plain) == "reasoning.effort"
    off, on = (types_pb2.ReasoningOptions(enabled=each) for each in (False, True))
    assert refused(asked(reasoning=off), plain) == "reasoning.enabled"
    assert switches(asked(reasoning=on), plain) == {}
    tokenizer = Renderer(source=plain).tokenizer
    assert chat.conversation_of(asked(reasoning=off), tokenizer, reasons=False).switches == {}


@pytest.mark.parametrize(
    ("source", "is_read"),
    [
        ("{% if foo is defined and foo %}a{% endif %}", True),
        ("{% if foo is not defined %}{% set foo = 1 %}{% endif %}{{ foo }}", True),
        ("{% set foo = foo | default(true) %}{{ foo }}", True),
        ("{% for m in messages %}{{ m | tojson(indent=foo) }}{% endfor %}", True),
        ("{% macro f(x) %}{{ x ~ foo }}{% endmacro %}{{ f(1) }}", True),
        ("{% generation %}{{ foo }}{% endgeneration %}", True),
        ("{% set foo = 1 %}{{ foo }}", False),
        ("{% for foo in messages %}{{ foo.content }}{% endfor %}", False),
        ("{{ messages[0].foo }}{# foo #}", False),
        ({"default": "{{ messages }}", "tool_use": "{{ foo }}"}, False),
    ],
)
def test_a_variable_that_the_template_never_reads_is_refused_by_its_path(
    source: str | dict[str, str], *, is_read: bool
) -> None:
    request = asked(switched(foo=True))
    if is_read:
        assert switches(request, source) == {"foo": True}
    else:
        assert refused(request, source) == "chat.template_kwargs.foo"


def test_a_variable_may_be_of_the_template_that_shows_tools() -> None:
    source = {"default": "{{ messages }}", "tool_use": "{{ foo }}"}
    assert switches(asked(switched(foo=1.0), tools=[TOOL]), source) == {"foo": 1}
    request = asked(switched(foo=1.0), tools=[TOOL], tool_choice=NONE)
    assert refused(request, source) == "chat.template_kwargs.foo"


def test_only_a_model_that_does_not_reason_may_be_told_that_it_shall_not() -> None:
    tokenizer = Renderer(source="{{ messages }}").tokenizer
    for name in ("enable_thinking", "thinking"):
        chat.conversation_of(asked(switched(**{name: False})), tokenizer, reasons=False)
        assert refused(asked(switched(**{name: False})), "{{ messages }}")
        for other in (True, None, 0.0, "no"):
            with pytest.raises(InvalidRequest, match="does not read it"):
                chat.conversation_of(asked(switched(**{name: other})), tokenizer, reasons=False)


SCHEMA = '{"type": "object", "properties": {"a": {"type": "string"}}}'
TOOL = types_pb2.Tool(name="f", description="does it", parameters_json_schema=SCHEMA)
NONE = types_pb2.ToolChoice(mode=types_pb2.ToolChoice.MODE_NONE)


def test_tools_are_shown_as_functions_and_those_without_parameters_take_none() -> None:
    renderer = Renderer()
    request = asked(tools=[TOOL, types_pb2.Tool(name="g")])
    made = chat.conversation_of(request, renderer.tokenizer)
    spec = {"type": "object", "properties": {"a": {"type": "string"}}}
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    assert made.tools == [ToolSpec("f", spec, "does it"), ToolSpec("g", empty)]
    made.render(renderer.tokenizer)
    functions = [each["function"] for each in renderer.options["tools"]]
    assert functions == [
        {"name": "f", "description": "does it", "parameters": spec},
        {"name": "g", "description": "", "parameters": empty},
    ]
    assert {each["type"] for each in renderer.options["tools"]} == {"function"}


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    renderer = Renderer(source="{{ messages }}")
    request = asked(tools=[TOOL], tool_choice=NONE)
    chat.conversation_of(request, renderer.tokenizer).render(renderer.tokenizer)
    assert renderer.options["tools"] is None


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        ("{{ tools | tojson }}", True),
        ("{% for t in message.tools %}{% endfor %}tools", False),
        ({"default": "{{ messages }}", "tool_use": "{{ tools }}"}, True),
        ({"default": "{{ messages }}"}, False),
        ("{% generation %}{{ tools }}{% endgeneration %}", True),
        ("{% broken", False),
    ],
)
def test_tools_that_the_template_does_not_show_are_refused(source: Any, shows: bool) -> None:
    tokenizer = Renderer(source=source).tokenizer
    made = chat.conversation_of(asked(tools=[TOOL]), tokenizer)
    if shows:
        made.render(tokenizer)
        return
    with pytest.raises(InvalidRequest) as caught:
        made.render(tokenizer)
    assert caught.value.field == "tools"


def test_code_in_place_of_a_template_is_taken_to_show_all() -> None:
    renderer = Renderer(source="{{ messages }}")
    renderer.init_kwargs["chat_template_type"] = "deepseek_v32"
    reasoning = types_pb2.ReasoningOptions(enabled=False)
    made = chat.conversation_of(asked(tools=[TOOL], reasoning=reasoning), renderer.tokenizer)
    assert made.switches == {"enable_thinking": False}
    made.render(renderer.tokenizer)
    assert renderer.options["tools"]


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[]",
        "null",
        '"x"',
        '{"type": "array"}',
        '{"type": ["object", "null"]}',
        '{"default": NaN}',
        '{"default": 1e999}',
        '{"default": "\\ud83d"}',
        '{"a":' * 5000 + "1" + "}" * 5000,
        '{"default": ' + "1" * 5000 + "}",
    ],
)
def test_parameters_that_are_no_schema_of_an_object_are_refused(schema: str) -> None:
    bad = types_pb2.Tool(name="g", parameters_json_schema=schema)
    assert refused(asked(tools=[TOOL, bad])) == "tools[1].parameters_json_schema"


def _no_system(messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[int] | str:
    """As Gemma's."""
    text = ""
    for place, message in enumerate(messages):
        if message["role"] == "system":
            raise jinja2.TemplateError("System role not supported")
        if (message["role"] == "user") != (place % 2 == 0):
            raise jinja2.TemplateError("roles must alternate")
        text += f"<{message['role']}>{message['content']}"
    return list(text.encode()) if options["tokenize"] else text


def test_b050_a_system_message_that_the_template_refuses_goes_before_the_first_user_s() -> None:
    tokenizer = Renderer(_no_system).tokenizer
    also = {"role": "system", "content": "be short"}
    reply = {"role": "assistant", "content": "yes"}
    ids = chat.render(tokenizer, [SYSTEM, also, USER, reply, USER])
    assert bytes(ids) == b"<user>be kind\n\nbe short\n\nhi<assistant>yes<user>hi"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([SYSTEM], "not supported"),
        ([USER, SYSTEM, USER], "not supported"),
        ([SYSTEM, {"role": "assistant", "content": "yes"}], "not supported"),
        ([SYSTEM, USER, USER], "must alternate"),
    ],
)
def test_b050_what_folding_does_not_mend_is_refused_with_the_template_s_reason(
    messages: Sequence[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        chat.render(Renderer(_no_system).tokenizer, messages)
    assert caught.value.field == "chat.messages"


def _alternating(messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[int] | str:
    """Knows a system message, and refuses other things."""
    rest = messages[1:] if messages[0]["role"] == "system" else messages
    return _no_system(rest, options)


def test_a_template_that_refuses_something_else_is_given_the_system_message_as_it_is() -> None:
    renderer = Renderer(_alternating)
    with pytest.raises(InvalidRequest, match="must alternate"):
        chat.render(renderer.tokenizer, [SYSTEM, USER, USER])
    assert renderer.messages[0] == SYSTEM
