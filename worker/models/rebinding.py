"""Layers that run mlx-lm's own code with some global names bound to other values.

Only the instances of one model change: mlx-lm's classes and modules stay as they are.
"""

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, cast

from mlx import nn


def layers_that_use(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """Find the modules whose own code reads a name, global or of an attribute."""
    for _, module in cast("list[tuple[str, nn.Module]]", model.named_modules()):
        if reads(module, name):
            yield module


def reads(module: nn.Module, name: str) -> bool:
    """Whether a module's own code reads a name, global or of an attribute."""
    return name in _code_of(type(module)).__code__.co_names


def global_of(layer: type[nn.Module], name: str) -> Callable[..., Any]:
    """Return the function that a layer's code finds under a global name."""
    return global_in(_code_of(layer), name)


def global_in(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function that another finds under a global name."""
    return cast("FunctionType", function).__globals__[name]


def derive(layer: type[nn.Module], values: Mapping[str, object]) -> type[nn.Module]:
    """Make a class that differs from a layer's in what its code finds under global names."""
    return type(f"Rebound{layer.__name__}", (layer,), {"__call__": rebind(_code_of(layer), values)})


def rebind(function: Callable[..., object], values: Mapping[str, object]) -> FunctionType:
    """Copy a function that finds other values under global names."""
    source = cast("FunctionType", function)
    copy = FunctionType(
        source.__code__,
        {**source.__globals__, **values},
        source.__name__,
        source.__defaults__,
        source.__closure__,
    )
    copy.__kwdefaults__ = source.__kwdefaults__
    return copy


def _code_of(layer: type[nn.Module]) -> FunctionType:
    call = cast("object", layer.__call__)
    return call if isinstance(call, FunctionType) else _NO_CODE


def _no_code() -> None:
    """Stand for what is not written in Python."""


_NO_CODE = cast("FunctionType", _no_code)
