"""Settings of a model's life: when it is loaded, when it may be unloaded, what it takes."""

from typing import Annotated, Literal

import msgspec

Bytes = Annotated[int, msgspec.Meta(ge=0)]
Load = Literal["start", "demand", "manual"]


class ModelPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a model's workers run.

    Attributes:
        load: "start" loads it with the router and keeps it wanted, "demand" with its first
            request, "manual" by LoadModel alone.
        pinned: never unloaded to make room, nor for being idle.
        idle_unload_s: without a request for as long it is unloaded; 0 never.
        memory_bytes: what one of its workers takes in all; 0 goes by its files, then by what was
            measured.
        weights_bytes: of its files, as the supervisor counted them.
        state_bytes: that one of its workers may use for rows; 0 where no limit is set.
    """

    load: Load = "start"
    pinned: bool = False
    idle_unload_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    memory_bytes: Bytes = 0
    weights_bytes: Bytes = 0
    state_bytes: Bytes = 0
