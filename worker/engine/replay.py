"""The decoding forward: its graph is built anew each time, or built once for a shape and kept.

Building a graph in Python costs the host as much as a small model costs the device. Where every
layer's state allows it, ``mx.compile`` keeps the graph of a shape (rows, columns read, room of
the arrays), fuses what it can, and the lengths of the rows go in as one array.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable

import mlx.core as mx

from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.faults import MODEL_FAULTS, is_lack_of_memory
from bramley.worker.models.contract import LanguageModel

log = logging.getLogger(__name__)

_KEPT = 32  # graphs
_SEEN_MAX = 256  # shapes that are counted
_REPEATS = 4  # of a shape before its graph is kept: keeping one costs as much as building a few
# Rows of the checked forwards: one, all there are, some: each writes in another way, and where
# fused kernels are compiled, that takes seconds, which no request should wait for.
_CHECKED = (1, 1, 3, 2)
CHECKED_ROWS = max(_CHECKED)

Shape = tuple[object, ...]
Arrays = list[list[mx.array]]  # of each layer
Graph = Callable[[mx.array, mx.array, Arrays], tuple[mx.array, Arrays]]


class Replay:
    """Runs forwards of one token a row, of any cohort of one model."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._keeps_graphs = False
        self._graphs: OrderedDict[Shape, Graph] = OrderedDict()
        self._seen: Counter[Shape] = Counter()
        self._building: Cohort  # while a graph is called, which may have to be made

    def check(self, cohort: Cohort) -> None:
        """Keep graphs from now on if they give, bit for bit, what the model gives.

        Args:
            cohort: of one row that has tokens; nobody needs them afterwards.
        """
        if not all(layer.can_keep_graph for layer in cohort.layers):
            return
        try:
            self._keeps_graphs = self._is_same(cohort)
        except MODEL_FAULTS as error:
            log.info("the model's graph cannot be kept: %s", error)
            for layer in cohort.layers:  # a graph that failed left arrays that fail as well
                layer.reset()
        else:
            if not self._keeps_graphs:
                log.info("the model's graph is not kept: its numbers would differ")
        while len(cohort.slots) > 1:
            cohort.leave(cohort.slots[-1])

    def _is_same(self, cohort: Cohort) -> bool:
        same, graph = True, mx.compile(self._build)
        for token, rows in enumerate(_CHECKED, 1):
            while len(cohort.slots) < rows:
                cohort.join(len(cohort.slots))
            if rows > 1:  # the second one is at a length for which the graph was not made
                graph = mx.compile(self._build)
            tokens = mx.full((rows, 1), token, mx.uint32)
            _open(cohort, rows, keeps_graph=True)
            # First, or the model would have written already what the graph fails to write.
            kept = self._replayed(graph, cohort, tokens)
            cohort.evaluate(kept)
            _open(cohort, rows, keeps_graph=True)  # the same step again, from the same state
            plain = self._model(tokens, cache=cohort.caches)[:, -1, :]
            cohort.evaluate(plain)
            cohort.table.commit()
            same = same and bool(mx.array_equal(plain, kept, equal_nan=True).item())
        return same

    def __call__(self, cohort: Cohort, rows: int, tokens: mx.array) -> mx.array:
        """Run a cohort's first rows; the table's forward stays open.

        Args:
            cohort: whose arrays have room, or will be given it.
            rows: how many, from the first.
            tokens: the newest of each, (B, 1).

        Returns:
            Logits, (B, V), not evaluated.
        """
        # A row without tokens may be a case of its own in the model's code.
        keeps_graph = self._keeps_graphs and min(cohort.table.lengths[:rows]) > 0
        _open(cohort, rows, keeps_graph=keeps_graph)
        shape = _shape(cohort) if keeps_graph else ()
        if shape in self._graphs:
            self._graphs.move_to_end(shape)
            return self._replayed(self._graphs[shape], cohort, tokens)
        if shape and self._is_worth_keeping(shape):
            logits = self._first(shape, cohort, tokens)
            if logits is not None:
                return logits
        return self._model(tokens, cache=cohort.caches)[:, -1, :]

    def _is_worth_keeping(self, shape: Shape) -> bool:
        if len(self._seen) > _SEEN_MAX:
            self._seen.clear()
        self._seen[shape] += 1
        return self._seen[shape] > _REPEATS

    def _first(self, shape: Shape, cohort: Cohort, tokens: mx.array) -> mx.array | None:
        """Make a graph and run it, all of it: its kernels may be compiled only now.

        Returns:
            Logits; None where it cannot be made, and the step is still to be taken.

        Raises:
            RuntimeError: it was made and did not run, and the cohort's state is unknown.
            MODEL_FAULTS: there was no memory to make it.
        """
        graph = mx.compile(self._build)
        try:
            logits = self._replayed(graph, cohort, tokens)
        except MODEL_FAULTS as error:
            if is_lack_of_memory(error):
                raise
            self._stop()
            return None
        try:
            cohort.evaluate(logits)
        except RuntimeError as error:
            if not is_lack_of_memory(error):
                self._stop()
            raise
        del self._seen[shape]
        if len(self._graphs) == _KEPT:
            self._graphs.popitem(last=False)
        self._graphs[shape] = graph
        return logits

    def _stop(self) -> None:
        log.warning("the model's graphs are kept no longer", exc_info=True)
        self._keeps_graphs = False
        self._graphs.clear()
        self._seen.clear()

    def _replayed(self, graph: Graph, cohort: Cohort, tokens: mx.array) -> mx.array:
        self._building = cohort
        try:
            # No name holds the arrays when they are evaluated, or they would be copied.
            logits, arrays = graph(tokens, cohort.table.firsts, _arrays(cohort))
        finally:
            del self._building
        _adopt(cohort, arrays)
        return logits

    def _build(self, tokens: mx.array, firsts: mx.array, arrays: Arrays) -> tuple[mx.array, Arrays]:
        # Called by mx.compile, with stand-ins, once for each graph.
        cohort = self._building
        table, real = cohort.table, (cohort.table.firsts, _arrays(cohort))
        table.replace_firsts(firsts)
        _adopt(cohort, arrays)
        try:
            logits = self._model(tokens, cache=cohort.caches)[:, -1, :]
            return logits, _arrays(cohort)
        finally:
            table.replace_firsts(real[0])
            _adopt(cohort, real[1])


def _shape(cohort: Cohort) -> Shape:
    # All layers of a kind get their room together.
    kinds = {layer.kind: layer for layer in cohort.layers}
    room = tuple(array.shape for layer in kinds.values() for array in layer.arrays())
    return cohort.table.count, cohort.table.width, room


def _open(cohort: Cohort, rows: int, *, keeps_graph: bool) -> None:
    cohort.table.begin(range(rows), 1, keeps_graph=keeps_graph)
    cohort.prepare()


def _arrays(cohort: Cohort) -> Arrays:
    return [layer.arrays() for layer in cohort.layers]


def _adopt(cohort: Cohort, arrays: Arrays) -> None:
    for layer, held in zip(cohort.layers, arrays, strict=True):
        layer.adopt(held)
