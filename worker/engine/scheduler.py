"""Decides what each step does. Pure: requests in, a plan out.

Next in the walk: worker/engine/executor.py, which carries the plan out.

Rules, in this order:
  1. Rows that are ready decode, all of them, every step.
  2. One prompt at a time is prefilled, oldest first, a chunk a step, down to its last token.
     That one is the row's first decode step (the *tail split*), so a prompt of one token is
     ready at once.
  3. The next in line is seated when a seat is free and no prompt is being prefilled.
"""

from collections.abc import Sequence

from bramley.worker.engine.plan import Chunk, StepPlan
from bramley.worker.request import Request


def schedule(
    seated: Sequence[Request], waiting: Sequence[Request], free: int, chunk_tokens: int
) -> StepPlan:
    """Plan the next step.

    Args:
        seated: in order of arrival.
        waiting: in order of arrival; more than ``free`` of them is of no use.
        free: seats that nobody has.
        chunk_tokens: prompt tokens of one step at most.

    Returns:
        A plan that is empty only if there is nothing to do.
    """
    decode = tuple(request.slot for request in seated if not request.prompt_left)
    filling = [request for request in seated if request.prompt_left]
    if filling:
        first = filling[0]
        chunk = Chunk(first.slot, min(first.prompt_left, chunk_tokens))
        return StepPlan(chunk=chunk, decode=decode)
    # Up to and including the first that needs a prefill; those before it are ready at once.
    admit = 0
    for request in waiting[:free]:
        admit += 1
        if request.prompt_left:
            break
    return StepPlan(admit=admit, decode=decode)
