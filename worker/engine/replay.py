"""The decoding forward: its graph is built anew each time, or built once for a shape and kept.

Building a graph in Python costs the host as much as a small model costs the device. Where every
layer's state allows it, ``mx.compile`` keeps the graph of a shape (rows, columns read, room of
the arrays), fuses what it can, and the lengths of the rows go in as one array.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import mlx.core as mx

from bramley.worker.engine.cohort import Cohort
from bramley.worker.models.contract import LanguageModel

log = logging.getLogger(__name__)

_KEPT = 32  # graphs
_SEEN_MAX = 256  # shapes that are counted
_REPEATS = 4  # of a shape before its graph is kept: keeping one costs as much as building a few
# What a model file's code may raise when it is run on stand-ins of arrays.
_FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

Shape = tuple[object, ...]
Graph = Callable[..., tuple[mx.array, list[mx.array]]]


class Replay:
    """Runs forwards of one token a row, of any cohort of one model."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._keeps_graphs = False
        self._graphs: OrderedDict[Shape, Graph] = OrderedDict()
        self._seen: Counter[Shape] = Counter()
        self._building: Cohort  # while a graph is called, which may have to be made

    def check(self, cohort: Cohort) -> None:
        """Keep graphs from now on if one gives, bit for bit, what the model gives.

        Args:
            cohort: of one row that has tokens; it is left as it was.
        """
        if not all(layer.can_keep_graph for layer in cohort.layers):
            return
        tokens = mx.zeros((1, 1), mx.int32)
        _open(cohort, 1, keeps_graph=True)
        try:
            plain = self._model(tokens, cache=cohort.layers)[:, -1, :]
            cohort.evaluate(plain)
            kept = self._replayed(mx.compile(self._build), cohort, tokens)
            cohort.evaluate(kept)
        except _FAULTS as error:
            log.info("the model's graph cannot be kept: %s", error)
            return
        self._keeps_graphs = bool(mx.array_equal(plain, kept, equal_nan=True).item())
        if not self._keeps_graphs:
            log.info("the model's graph is not kept: its numbers would differ")

    def __call__(self, cohort: Cohort, rows: int, tokens: mx.array) -> mx.array:
        """Run a cohort's first rows; the table's forward stays open.

        Args:
            cohort: whose arrays have room, or will be given it.
            rows: how many, from the first.
            tokens: the newest of each, (B, 1).

        Returns:
            Logits, (B, V), not evaluated.
        """
        _open(cohort, rows, keeps_graph=self._keeps_graphs)
        graph = self._kept(cohort) if self._keeps_graphs else None
        if graph is not None:
            return self._replayed(graph, cohort, tokens)
        return self._model(tokens, cache=cohort.layers)[:, -1, :]

    def _kept(self, cohort: Cohort) -> Graph | None:
        room = tuple(array.shape for array in _arrays(cohort))
        shape: Shape = (cohort.table.count, cohort.table.width, room)
        if shape in self._graphs:
            self._graphs.move_to_end(shape)
            return self._graphs[shape]
        if len(self._seen) > _SEEN_MAX:
            self._seen.clear()
        self._seen[shape] += 1
        if self._seen[shape] <= _REPEATS:
            return None
        del self._seen[shape]
        if len(self._graphs) == _KEPT:
            self._graphs.popitem(last=False)
        self._graphs[shape] = mx.compile(self._build)
        return self._graphs[shape]

    def _replayed(self, graph: Graph, cohort: Cohort, tokens: mx.array) -> mx.array:
        self._building = cohort
        try:
            # No name holds the arrays when they are evaluated, or they would be copied.
            logits, arrays = graph(tokens, cohort.table.firsts, _arrays(cohort))
        finally:
            del self._building
        _adopt(cohort, arrays)
        return logits

    def _build(
        self, tokens: mx.array, firsts: mx.array, arrays: list[mx.array]
    ) -> tuple[mx.array, list[mx.array]]:
        # Called by mx.compile, with stand-ins, once for each graph.
        cohort = self._building
        table, real = cohort.table, (cohort.table.firsts, _arrays(cohort))
        table.replace_firsts(firsts)
        _adopt(cohort, arrays)
        try:
            logits = self._model(tokens, cache=cohort.layers)[:, -1, :]
            return logits, _arrays(cohort)
        finally:
            table.replace_firsts(real[0])
            _adopt(cohort, real[1])


def _open(cohort: Cohort, rows: int, *, keeps_graph: bool) -> None:
    cohort.table.begin(range(rows), 1, keeps_graph=keeps_graph)
    cohort.prepare()


def _arrays(cohort: Cohort) -> list[mx.array]:
    return [array for layer in cohort.layers for array in layer.arrays()]


def _adopt(cohort: Cohort, arrays: Sequence[mx.array]) -> None:
    at = 0
    for layer in cohort.layers:
        count = len(layer.arrays())
        layer.adopt(arrays[at : at + count])
        at += count
