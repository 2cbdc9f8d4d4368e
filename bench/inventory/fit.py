"""Sets what a model would take beside what there is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from bramley.bench.inventory.opened import Built, Opened
from bramley.bench.inventory.prediction import BATCH_MAX, Shape, largest, predict
from bramley.bench.inventory.record import Fit
from bramley.bench.inventory.survey import config_facts, state_facts
from bramley.cachestore.settings import StoreSettings, ram_budget
from bramley.common.machine import budget_bytes, ram_bytes, usable_bytes
from bramley.worker.engine.assembly import WARM_COLUMNS, is_launch_bound
from bramley.worker.engine.cohort import IDLE_BYTES_MAX, Cohort
from bramley.worker.engine.replay import CHECKED_ROWS
from bramley.worker.engine.scheduler import WORKSPACE_BYTES, Limits
from bramley.worker.engine.steps import WORKSPACE_SHARE
from bramley.worker.loading import backend
from bramley.worker.models.errors import ModelError
from bramley.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Budget:
    """What a model may take.

    Attributes:
        total: of models and store together.
        store: of it, for the store's RAM tier.
    """

    total: int
    store: int

    @classmethod
    def usual(cls) -> "Budget":
        """What a cluster has on this machine whose settings say nothing of it."""
        return cls(budget_bytes(), ram_budget(StoreSettings(), ram_bytes()))

    @property
    def most(self) -> int:
        """What one model may take while no other is loaded, as the router's ledger has it."""
        return max(self.total - self.store, 0)


def fit(
    opened: Opened, settings: WorkerSettings, budget: Budget, context: int | None, batch: int | None
) -> Fit:
    """Predict what a model takes, and say whether it fits.

    Args:
        opened: the model.
        settings: of its workers.
        budget: that it has.
        context: tokens of each row; None for all that a row may have.
        batch: rows; None for as many as the settings let run.

    Returns:
        The prediction, beside the budget.

    Raises:
        ModelError: its layers' state cannot be known before it runs, or it is asked for more
            tokens than the model was made for.
    """
    built = opened.built
    if built is None or built.cohort is None:
        problem = opened.problem if built is None else built.problem
        raise ModelError(f"{opened.path}: {problem}")
    shape = shape_of(built, built.cohort, settings, opened.config)
    context = shape.context_max if context is None else context
    if context > shape.context_max:
        raise ModelError(f"{opened.path}: rows have {shape.context_max} tokens at most")
    rows_max = min(shape.rows_max or BATCH_MAX, BATCH_MAX)
    batch = min(settings.max_rows, rows_max) if batch is None else batch
    if batch > rows_max:
        raise ModelError(f"{opened.path}: {rows_max} requests run at a time at most")

    def fits(rows: int, tokens: int) -> bool:
        predicted = predict(shape, rows, tokens)
        return not predicted.is_capped and predicted.total <= budget.most

    found = predict(shape, batch, context)
    return Fit(
        path=str(opened.path),
        backend=backend(),
        dtype=built.model.dtype,
        lane=built.lane.value if built.lane else None,
        context_tokens=context,
        batch=batch,
        files_bytes=sum(opened.stored.files.values()),
        weights_bytes=found.weights,
        state=list(found.parts),
        state_bytes=found.state,
        workspace_bytes=found.workspace,
        process_bytes=found.process,
        total_bytes=found.total,
        budget_bytes=budget.most,
        store_bytes=budget.store,
        machine_bytes=usable_bytes(),
        fits=fits(batch, context),
        largest_context=largest(lambda tokens: fits(batch, tokens), shape.context_max),
        largest_batch=largest(lambda rows: fits(rows, context), rows_max),
        notes=_notes(built, shape, is_capped=found.is_capped),
    )


def shape_of(
    built: Built, cohort: Cohort, settings: WorkerSettings, config: Mapping[str, Any]
) -> Shape:
    """Take what a prediction needs of a model and of its worker's settings."""
    told, layers = config_facts(config), state_facts(built.model, cohort).layers
    heads = built.model.heads
    beside = settings.beside(built.model.nbytes)
    workspace = WORKSPACE_BYTES
    if beside is not None:
        workspace = min(beside // WORKSPACE_SHARE, WORKSPACE_BYTES)
    context_max = min(
        built.model.context_tokens, settings.context_tokens or built.model.context_tokens
    )
    token_bytes = sum(each.token_bytes for each in layers)
    return Shape(
        weights=built.model.nbytes,
        layers=layers,
        context_max=context_max,
        rows_max=built.lane.rows_max if built.lane else None,
        heads=heads,
        hidden=told.hidden or 0,
        mlp=told.mlp or 0,
        queries=heads * (told.head_size or 0),
        vocabulary=built.model.vocabulary,
        number_bytes=4 if built.model.dtype == "float32" else 2,
        width=cohort.table.stepped,
        warm_columns=min(WARM_COLUMNS, context_max, IDLE_BYTES_MAX // max(token_bytes, 1)),
        warm_rows=_warm_rows(built, cohort),
        limits=Limits(settings.prefill_chunk_tokens, heads, workspace),
        state_limit=beside,
    )


def _warm_rows(built: Built, cohort: Cohort) -> int:
    """How many rows a worker runs before it is ready."""
    keeps = is_launch_bound(built.parts)
    return CHECKED_ROWS if keeps and all(one.can_keep_graph for one in cohort.layers) else 1


def _notes(built: Built, shape: Shape, *, is_capped: bool) -> list[str]:
    notes: list[str] = []
    if built.lane is None:
        notes.append("no worker has found its lane yet: it may run one request at a time")
    elif built.lane.rows_max == 1:
        notes.append(f"one request at a time: {built.lane.reason}")
    if is_capped:
        notes.append("the settings leave less to rows than these would take: some would wait")
    if mx.default_device().type == mx.DeviceType.gpu:
        notes.append("where attention is fused, the workspace is smaller")
    if shape.state_limit is None:
        notes.append("rows that grow token by token take up to an eighth more")
    return notes
