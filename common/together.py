"""Which fields of a generation go together, and which are served at all.

Pure. The router checks every request before a model is loaded for it, and a worker does so again.
What one field may hold is in common/bounds.py; what the model has to know, worker/intake.py checks.
"""

from collections.abc import Iterable
from typing import Final

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2

TOOLS_CHARACTERS_MAX: Final = 4 << 20

# Fields of a GenerateRequest that no worker serves yet.
_UNSERVED: Final = frozenset({"adapter", "speculation"})


def check_together(request: generation_pb2.GenerateRequest) -> None:
    """Check what is more than one field's own affair.

    Raises:
        InvalidRequest: names the field.
    """
    for field, _ in request.ListFields():
        if field.name in _UNSERVED:
            raise InvalidRequest(field.name, "not supported by this version")
    check_tools(request.tools)
    _check_choice(request)
    _check_needs_chat(request)
    _check_constraint(request)


def shows_tools(request: generation_pb2.GenerateRequest) -> bool:
    """Whether the model is told of tools, so that its answer may call them."""
    return bool(request.tools) and request.tool_choice.mode != types_pb2.ToolChoice.MODE_NONE


def must_call(request: generation_pb2.GenerateRequest) -> bool:
    """Whether the answer has to be a call: of any tool, or of a named one."""
    required = request.tool_choice.mode == types_pb2.ToolChoice.MODE_REQUIRED
    return required or request.tool_choice.WhichOneof("choice") == "name"


def may_call_many(request: generation_pb2.GenerateRequest) -> bool:
    """Whether one answer may call several tools."""
    return request.parallel_tool_calls or not request.HasField("parallel_tool_calls")


def check_tools(tools: Iterable[types_pb2.Tool]) -> None:
    """Check that tools can be told apart, and how much there is of them.

    Raises:
        InvalidRequest: names the field.
    """
    places: dict[str, int] = {}
    size = 0
    for place, tool in enumerate(tools):
        if not tool.name:
            raise InvalidRequest(f"tools[{place}].name", "is empty")
        if (first := places.setdefault(tool.name, place)) != place:
            raise InvalidRequest(f"tools[{place}].name", f"is that of tools[{first}]")
        size += len(tool.description) + len(tool.parameters_json_schema)
    if size > TOOLS_CHARACTERS_MAX:
        raise InvalidRequest("tools", f"{size} characters are over {TOOLS_CHARACTERS_MAX}")


def _check_choice(request: generation_pb2.GenerateRequest) -> None:
    choice = request.tool_choice
    if choice.WhichOneof("choice") == "name":
        if choice.name not in {tool.name for tool in request.tools}:
            raise InvalidRequest("tool_choice.name", "is none of the tools")
    elif must_call(request) and not request.tools:
        raise InvalidRequest("tool_choice.mode", "there is no tool to call")


def _check_needs_chat(request: generation_pb2.GenerateRequest) -> None:
    """Raw text and ids are answered with content alone."""
    if request.WhichOneof("input") in {None, "chat"}:
        return
    problem = "needs chat: raw input has no template that could tell the model"
    if request.tools:
        raise InvalidRequest("tools", problem)
    for field, _ in request.reasoning.ListFields():
        raise InvalidRequest(f"reasoning.{field.name}", problem)


def _check_constraint(request: generation_pb2.GenerateRequest) -> None:
    if not request.HasField("constraint"):
        return
    constraint = request.constraint
    kind = constraint.WhichOneof("constraint")
    if kind is None:
        raise InvalidRequest("constraint", "none of its kinds is set")
    if kind == "json_object" and not constraint.json_object:
        raise InvalidRequest("constraint.json_object", "is false: leave the constraint out")
    if must_call(request):
        raise InvalidRequest("constraint", "is of content, and tool_choice leaves room for none")
    if kind == "choice":
        _check_values(constraint.choice.values)


def _check_values(values: Iterable[str]) -> None:
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        if (first := places.setdefault(value, place)) != place:
            problem = f"is values[{first}] again"
            raise InvalidRequest(f"constraint.choice.values[{place}]", problem)
    if not places:
        raise InvalidRequest("constraint.choice.values", "is empty")
