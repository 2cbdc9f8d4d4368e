"""Makes the state of each of a model's layers, of the kind that the layer needs."""

from collections.abc import Sequence

from bramley.worker.cache.contract import LayerState
from bramley.worker.cache.full import FullState
from bramley.worker.cache.rotating import RotatingState
from bramley.worker.cache.table import RowTable
from bramley.worker.models.contract import LayerCache


def build_states(table: RowTable, layers: Sequence[LayerCache]) -> list[LayerState]:
    """Make one empty state a layer, all of one table.

    Args:
        table: of the cohort.
        layers: what the model's own caches are.

    Returns:
        The states, in the layers' order.

    Raises:
        ValueError: a layer needs a kind that is not served.
    """
    return [_state(table, layer) for layer in layers]


def _state(table: RowTable, layer: LayerCache) -> LayerState:
    if layer.kind == "full":
        return FullState(table, has_grouped_scores=layer.has_grouped_scores)
    if layer.kind == "rotating":
        return RotatingState(table, layer.window, layer.keep)
    raise ValueError(f"state of kind {layer.kind} is not served")
