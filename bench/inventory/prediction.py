"""Predicts what a worker takes: weights, rows' state, a step's workspace, its process. Pure.

Room for state is made as the engine makes it, by its own rules: rows double, columns grow by an
eighth. Rows are taken to start together, and their prompts to go in chunks of full size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bramley.bench.inventory.record import LayerState, StatePart
from bramley.worker.cache.room import grown_room, stepped
from bramley.worker.engine.scheduler import SHARE_TOKENS, Limits, scores, within

BATCH_MAX = 256
# Python, libraries and a tokenizer of 49,152 words; measured on Linux (docs/models.md).
PROCESS_BYTES = 256 << 20
_ENDLESS = 1 << 60
# Arrays that a recurrent state starts a decode step from are kept beside those that it ends with.
_RECURRENT_TIMES = 2
# Of a prompt's token, what is in flight of a forward: so many times each width. Fitted to peaks
# of MLX's CPU backend over eight shapes, within a fifth.
_OF_HIDDEN, _OF_MLP, _OF_QUERIES = 7.2, 2.1, 6.5
_LOGITS_TIMES = 3  # as the sampler has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a prediction needs of a model and of its worker's settings.

    Attributes:
        weights: bytes, loaded.
        layers: what rows keep.
        context_max: tokens of a row at most.
        rows_max: that may run at a time; None for as many as there is room for.
        hidden: width of the residual stream.
        mlp: widest that a token gets in a layer; of experts, all that it goes through.
        queries: width of all query heads.
        number_bytes: of an activation.
        width: columns that a forward reads, of rows that have so many tokens.
        warm_columns: of the rows that a worker has room for when it is ready.
        warm_rows: those that it has run by then.
        limits: of a chunk.
        state_limit: bytes for rows and a chunk's attention; None for no limit.
    """

    weights: int
    layers: Sequence[LayerState]
    context_max: int
    rows_max: int | None = None
    heads: int
    hidden: int
    mlp: int
    queries: int
    vocabulary: int
    number_bytes: int
    width: Callable[[int], int]
    warm_columns: int
    warm_rows: int = 1
    limits: Limits
    state_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of each part.

    Attributes:
        is_capped: whether the settings leave less to rows than they would take.
    """

    weights: int
    parts: Sequence[StatePart]
    workspace: int
    state: int
    is_capped: bool = False
    process: int = field(default=PROCESS_BYTES)

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.state + self.workspace + self.process


def predict(shape: Shape, rows: int, tokens: int) -> Prediction:
    """Predict what so many rows of so many tokens take.

    Args:
        shape: of the model.
        rows: that run together.
        tokens: of each, prompt and answer.

    Returns:
        The most that a worker holds of each part.
    """
    grown = [_room_bytes(shape, layer, rows, tokens) for layer in shape.layers]
    warm = [_room_bytes(shape, layer, 1, 1) for layer in shape.layers]
    parts = [
        StatePart(
            kind=layer.kind,
            layers=layer.layers,
            nbytes=nbytes,
            exact_bytes=rows * layer.row_bytes(tokens),
        )
        for layer, nbytes in zip(shape.layers, max(grown, warm, key=sum), strict=True)
    ]
    wanted, room = sum(part.nbytes for part in parts), _ENDLESS
    if shape.state_limit is not None:
        room = max(shape.state_limit - shape.limits.workspace_bytes, 0)
    # A layer that grows holds what it had beside what it gets.
    growing = max((part.nbytes // part.layers for part in parts), default=0)
    return Prediction(
        weights=shape.weights,
        parts=parts,
        workspace=_workspace(shape, rows, tokens) + min(growing, room),
        state=min(wanted, room),
        is_capped=sum(part.exact_bytes for part in parts) > room,
    )


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Find the largest number up to ``most`` that fits, where all below one do; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _room_bytes(shape: Shape, layer: LayerState, rows: int, tokens: int) -> int:
    if layer.kind == "recurrent":
        return rows * layer.fixed_bytes * _RECURRENT_TIMES
    held_rows, held_columns = _room(shape, layer, rows, tokens)
    return held_rows * held_columns * layer.token_bytes


def _room(shape: Shape, layer: LayerState, rows: int, tokens: int) -> tuple[int, int]:
    most = _ENDLESS if layer.grows_to_tokens is None else layer.grows_to_tokens
    room = 1, stepped(1, most)
    for joined in range(2, shape.warm_rows + 1):
        room = _grown(room, (joined, 1), most)
    room = _grown(room, (1, shape.warm_columns), most)
    for joined in range(2, rows + 1):
        room = _grown(room, (joined, 1), most)
    chunk, columns = shape.limits.chunk_tokens // _sharing(rows, tokens), 0
    while columns < tokens:
        columns = min(columns + max(chunk, 1), tokens)
        room = _grown(room, (rows, min(shape.width(columns), most)), most)
    return room


def _grown(room: tuple[int, int], wanted: tuple[int, int], most: int) -> tuple[int, int]:
    if wanted[0] <= room[0] and wanted[1] <= room[1]:
        return room
    rows, columns = grown_room(room, wanted)
    return rows, stepped(columns, most)


def _sharing(rows: int, tokens: int) -> int:
    """Tell how many rows share a chunk: prompts that are short together do."""
    return max(min(rows, SHARE_TOKENS // tokens), 1)


def _workspace(shape: Shape, rows: int, tokens: int) -> int:
    limits, sharing = shape.limits, _sharing(rows, tokens)
    most, computed = 0, 0  # of each row
    while computed < tokens:
        whole = within(min(limits.chunk_tokens, rows * (tokens - computed)), computed, limits)
        each = min(max(whole // sharing, 1), tokens - computed)
        of_scores = scores(each, computed, shape.heads) * whole // each
        most = max(most, of_scores + _activations(shape, whole))
        computed += each
    return max(most, rows * shape.vocabulary * shape.number_bytes * _LOGITS_TIMES)


def _activations(shape: Shape, tokens: int) -> int:
    widths = _OF_HIDDEN * shape.hidden + _OF_MLP * shape.mlp + _OF_QUERIES * max(shape.queries, 1)
    return int(tokens * widths * shape.number_bytes)
