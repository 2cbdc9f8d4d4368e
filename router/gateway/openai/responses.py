"""OpenAI's responses: a body to a request (pure); openai/responses_answer.py says the answer."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2
from bramley.router.gateway.bodies import convert
from bramley.router.gateway.dialect import Asked
from bramley.router.gateway.failures import NoSuchPrevious
from bramley.router.gateway.openai.options import class_of, constrain, put_effort
from bramley.router.gateway.openai.responses_answer import (
    Keep,
    Response,
    ResponseStream,
    ResponseWhole,
    Said,
)
from bramley.router.gateway.openai.responses_body import (
    ENCRYPTED,
    LOGPROBS,
    ChosenTool,
    ResponseBody,
    TextFormat,
    Tool,
)
from bramley.router.gateway.openai.responses_items import Strict, read_items
from bramley.router.gateway.openai.responses_turns import turns_of
from bramley.router.gateway.openai.stored import Kept
from bramley.router.gateway.openai.tools import Choice, Function, Mode, put_tools

Find = Callable[[str], Kept | None]


def read(value: object, now: int, find: Find, keep: Keep) -> Asked:
    """Make a request of a body's plain values.

    Args:
        value: them.
        now: seconds since 1970.
        find: looks for an answer that is kept.
        keep: keeps one; called once it is whole.

    Returns:
        It, and what says its answer.

    Raises:
        InvalidRequest: names the field.
    """
    body = convert(value, ResponseBody)
    _check(body)
    before = _before(body.previous_response_id, find)
    items = read_items(body.input)
    if not items:
        raise InvalidRequest("input", "is empty")
    tools, choice = _tools(body), _choice(body)
    request = _request(body)
    put_tools(request, _functions(tools), _chosen(choice) if body.tool_choice else Choice())
    turns = turns_of([*(before.conversation if before else ()), *items], body.instructions)
    request.chat.messages.extend(turns)
    said = Said(
        response=_said(body, now, tools, choice),
        items=items,
        item_bytes=len(msgspec.json.encode(items)),
        before=before,
        keep=None if body.store is False else keep,
    )
    return Asked([request], ResponseStream(said) if body.stream else ResponseWhole(said))


def _check(body: ResponseBody) -> None:
    body.check()
    for path in ("stream_options", "reasoning", "text"):
        part: Strict | None = getattr(body, path)
        if part is not None:
            part.check(path)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "is of streams, and stream is not true")
    for place, name in enumerate(body.include or ()):
        if name not in {LOGPROBS, ENCRYPTED}:
            raise InvalidRequest(f"include[{place}]", "is not supported")
    if body.top_logprobs and not _tells_logprobs(body):
        raise InvalidRequest("top_logprobs", f"goes with {LOGPROBS} in include")


def _tells_logprobs(body: ResponseBody) -> bool:
    return LOGPROBS in (body.include or ())


def _before(name: str | None, find: Find) -> Kept | None:
    if name is None:
        return None
    kept = find(name)
    if kept is None:
        problem = f"{name[:100]!a} is not kept: it is none, was deleted, or is too old"
        raise NoSuchPrevious("previous_response_id", problem)
    return kept


def _request(body: ResponseBody) -> generation_pb2.GenerateRequest:
    request = generation_pb2.GenerateRequest(
        model=body.model,
        session_key=body.prompt_cache_key or "",
        fairness_key=body.user or body.safety_identifier or "",
        labels=body.metadata or {},
        priority=class_of(body.service_tier),
        parallel_tool_calls=body.parallel_tool_calls,
    )
    # What is told are texts: ids are for nobody.
    request.stream.omit_token_ids = True
    if body.temperature is not None:
        request.sampling.temperature = body.temperature
    if body.top_p is not None:
        request.sampling.top_p = body.top_p
    if body.max_output_tokens is not None:
        request.stop.max_tokens = body.max_output_tokens
    if _tells_logprobs(body):
        request.logprobs.top = body.top_logprobs or 0
        request.logprobs.bytes = True
    put_effort(request, body.reasoning.effort if body.reasoning else None)
    constrain(request, _format(body.text.format if body.text else None))
    return request


def _format(asked: TextFormat | None) -> Iterator[tuple[str, str, object]]:
    if asked is None:
        return
    is_schema = asked.type == "json_schema"
    for name in ("name", "schema"):
        if (getattr(asked, name) is not msgspec.UNSET) != is_schema:
            raise InvalidRequest(f"text.format.{name}", "goes with the type json_schema")
    if is_schema:
        yield "text.format", "json_schema", asked.schema
    elif asked.type == "json_object":
        yield "text.format", "json_object", True


def _tools(body: ResponseBody) -> list[Tool]:
    tools: list[Tool] = []
    for place, value in enumerate(body.tools or ()):
        path = f"tools[{place}]"
        _check_function(value, path)
        tool = convert(value, Tool, path)
        tool.check(path)
        tools.append(tool)
    return tools


def _choice(body: ResponseBody) -> Mode | ChosenTool:
    given = body.tool_choice
    if not isinstance(given, dict):
        return given or "auto"
    _check_function(given, "tool_choice")
    return convert(given, ChosenTool, "tool_choice")


def _check_function(value: dict[str, Any], path: str) -> None:
    """Name what a tool is, where it is no function: one of OpenAI's own."""
    kind = value.get("type")
    if isinstance(kind, str) and kind != "function":
        raise InvalidRequest(f"{path}.type", f"{kind!r} is not served: functions are")


def _functions(tools: list[Tool]) -> Iterator[Function]:
    for place, tool in enumerate(tools):
        is_strict = bool(tool.strict)
        yield Function(f"tools[{place}]", tool.name, tool.description, tool.parameters, is_strict)


def _chosen(choice: Mode | ChosenTool) -> Choice:
    return Choice(name=choice.name) if isinstance(choice, ChosenTool) else Choice(choice)


def _said(body: ResponseBody, now: int, tools: list[Tool], choice: Mode | ChosenTool) -> Response:
    """Say what every answer repeats of its body."""
    text = body.text.format if body.text and body.text.format else TextFormat()
    return Response(
        created_at=now,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=body.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        safety_identifier=body.safety_identifier,
        service_tier="default" if body.service_tier in {None, "auto"} else body.service_tier,
        store=body.store is not False,
        temperature=body.temperature,
        text={"format": text, "verbosity": "medium"},
        tool_choice=choice,
        tools=tools,
        top_logprobs=body.top_logprobs or 0,
        top_p=body.top_p,
        user=body.user,
    )
