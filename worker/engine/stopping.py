"""Whether a token ends its request: end of turn, stop id, complete grammar, limit. Pure."""

from dataclasses import dataclass

from bramley.worker.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended; ``stop_id`` is the id that did it, if one did."""

    reason: FinishReason
    stop_id: int | None = None


def finish(request: Request, *, is_complete: bool = False) -> Finish | None:
    """Judge the request by its newest token; an id that ends it beats the limit.

    Args:
        request: with the token in its output.
        is_complete: by its grammar, nothing may follow.

    Returns:
        The end; None if it goes on.
    """
    token = request.output[-1]
    if token in request.stop.stop_ids:
        return Finish("stop_sequence", token)
    if token in request.stop.end_ids:
        return Finish("stop", token)
    if is_complete:
        return Finish("grammar")
    if len(request.output) >= request.stop.max_tokens:
        return Finish("length")
    return None
