"""Whether a token ends its request: end of turn, stop id, limit. Pure."""

from dataclasses import dataclass

from bramley.worker.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended; ``stop_id`` is the id that did it, if one did."""

    reason: FinishReason
    stop_id: int | None = None


def finish(request: Request) -> Finish | None:
    """Judge the request by its newest token; an id that ends it beats the limit."""
    token = request.output[-1]
    if token in request.stop.stop_ids:
        return Finish("stop_sequence", token)
    if token in request.stop.end_ids:
        return Finish("stop", token)
    if len(request.output) >= request.stop.max_tokens:
        return Finish("length")
    return None
