"""One model's line: order, limits, and sums that return to zero."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bramley.common.ids import RequestId
from bramley.router.admission import Line, QueueFull, retry_after_s


def names(text: str) -> list[RequestId]:
    return [RequestId(letter) for letter in text]


def line_of(text: str, *, queue_max: int = 9, running_max: int = 0) -> Line:
    line = Line(queue_max, running_max)
    for request in names(text):
        line.enter(request)
        line.prepared(request)
    return line


def test_free_places_go_to_the_first_prepared_in_order_of_arrival() -> None:
    line = line_of("", running_max=0)
    for request in names("abc"):
        line.enter(request)
    line.prepared(RequestId("c"))
    line.prepared(RequestId("b"))
    assert line.resize(1) == names("b")
    assert line.leave(RequestId("b")) == names("c")
    assert repr(line) == "<1 running of 1, 1 waiting of 9>"


def test_a_place_goes_to_the_next_when_one_leaves() -> None:
    line = line_of("abc", running_max=1)
    assert line.is_running(RequestId("a"))
    assert line.leave(RequestId("b")) == ()
    assert line.leave(RequestId("a")) == names("c")


def test_position_counts_those_before_it() -> None:
    line = line_of("abcd", running_max=1)
    assert [line.position(request) for request in names("abcd")] == [0, 0, 1, 2]


def test_as_many_enter_as_may_run_and_wait() -> None:
    line = line_of("ab", queue_max=1, running_max=1)
    assert line.enter(RequestId("c")) == QueueFull(depth=1)
    line.leave(RequestId("a"))
    assert line.enter(RequestId("c")) is None
    assert line.position(RequestId("c")) == 0


def test_free_places_count_while_nobody_is_prepared() -> None:
    line = Line(queue_max=1, running_max=2)
    entered = [line.enter(request) for request in names("abcd")]
    assert entered == [None, None, None, QueueFull(depth=3)]


def test_fewer_places_end_nobody() -> None:
    line = line_of("abc", running_max=2)
    assert line.resize(0) == ()
    assert line.running_count == 2
    assert line.leave(RequestId("a")) == ()
    assert line.resize(2) == names("c")


def test_a_full_line_has_room_sooner_the_more_run() -> None:
    assert retry_after_s(8.0, 8) == 1.0
    assert retry_after_s(8.0, 1) == 8.0
    assert retry_after_s(0.0, 8) == 0.5
    assert retry_after_s(900.0, 1) == 30.0


class LineMachine(RuleBasedStateMachine):
    """Any order of changes keeps the line's promises."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line(queue_max=4, running_max=2)
        self.count = 0
        self.here: list[RequestId] = []
        self.prepared_ones: set[RequestId] = set()
        self.running: set[RequestId] = set()

    def granted(self, requests: Sequence[RequestId]) -> None:
        """A grant goes to prepared ones, oldest first, within the limit."""
        waiting = [r for r in self.here if r in self.prepared_ones and r not in self.running]
        assert list(requests) == waiting[: len(requests)]
        self.running.update(requests)
        assert not requests or len(self.running) <= self.line.running_max

    @rule()
    def enter(self) -> None:
        """One more arrives."""
        self.count += 1
        request = RequestId(str(self.count))
        if self.line.enter(request) is None:
            self.here.append(request)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def prepared(self, data: st.DataObject) -> None:
        """One is prepared."""
        request = data.draw(st.sampled_from(self.here))
        self.prepared_ones.add(request)
        self.granted(self.line.prepared(request))

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """One leaves, for any reason."""
        request = data.draw(st.sampled_from(self.here))
        self.here.remove(request)
        self.running.discard(request)
        self.granted(self.line.leave(request))

    @rule(running_max=st.integers(0, 3))
    def resize(self, running_max: int) -> None:
        """The worker comes, goes or changes."""
        self.granted(self.line.resize(running_max))

    @invariant()
    def counts_agree(self) -> None:
        """Nobody is lost, and no place is idle while a prepared one waits."""
        assert self.line.running_count == len(self.running)
        assert self.line.waiting_count == len(self.here) - len(self.running)
        waits = self.prepared_ones & set(self.here) - self.running
        assert not waits or self.line.running_count >= self.line.running_max

    def teardown(self) -> None:
        """Sums return to zero."""
        for request in self.here:
            self.line.leave(request)
        assert (self.line.running_count, self.line.waiting_count) == (0, 0)


LineMachine.TestCase.settings = settings(max_examples=50, deadline=None)
TestLine = LineMachine.TestCase
