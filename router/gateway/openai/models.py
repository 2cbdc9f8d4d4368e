"""OpenAI's list of models, and one of them."""

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bramley.protos.v1 import router_pb2
from bramley.router.gateway.calls import Calls, remote_errors


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model.

    Attributes:
        max_model_len: vLLM's; there while the model is loaded, as are the next two.
        reasoning_format: ours: how it writes its reasoning; None where it does not.
        tool_format: ours: how it writes calls of tools; None where it does not.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["bramley"] = "bramley"
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    reasoning_format: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_format: str | msgspec.UnsetType | None = msgspec.UNSET


class Models(msgspec.Struct, frozen=True):
    """All of them."""

    data: list[Model]
    object: Literal["list"] = "list"


class Catalogue:
    """Answers what models there are.

    Args:
        calls: of the router.
        created: of every model, in seconds since 1970: nobody knows when it was made.
    """

    def __init__(self, calls: Calls, created: int) -> None:
        self._calls = calls
        self._created = created

    async def list(self, request: Request) -> Response:
        """Tell of every model that the caller may use."""
        caller = self._calls.admit(request)
        with remote_errors():
            answer = await self._calls.stub.ListModels(
                router_pb2.ListModelsRequest(), metadata=caller.metadata, timeout=caller.timeout_s
            )
        return _said(Models([self._model(model) for model in answer.models]))

    async def retrieve(self, request: Request) -> Response:
        """Tell of one model."""
        caller = self._calls.admit(request)
        asked = router_pb2.GetModelRequest(model=request.path_params["model"])
        with remote_errors():
            answer = await self._calls.stub.GetModel(
                asked, metadata=caller.metadata, timeout=caller.timeout_s
            )
        return _said(self._model(answer.model))

    def _model(self, model: router_pb2.Model) -> Model:
        if not model.HasField("limits"):
            return Model(id=model.name, created=self._created)
        limits = model.limits
        return Model(
            id=model.name,
            created=self._created,
            max_model_len=limits.context_tokens,
            reasoning_format=limits.reasoning_format or None,
            tool_format=limits.tool_format or None,
        )


def _said(value: Model | Models) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
