"""Decides who is seated and what each step does. Pure: requests in, a plan out.

Next in the walk: worker/engine/executor.py, which carries the plan out.

Order. Each request has a *due time*: its arrival, plus the estimate of its prefill, plus what its
class concedes to others. The earliest goes first. So short and cached prompts overtake long
ones, urgent classes overtake others, and whoever has waited long enough overtakes both.

Rules:
  1. Rows that are ready decode, all of them, every step.
  2. Prefill is time-shared. Beside rows that decode, a chunk takes SHARED_S at most, or a few
     forwards where one alone takes long; after it decoding is owed as long as it took, or less
     where more prompts wait than rows decode: a step at least. What remains of a prompt that is
     soon done need not wait for what is owed. Alone, a chunk takes ALONE_S at most.
  3. A prompt is prefilled down to its last token, which is the row's first decode step (the
     *tail split*). Prompts of one cohort share a chunk while they have few tokens left together.
  4. A waiting request is seated when it would be prefilled next, or could share the chunk of the
     one that is. A request that follows a leader waits until the leader's prompt is computed.
  5. Without a seat, a request that is due earlier than a bulk request takes the bulk one's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bramley.worker.engine.costs import OWED_MAX_S, Costs
from bramley.worker.engine.plan import Admission, Part
from bramley.worker.request import Phase, Priority, Request

SHARED_S = 0.18
ALONE_S = 1.0
# Where forwards are slow, a chunk of SHARED_S would mostly be the cost of one: it takes so many.
SHARED_FORWARDS = 5
SHARED_MAX_S = 0.3
SOON_S = 0.6  # what remains of a prompt that does not wait for what decoding is owed
# An idle engine waits for others who may come with a request, for a share of its prompt's time.
GATHER_SHARE = 1 / 32
GATHER_MAX_S = 0.02
# Tokens that several prompts may have left together to share a chunk.
SHARE_TOKENS = 2048
PADDING_MAX = 2  # how many times the columns that it needs a prompt may compute
WORKSPACE_BYTES = 1 << 30
SHAPE_TOKENS = 16  # chunks are multiples of it, so that few shapes occur
SCORE_BYTES = 4
LOGITS_TOKENS = 256  # of a chunk whose logits are wanted: each takes a float for every word
# Seconds that a class lets others go first.
CONCEDES_S = {
    Priority.SYSTEM: -10.0,
    Priority.INTERACTIVE: 0.0,
    Priority.DEFAULT: 5.0,
    Priority.BULK: 60.0,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a chunk.

    Attributes:
        chunk_tokens: of one chunk at most.
        heads: query heads of a layer: attention scores of a chunk take memory for each.
        workspace_bytes: of those scores at most.
        shares_chunks: whether several prompts may go into one forward.
    """

    chunk_tokens: int
    heads: int = 1
    workspace_bytes: int = WORKSPACE_BYTES
    shares_chunks: bool = True


def due_s(request: Request, costs: Costs) -> float:
    """When a request is due: the earliest is served first."""
    return request.arrived_s + costs.seconds(left_of(request)) + CONCEDES_S[request.priority]


def left_of(request: Request) -> int:
    """Tokens to compute before its next decode step, those aside that will be restored."""
    restored = request.restore.tokens if request.restore is not None else 0
    return max(request.prompt_left - restored, 0)


def admit(
    seated: Sequence[Request], waiting: Sequence[Request], seats: int, costs: Costs
) -> Admission:
    """Choose whom to seat now.

    Args:
        seated: all that have a seat.
        waiting: in any order.
        seats: that are free, or held by parked rows.
        costs: as measured.

    Returns:
        The next ones in line, or nobody.
    """
    line = sorted(_eligible(waiting), key=lambda request: due_s(request, costs))
    filling = [request for request in seated if request.prompt_left]
    seat: list[str] = []
    for request in line:
        left = left_of(request)
        if filling and left and not _joins(request, filling, costs):
            break
        if len(seat) == seats:
            victim = _victim(seated, request, costs) if not seat else None
            return Admission((victim.slot,), (request.id,)) if victim else Admission((), (*seat,))
        seat.append(request.id)
        if left:
            filling.append(request)
    return Admission((), (*seat,))


def _eligible(waiting: Sequence[Request]) -> Iterator[Request]:
    for request in waiting:
        leader = request.leader
        follows = leader is not None and (
            leader.phase is Phase.WAITING or (leader.phase is Phase.SEATED and leader.prompt_left)
        )
        if not follows:
            yield request


def _joins(request: Request, filling: Sequence[Request], costs: Costs) -> bool:
    """Whether a request would go before the prompts being prefilled, or along with them."""
    if due_s(request, costs) < min(due_s(other, costs) for other in filling):
        return True
    left = left_of(request) + sum(left_of(other) for other in filling)
    return left <= SHARE_TOKENS


def _victim(seated: Sequence[Request], head: Request, costs: Costs) -> Request | None:
    bulk = [one for one in seated if one.priority is Priority.BULK]
    if head.priority is Priority.BULK or not bulk:
        return None
    newest = max(bulk, key=lambda request: request.arrived_s)
    return newest if due_s(head, costs) < due_s(newest, costs) else None


def schedule(
    seated: Sequence[Request], cohorts: Mapping[int, int], costs: Costs, limits: Limits
) -> tuple[Part, ...]:
    """Choose the next step's chunk; every row that is ready decodes in any case.

    Args:
        seated: all that have a seat.
        cohorts: which cohort each slot belongs to.
        costs: as measured.
        limits: of a chunk.

    Returns:
        What to prefill in one forward, all of one cohort; perhaps nothing.
    """
    decode = any(not request.prompt_left for request in seated)
    filling = [request for request in seated if request.prompt_left]
    if not filling:
        return ()
    filling.sort(key=lambda request: due_s(request, costs))
    head = filling[0]
    seconds = chunk_s(costs, decode=decode)
    if decode and costs.owed_s > 0.0:
        remains_s = costs.seconds(head.prompt_left)
        owed_s = costs.owed_s + min(remains_s, seconds) * share_of_decoding(seated)
        if remains_s > SOON_S or owed_s > OWED_MAX_S:
            return ()
    tokens = _chunk_tokens(head, costs, limits, seconds)
    return _shared(filling if limits.shares_chunks else filling[:1], cohorts, tokens)


def chunk_s(costs: Costs, *, decode: bool) -> float:
    """Say how long a chunk may take, beside rows that decode or alone."""
    if not decode:
        return ALONE_S
    return max(SHARED_S, min(SHARED_FORWARDS * costs.forward_s, SHARED_MAX_S))


def gather_s(arrived: Sequence[Request], costs: Costs) -> float:
    """Say how long an idle engine waits for requests that could share the chunk of these.

    Those who come a moment later would wait for the whole chunk, and then be computed beside
    rows that decode.

    Returns:
        Seconds; 0 where nothing is to be computed.
    """
    left = max(map(left_of, arrived), default=0)
    return min(costs.seconds(left) * GATHER_SHARE, GATHER_MAX_S) if left else 0.0


def share_of_decoding(seated: Sequence[Request]) -> float:
    """Say how long rows decode after a chunk, as a share of what it took.

    Where several prompts came at once, the first of them to be done would otherwise hold up the
    others, by steps that take as long for one row as for all.

    Returns:
        From 0 to 1; below 1 where fewer rows decode than prompts are being computed.
    """
    filling = sum(request.prompt_left > 0 for request in seated)
    return min((len(seated) - filling) / max(filling, 1), 1.0)


def _chunk_tokens(head: Request, costs: Costs, limits: Limits, seconds: float) -> int:
    if head.wants_prompt_logprobs:
        limits = replace(limits, chunk_tokens=LOGITS_TOKENS)
    return piece_tokens(head.computed, head.prompt_left, limits, costs, seconds)


def piece_tokens(computed: int, left: int, limits: Limits, costs: Costs, seconds: float) -> int:
    """Say how many tokens may follow a row's ``computed`` ones in one forward.

    Returns:
        A multiple of SHAPE_TOKENS, or all that are ``left`` where the few over it cost less than
        the forward that they would need.
    """
    most = limits.chunk_tokens
    tokens = within(min(costs.tokens(seconds), most), computed, limits)
    tokens = max(tokens // SHAPE_TOKENS * SHAPE_TOKENS, min(SHAPE_TOKENS, most))
    all_fit = left <= min(costs.tokens(seconds + costs.forward_s), most)
    return left if left > tokens and all_fit and within(left, computed, limits) == left else tokens


def within(tokens: int, computed: int, limits: Limits) -> int:
    """Halve a chunk until its attention scores take no more memory than they may."""
    while tokens > SHAPE_TOKENS and scores(tokens, computed, limits.heads) > limits.workspace_bytes:
        tokens //= 2
    return tokens


def scores(tokens: int, computed: int, heads: int) -> int:
    """Tell the bytes of a chunk's attention scores, in a row that has ``computed`` tokens."""
    return heads * tokens * (computed + tokens) * SCORE_BYTES


def _shared(
    filling: Sequence[Request], cohorts: Mapping[int, int], tokens: int
) -> tuple[Part, ...]:
    """Give the chunk to the first prompt, and what it leaves over to others of its cohort."""
    head = filling[0]
    wanted = {one.slot: one.next_stop - one.computed for one in filling}
    chosen = [head.slot]
    columns = min(wanted[head.slot], tokens)
    left = head.prompt_left
    for other in filling[1:]:
        if head.wants_prompt_logprobs or other.wants_prompt_logprobs:
            continue
        if cohorts[other.slot] != cohorts[head.slot]:
            continue
        rows = [*chosen, other.slot]
        wider = max(columns, min(wanted[other.slot], tokens // len(rows)))
        left += other.prompt_left
        # Every row computes as many columns as the widest, and waits for it.
        alike = PADDING_MAX * min(wanted[slot] for slot in rows) >= wider
        if left > SHARE_TOKENS or len(rows) * wider > tokens or not alike:
            break
        chosen, columns = rows, wider
    return tuple(Part(slot, min(wanted[slot], columns)) for slot in chosen)
