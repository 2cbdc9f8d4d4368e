"""Templates as programs: what they may do, and ordinary histories that they trip over."""

import inspect
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import PreTrainedTokenizerBase

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.worker.text import chat
from bramley.worker.text.tokenizer import Tokenizer
from bramley.worker.text.turns import RESERVED
from support.byte_tokenizer import CHAT_TEMPLATE
from support.templates import NO_SYSTEM, REASONING, tokenizer_with

USER = {"role": "user", "content": "hi"}

HOSTILE = [
    "''.__class__.__mro__[1].__subclasses__()",
    "messages.__class__.__base__.__subclasses__()",
    "cycler.__init__.__globals__.os.system(TOUCH)",
    "lipsum.__globals__['os'].system(TOUCH)",
    "namespace.__init__.__globals__",
    "raise_exception.__globals__['jinja2']",
    "strftime_now.__globals__",
    "self.__init__.__globals__",
    "'{0.__class__.__init__.__globals__}'.format(namespace)",
    "'{m.__class__.__mro__}'.format_map({'m': messages})",
    "messages | map(attribute='__class__') | list",
    "(messages | attr('__class__')).__mro__",
    "raise_exception.__code__.co_consts",
    "messages.append.__self__.__class__",
    "dict.__class__.__mro__",
]
CHANGING = ["messages.append(1)", "messages[0].update(role='x')", "messages.clear()", "tools.pop()"]


def attempts(template: str, touched: Path) -> str:
    return "{{ " + template.replace("TOUCH", f"'touch {touched}'") + " }}"


@pytest.mark.parametrize("attempt", HOSTILE)
def test_a_hostile_template_does_not_reach_the_interpreter(tmp_path: Path, attempt: str) -> None:
    touched = tmp_path / "touched"
    tokenizer = tokenizer_with(tmp_path / "model", attempts(attempt, touched))
    try:
        ids = chat.render(tokenizer, [USER])
    except InvalidRequest as refused:
        assert refused.field == "chat.messages"  # noqa: PT017 -- or it renders to nothing
    else:
        text = tokenizer.decode(ids, skip_special_tokens=False)
        assert not [word for word in ("<class", "<module", "builtin", "os") if word in text], text
    assert not touched.exists()


@pytest.mark.parametrize("attempt", CHANGING)
def test_a_template_changes_nothing_that_it_is_given(tmp_path: Path, attempt: str) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", "{{ " + attempt + " }}")
    tools = [{"type": "function", "function": {"name": "f"}}] if "tools" in attempt else []
    with pytest.raises(InvalidRequest, match=r"unsafe|safely"):
        chat.render(tokenizer, [USER], tools=tools)


@pytest.mark.parametrize("template", ["{% include '/etc/passwd' %}", "{% import 'os' as os %}"])
def test_a_template_reads_no_file(tmp_path: Path, template: str) -> None:
    with pytest.raises(InvalidRequest, match="refuses"):
        chat.render(tokenizer_with(tmp_path / "model", template), [USER])


def test_a_template_s_numbers_are_bounded(tmp_path: Path) -> None:
    endless = "{% for i in range(1000000000) %}x{% endfor %}"
    with pytest.raises(InvalidRequest, match="Range too big"):
        chat.render(tokenizer_with(tmp_path / "model", endless), [USER])


def test_nothing_that_the_renderer_takes_is_a_caller_s_switch() -> None:
    taken = inspect.signature(cast("Any", PreTrainedTokenizerBase).apply_chat_template).parameters
    assert {name for name in taken if name not in {"self", "kwargs"}} <= RESERVED


def chats(*messages: dict[str, Any]) -> generation_pb2.GenerateRequest:
    made = [types_pb2.ChatMessage(**message) for message in messages]
    return generation_pb2.GenerateRequest(chat=types_pb2.ChatInput(messages=made))


def rendered(tokenizer: Tokenizer, *messages: dict[str, Any]) -> str:
    made = chat.conversation_of(chats(*messages), tokenizer)
    return tokenizer.decode(made.render(tokenizer), skip_special_tokens=False)


CALL = types_pb2.ToolCall(id="1", name="look", arguments_json='{"at": "é", "n": 2}')


def test_b050_a_turn_of_calls_alone_and_the_tool_s_answer_are_rendered(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", REASONING)
    text = rendered(
        tokenizer,
        USER,
        {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "sunny", "tool_call_id": "1"},
        {"role": "assistant", "content": ""},
        {"role": "user", "parts": [types_pb2.ContentPart(text=text) for text in ("a", "b")]},
    )
    called = "<a>[call look at=é n=2]<|end|>"
    assert text == f"<u>hi<|end|>{called}<t>sunny<|end|><a><|end|><u>ab<|end|><a><think>"


def test_b050_arguments_that_a_template_cannot_walk_are_refused_with_its_reason(
    tmp_path: Path,
) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", REASONING)
    bad = types_pb2.ToolCall(id="1", name="look", arguments_json='{"at": ')
    with pytest.raises(InvalidRequest, match="mapping") as caught:
        rendered(tokenizer, USER, {"role": "assistant", "tool_calls": [bad]}, USER)
    assert caught.value.field == "chat.messages"


SYSTEM = {"role": "system", "content": "be kind"}


def test_b050_a_system_message_is_folded_where_the_template_refuses_it_alone(
    tmp_path: Path,
) -> None:
    tokenizer = tokenizer_with(tmp_path / "gemma", NO_SYSTEM)
    assert rendered(tokenizer, SYSTEM, USER) == "<bos><user>be kind\n\nhi<|end|><model>"
    plain = tokenizer_with(tmp_path / "plain", CHAT_TEMPLATE)
    assert rendered(plain, SYSTEM, USER).startswith("<|start|>system\nbe kind<|end|><|start|>user")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([USER, USER], "roles must alternate"),
        ([USER, {"role": "critic", "content": "x"}], "Unknown role critic"),
        ([SYSTEM], "System role not supported"),
        ([SYSTEM, USER, USER], "roles must alternate"),
        ([], "at least one message"),
    ],
)
def test_b050_what_a_template_refuses_is_the_request_s_fault_with_its_reason(
    tmp_path: Path, messages: list[dict[str, Any]], reason: str
) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", NO_SYSTEM)
    with pytest.raises(InvalidRequest, match=reason) as caught:
        rendered(tokenizer, *messages)
    assert caught.value.field == "chat.messages"


def test_b050_two_user_turns_and_an_unknown_role_go_to_a_template_that_takes_them(
    tmp_path: Path,
) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", CHAT_TEMPLATE)
    text = rendered(tokenizer, USER, USER, {"role": "critic", "content": "x"})
    user = "<|start|>user\nhi<|end|>"
    assert text == f"{user}{user}<|start|>critic\nx<|end|><|start|>assistant\n"


@pytest.mark.parametrize(
    "messages", [[USER], [SYSTEM, USER], [USER, {**USER, "role": "assistant"}]]
)
def test_b050_a_prompt_has_one_first_token(tmp_path: Path, messages: list[dict[str, Any]]) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", NO_SYSTEM)
    bos = tokenizer.token_id("<bos>") or 0
    assert tokenizer.encode("hi").count(bos) == 1  # it adds one to raw text
    is_continued = messages[-1]["role"] == "assistant"
    ids = chat.Conversation(messages, is_continued=is_continued).render(tokenizer)
    assert (ids[0], ids.count(bos)) == (bos, 1)


def test_a_last_message_that_goes_on_is_left_open(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", NO_SYSTEM)
    request = chats(USER, {"role": "assistant", "content": "It is"})
    request.chat.continue_final_message = True
    ids = chat.conversation_of(request, tokenizer).render(tokenizer)
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("<assistant>It is")


def test_reasoning_is_switched_off_by_the_template(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", REASONING)
    request = chats(USER)
    request.reasoning.enabled = False
    ids = chat.conversation_of(request, tokenizer, reasons=True).render(tokenizer)
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("<a><think></think>")
