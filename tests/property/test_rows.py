"""Rows of every state kind against a plain list, over any order of what an engine does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.rows import HEADS, KINDS, SIZE, Rows, Tokens, tokens

ROWS_MAX = 6


class RowsMachine(RuleBasedStateMachine):
    """Joins, ragged appends, leaves, rollbacks, growth, exports and imports."""

    kind = "full"

    def __init__(self) -> None:
        super().__init__()
        self.rows = Rows(self.kind)
        self.model: list[Tokens] = []
        self.made = 0

    @rule()
    def join(self) -> None:
        if len(self.model) < ROWS_MAX:
            self.rows.join()
            self.model.append(np.zeros((0, HEADS, SIZE), np.float32))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.model) - 1), "first")
        count = data.draw(st.integers(1, len(self.model) - first), "count")
        lengths = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count), "lengths")
        junk = data.draw(st.sampled_from([0.0, 1e9, float("nan")]), "junk")
        content = [tokens(self.made + 10 * i, length) for i, length in enumerate(lengths)]
        self.made += 100
        self.rows.append(content, first=first, junk=junk)
        for i, part in enumerate(content):
            self.model[first + i] = np.concatenate([self.model[first + i], part])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(0, len(self.model) - 1), "row")
        self.rows.leave(row)
        self.model[row] = self.model[-1]
        self.model.pop()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(0, len(self.model) - 1), "row")
        count = data.draw(st.integers(0, min(5, len(self.model[row]))), "count")
        self.rows.rollback(row, count)
        self.model[row] = self.model[row][: len(self.model[row]) - count]

    @rule(columns=st.integers(1, 700))
    def grow(self, columns: int) -> None:
        self.rows.state.reserve(len(self.model), columns)

    @precondition(lambda self: len(self.model) >= 2)
    @rule(data=st.data())
    def restore_one_row_from_another(self, data: st.DataObject) -> None:
        source = data.draw(st.integers(0, len(self.model) - 1), "source")
        target = data.draw(st.integers(0, len(self.model) - 1), "target")
        length = data.draw(st.integers(0, len(self.model[source])), "length")
        if source == target or length == 0:
            return
        part = self.rows.export(source, 0, length)
        self.rows.state.import_row(target, 0, length, part, length)
        self.rows.table.lengths[target] = length
        self.model[target] = self.model[source][:length]

    @invariant()
    def every_row_holds_what_the_list_holds(self) -> None:
        assert self.rows.table.lengths == [len(row) for row in self.model]
        for row, expected in enumerate(self.model):
            np.testing.assert_array_equal(self.rows.read(row), expected)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rows_hold_what_was_appended(kind: str) -> None:
    machine = type(f"{kind}Machine", (RowsMachine,), {"kind": kind})
    machine.TestCase.settings = settings(
        max_examples=25,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    machine.TestCase("runTest").runTest()
