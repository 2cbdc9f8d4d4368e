"""Makes the state of each of a model's layers, of the kind that the layer needs."""

from collections.abc import Iterator, Sequence

from bramley.worker.cache.contract import LayerState
from bramley.worker.cache.full import FullState
from bramley.worker.cache.recurrent import RecurrentState
from bramley.worker.cache.rotating import RotatingState
from bramley.worker.cache.table import RowTable
from bramley.worker.models.contract import LayerCache


def build_states(table: RowTable, layers: Sequence[LayerCache]) -> list[LayerState]:
    """Make empty states, all of one table.

    Args:
        table: of the cohort.
        layers: what the model's own caches are.

    Returns:
        The states, in the layers' order: one a layer, or one a part of a composite layer.

    Raises:
        ValueError: a layer needs a kind that is not served.
    """
    return [_state(table, leaf) for layer in layers for leaf in layer.leaves]


def model_caches(states: Sequence[LayerState], layers: Sequence[LayerCache]) -> list[object]:
    """Arrange a model's states as its file wants them.

    Returns:
        One object a layer; of a layer with several caches, a list of its states.
    """
    rest = iter(states)
    return [_seen(layer, rest) for layer in layers]


def _seen(layer: LayerCache, rest: Iterator[LayerState]) -> object:
    if layer.kind == "composite":
        return [_seen(part, rest) for part in layer.parts]
    state = next(rest)
    return layer.view(state) if layer.view is not None else state


def _state(table: RowTable, layer: LayerCache) -> LayerState:
    match layer.kind:
        case "full" | "latent":
            return FullState(table, kind=layer.kind, has_grouped_scores=layer.has_grouped_scores)
        case "rotating":
            return RotatingState(table, layer.window, layer.keep)
        case "recurrent":
            return RecurrentState(table, layer.arrays)
        case _:
            raise ValueError(f"state of kind {layer.kind} is not served")
