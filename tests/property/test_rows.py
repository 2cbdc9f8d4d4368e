"""Rows of every state kind against plain lists, over any order of what an engine does."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bramley.worker.cache.contract import CannotExport, CannotRollback
from bramley.worker.cache.window import ROLLBACK
from support.rows import KINDS, RECURRENT_KINDS, Rows, same

ROWS_MAX = 5
ROW_TOKENS_MAX = 350  # MKL adds longer sums up in parts, cut by the longest row's width


class RowsMachine(RuleBasedStateMachine):
    """Any order of what changes rows; each append is checked against plain attention."""

    kind = "full"
    width_step = 1

    def __init__(self) -> None:
        super().__init__()
        self.rows = Rows(self.kind, self.width_step)
        self.held: list[list[int]] = []
        self.room: list[int] = []  # tokens that each row can surely go back
        self.made = 0

    def new(self, count: int) -> list[int]:
        self.made += count
        return list(range(self.made - count, self.made))

    def pick(self, data: st.DataObject, name: str) -> int:
        return data.draw(st.integers(0, len(self.held) - 1), name)

    @rule()
    def join(self) -> None:
        if len(self.held) < ROWS_MAX:
            self.rows.join()
            self.held.append([])
            self.room.append(ROLLBACK)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), longest=st.sampled_from([1, 1, 1, 5, 17]))
    def append(self, data: st.DataObject, longest: int) -> None:
        first = self.pick(data, "first")
        count = data.draw(st.integers(1, len(self.held) - first), "count")
        counts = st.lists(st.integers(0, longest), min_size=count, max_size=count)
        junk = data.draw(st.sampled_from([0.0, 1e9]), "junk")
        self.extend(first, data.draw(counts, "counts"), junk)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(20, 120))
    def prefill(self, data: st.DataObject, count: int) -> None:
        self.extend(self.pick(data, "row"), [count])

    def extend(self, first: int, counts: list[int], junk: float = 0.0) -> None:
        room = [ROW_TOKENS_MAX - len(row) for row in self.held[first:]]
        parts = [self.new(min(pair)) for pair in zip(counts, room, strict=False)]
        outputs = self.rows.append(parts, first=first, junk=junk)
        for index, part in enumerate(parts):
            row = first + index
            self.held[row] = self.held[row] + part
            self.room[row] = min(ROLLBACK, self.room[row] + len(part))
            self.rows.gives(outputs, index, self.held[row])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        first = self.pick(data, "first")
        count = data.draw(st.sampled_from([1, 16, 100]), "count")
        self.rows.append([range(count)] * (len(self.held) - first), first=first, commit=False)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        row = self.pick(data, "row")
        self.rows.leave(row)
        self.held[row], self.room[row] = self.held[-1], self.room[-1]
        self.held.pop()
        self.room.pop()

    @precondition(lambda self: len(self.held) >= 2)
    @rule(data=st.data(), verb=st.sampled_from(["move", "copy", "swap"]))
    def rearrange(self, data: st.DataObject, verb: str) -> None:
        source, target = self.pick(data, "source"), self.pick(data, "target")
        if source == target:
            return
        getattr(self.rows, verb)(source, target)
        for books, empty in ((self.held, list[int]()), (self.room, ROLLBACK)):
            left = {"move": empty, "copy": books[source], "swap": books[target]}[verb]
            books[source], books[target] = left, books[source]  # type: ignore[call-overload]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(0, 40))
    def rollback(self, data: st.DataObject, count: int) -> None:
        row = self.pick(data, "row")
        count = min(count, len(self.held[row]))
        try:
            self.rows.rollback(row, count)
        except CannotRollback:
            if self.kind in RECURRENT_KINDS:
                assert count > 0
            else:
                assert self.room[row] < count < len(self.held[row])
            return
        self.held[row] = self.held[row][: len(self.held[row]) - count]
        self.room[row] = max(0, self.room[row] - count) if self.held[row] else ROLLBACK

    @rule(rows=st.integers(0, 7), columns=st.integers(1, 700))
    def grow(self, rows: int, columns: int) -> None:
        self.rows.reserve(max(rows, len(self.held)), columns)

    @rule(rows=st.integers(0, 7), columns=st.integers(0, 300))
    def fit(self, rows: int, columns: int) -> None:
        self.rows.fit(rows, columns)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), back=st.integers(0, 40))
    def restore_one_row_from_another(self, data: st.DataObject, back: int) -> None:
        source, target = self.pick(data, "source"), self.pick(data, "target")
        stop = max(0, len(self.held[source]) - back)
        if source == target or stop == 0:
            return
        try:
            exported = self.rows.export(source, stop)
        except CannotExport:
            assert self.room[source] < back or (back and self.kind in RECURRENT_KINDS)
            return
        self.rows.import_(target, stop, exported)
        self.held[target] = self.held[source][:stop]
        self.room[target] = 0

    @invariant()
    def every_row_holds_what_the_list_holds(self) -> None:
        assert self.rows.lengths == list(map(len, self.held))
        for row, tokens in enumerate(self.held):
            self.rows.holds(row, tokens)

    def teardown(self) -> None:
        if not self.held:
            return
        together = self.rows.append([[-100 - row] for row in range(len(self.held))])
        for row, tokens in enumerate(self.held):
            alone = Rows.of(self.kind, [tokens])
            same([[layer[row]] for layer in together], alone.append([[-100 - row]]))


@pytest.mark.parametrize("width_step", [1, 16])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rows_hold_and_give_what_was_appended(kind: str, width_step: int) -> None:
    body = {"kind": kind, "width_step": width_step}
    machine = type(f"{kind}Machine", (RowsMachine,), body)
    machine.TestCase.settings = settings(
        max_examples=12 if kind == "mixture" else 20,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    machine.TestCase("runTest").runTest()
