"""OpenAI's tools, as all of its dialects have them: functions, and which is to be called (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.bodies import as_json

Mode = Literal["none", "auto", "required"]

_MODES: Final[Mapping[Mode, types_pb2.ToolChoice.Mode.ValueType]] = {
    "none": types_pb2.ToolChoice.MODE_NONE,
    "auto": types_pb2.ToolChoice.MODE_AUTO,
    "required": types_pb2.ToolChoice.MODE_REQUIRED,
}


class Function(NamedTuple):
    """A function that may be called.

    Attributes:
        path: in the body.
        is_strict: whether the arguments have to be as the parameters say.
    """

    path: str
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    is_strict: bool


class Choice(NamedTuple):
    """What is to be called: a mode, or a function by its name."""

    mode: Mode | None = None
    name: str | None = None

    @property
    def is_enforced(self) -> bool:
        """Whether calls are kept to their parameters, or there are none."""
        return self.name is not None or self.mode in {"required", "none"}


def put_tools(
    request: generation_pb2.GenerateRequest, functions: Iterable[Function], choice: Choice
) -> None:
    """Put them into a request.

    Raises:
        InvalidRequest: parameters are to be kept to, and cannot be; names the field.
    """
    if choice.name is not None:
        request.tool_choice.name = choice.name
    elif choice.mode is not None:
        request.tool_choice.mode = _MODES[choice.mode]
    for function in functions:
        if function.is_strict and not choice.is_enforced:
            problem = "is kept to only where tool_choice asks for a call"
            raise InvalidRequest(f"{function.path}.strict", problem)
        parameters = function.parameters
        request.tools.add(
            name=function.name,
            description=function.description or "",
            parameters_json_schema="" if parameters is None else as_json(parameters),
        )
