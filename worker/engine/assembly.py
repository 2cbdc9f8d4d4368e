"""Puts a model's executor together: states for its layers, cohorts, first use, costs."""

from collections.abc import Callable, Sequence

import mlx.core as mx

from bramley.worker.cache.build import build_states, model_caches
from bramley.worker.cache.opaque import OpaqueState
from bramley.worker.cache.table import RowTable
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.executor import Executor
from bramley.worker.models.contract import Lane, LayerCache, ModelParts

WARM_COLUMNS = 2560  # a long prompt of a conversation, and its answer
# Padding that a forward may read, as a share of the weights that it reads anyway.
WASTE_SHARE = 4
WASTE_COLUMNS_MIN = 4096  # of a model so small that a forward costs its launching
CUDA_WIDTH_STEP = 256  # each new width of attention builds a plan there, for 61 to 97 ms
GPU_GRAPH_STEP = 256
# On the CPU attention pays for padding, and keeping a graph costs several steps.
CPU_GRAPH_STEP = 16
# There, weights beyond so many bytes take longer to read than a graph takes to build.
LAUNCH_BOUND_BYTES = 32 << 20


def make_executor(
    parts: ModelParts,
    lane: Lane = Lane.BATCHED,
    *,
    context_tokens: int = WARM_COLUMNS,
    sum_panel: int = 0,
) -> tuple[Executor, Cohort]:
    """Make a warm executor; must run on the thread that will step it.

    Args:
        parts: of the model.
        lane: how its requests share forwards.
        context_tokens: that a row may reach.
        sum_panel: of the BLAS (models/blas.py).

    Returns:
        The executor, and the cohort that it will hand out first.

    Raises:
        ValueError: a layer needs a kind that is not served.
    """
    if lane is Lane.OWN:
        make_cohort = _opaque(parts.own_caches)
    else:
        make_cohort = cohorts(parts.layers, sum_panel)
    cohort = make_cohort()
    executor = Executor(
        parts.model,
        make_cohort,
        heads=parts.heads,
        keeps_graphs=is_launch_bound(parts),
        lane=lane,
        body=parts.body,
    )
    executor.warm_up(cohort, min(context_tokens, WARM_COLUMNS))
    fixed = cohort.bytes_for(1, 0)
    token_bytes = max((cohort.bytes_for(1, WARM_COLUMNS) - fixed) / WARM_COLUMNS, 1)
    waste = int(parts.weight_bytes / WASTE_SHARE / token_bytes)
    executor.waste_columns = max(waste, WASTE_COLUMNS_MIN)
    return executor, cohort


def cohorts(layers: Sequence[LayerCache], sum_panel: int) -> Callable[[], Cohort]:
    """Return what makes empty cohorts of a model whose rows share forwards.

    Raises:
        ValueError: when it is called: a layer needs a kind that is not served.
    """
    width_step = CUDA_WIDTH_STEP if _on_gpu() and not mx.metal.is_available() else 1
    graph_step = GPU_GRAPH_STEP if _on_gpu() else CPU_GRAPH_STEP

    def make() -> Cohort:
        table = RowTable(width_step, sum_panel, graph_step)
        states = build_states(table, layers)
        caches = model_caches(states, layers)
        return Cohort(table, states, lambda: caches)

    return make


def _opaque(own_caches: Callable[[], Sequence[object]]) -> Callable[[], Cohort]:
    def make() -> Cohort:
        table = RowTable()
        state = OpaqueState(table, own_caches)
        return Cohort(table, [state], lambda: state.caches)

    return make


def is_launch_bound(parts: ModelParts) -> bool:
    """Whether building a graph takes long beside running it, so that graphs are worth keeping."""
    return _on_gpu() or parts.weight_bytes <= LAUNCH_BOUND_BYTES


def _on_gpu() -> bool:
    return mx.default_device().type == mx.DeviceType.gpu
