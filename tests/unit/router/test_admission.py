"""One model's line: order, classes, limits, deadlines, and sums that return to zero.

Time is a number that the tests choose.
"""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bramley.common.ids import RequestId
from bramley.router.admission import Ask, Changes, Line, QueueFull, TooLate
from bramley.router.classes import (
    BulkRule,
    Classes,
    ClassRule,
    DefaultRule,
    InteractiveRule,
    Priority,
    SystemRule,
)

BULK, DEFAULT, INTERACTIVE, SYSTEM = Priority


def flat(**fields: Any) -> Classes:
    """Rules without floors, all with these fields."""
    made: dict[str, Any] = {"floor": 0, **fields}
    return Classes(
        system=SystemRule(**made),
        interactive=InteractiveRule(**made),
        default=DefaultRule(**made),
        bulk=BulkRule(**made),
    )


def names(text: str) -> list[RequestId]:
    return [RequestId(letter) for letter in text]


def ready(line: Line, name: str, priority: Priority = DEFAULT, **fields: Any) -> Changes:
    """Have one enter and compete."""
    entered_s = fields.pop("entered_s", 0.0)
    ask = Ask(id=RequestId(name), priority=priority, entered_s=entered_s, **fields)
    assert line.enter(ask) is None
    changes = line.prepared(ask.id, 1.0, 0.0, entered_s)
    assert isinstance(changes, Changes)
    return changes


def line_of(text: str, *, places: int = 0, **fields: Any) -> Line:
    line = Line(flat(**fields), places)
    for name in text:
        ready(line, name)
    return line


def enter(line: Line, name: str, priority: Priority = DEFAULT, **fields: Any) -> Any:
    return line.enter(Ask(id=RequestId(name), priority=priority, **fields))


def order(line: Line, now_s: float = 0.0) -> str:
    """Who gets a place, one after the other, when each leaves at once."""
    took = ""
    granted = list(line.resize(1, now_s).granted)
    while granted:
        (request,) = granted
        took += request[0]
        granted = list(line.leave(request, now_s).granted)
    return took


def test_free_places_go_to_the_first_prepared_in_order_of_preparation() -> None:
    line = Line(flat())
    for name in "abc":
        enter(line, name)
    line.prepared(RequestId("c"), 1.0, 0.0, 0.0)
    line.prepared(RequestId("b"), 1.0, 0.0, 0.0)
    assert line.resize(1, 0.0).granted == names("c")
    assert line.leave(RequestId("c"), 0.0).granted == names("b")
    assert repr(line) == "<1 running of 1, 1 waiting>"


def test_a_place_goes_to_the_next_when_one_leaves() -> None:
    line = line_of("abc", places=1)
    assert line.is_running(RequestId("a"))
    assert line.leave(RequestId("b"), 0.0) == Changes([], [])
    assert line.leave(RequestId("a"), 0.0).granted == names("c")


def test_position_counts_those_before_it() -> None:
    line = line_of("abcd", places=1)
    assert [line.position(request) for request in names("abcd")] == [0, 0, 1, 2]
    ready(line, "u", INTERACTIVE, entered_s=1.0)
    assert line.position(RequestId("u")) == 0
    assert line.position(RequestId("b")) == 1


def test_as_many_enter_as_may_run_and_wait() -> None:
    line = line_of("ab", queue_max=1, places=1)
    assert enter(line, "c") == QueueFull(depth=1, retry_after_s=0.5)
    line.leave(RequestId("a"), 0.0)
    assert enter(line, "c") is None
    assert line.position(RequestId("c")) == 0


def test_free_places_count_while_nobody_is_prepared() -> None:
    line = Line(flat(queue_max=1), places=2)
    entered = [enter(line, name) for name in "abcd"]
    assert entered[:3] == [None, None, None]
    assert entered[3] == QueueFull(depth=3, retry_after_s=0.5)


def test_a_class_that_is_full_leaves_room_in_the_others() -> None:
    line = line_of("ab", queue_max=2)
    assert isinstance(enter(line, "c"), QueueFull)
    assert enter(line, "d", INTERACTIVE) is None
    assert (line.waiting_of(DEFAULT), line.waiting_of(INTERACTIVE)) == (2, 1)


def test_waiting_requests_are_bounded_in_bytes_as_well() -> None:
    line = Line(flat(queue_bytes=100))
    assert enter(line, "a", nbytes=60) is None
    assert isinstance(enter(line, "b", nbytes=60), QueueFull)
    line.leave(RequestId("a"), 0.0)
    assert enter(line, "b", nbytes=60) is None


def test_fewer_places_end_nobody() -> None:
    line = line_of("abc", places=2)
    assert line.resize(0, 0.0).granted == []
    assert line.running_count == 2
    assert line.leave(RequestId("a"), 0.0).granted == []
    assert line.resize(2, 0.0).granted == names("c")


def test_a_full_line_has_room_sooner_the_more_run() -> None:
    line = line_of("ab", places=1)
    line.begun(RequestId("a"))
    line.leave(RequestId("a"), 8.0)
    assert line.retry_after_s() == 8.0
    line.resize(8, 0.0)
    assert line.retry_after_s() == 1.0


def test_a_request_that_gave_no_token_says_nothing_of_how_long_one_runs() -> None:
    line = line_of("ab", places=1)
    line.leave(RequestId("a"), 800.0)
    assert line.retry_after_s() == 0.5


def test_the_more_urgent_class_is_first_and_deadlines_order_each() -> None:
    line = Line(flat())
    ready(line, "b", BULK)
    ready(line, "d")
    ready(line, "e", deadline_s=9.0)
    ready(line, "f", deadline_s=5.0)
    ready(line, "s", SYSTEM)
    ready(line, "i", INTERACTIVE)
    assert order(line) == "sifedb"


def test_keys_of_a_class_take_turns() -> None:
    line = Line(flat())
    for name in ("a1", "a2", "a3", "a4"):
        ready(line, name, key="a")
    ready(line, "b1", key="b")
    ready(line, "c1", key="c")
    assert order(line) == "abcaaa"


def test_a_flood_of_urgent_requests_starves_nobody() -> None:
    line = Line(flat(promote_after_s=10.0))
    ready(line, "b", BULK)
    ready(line, "d", entered_s=1.0)
    for number in range(20):
        ready(line, f"i{number}", INTERACTIVE, entered_s=2.0)
    assert order(line, now_s=9.0)[:9] == "i" * 9
    line = Line(flat(promote_after_s=10.0))
    ready(line, "b", BULK)
    ready(line, "d", entered_s=1.0)
    for number in range(20):
        ready(line, f"i{number}", INTERACTIVE, entered_s=15.0)
    assert order(line, now_s=20.0)[:9] == "iiibiiidi"


def test_those_that_waited_too_long_take_no_more_than_every_fourth_place() -> None:
    line = Line(flat(promote_after_s=10.0))
    for number in range(50):
        ready(line, f"b{number}", BULK)
        ready(line, f"i{number}", INTERACTIVE, entered_s=99.0)
    assert Counter(order(line, now_s=100.0)[:40]) == {"i": 30, "b": 10}


def test_a_floor_is_left_to_the_class_by_lower_ones() -> None:
    rules = Classes(default=DefaultRule(floor=0), interactive=InteractiveRule(floor=2))
    line = Line(rules, places=4)
    granted = [*ready(line, "a").granted, *ready(line, "b").granted, *ready(line, "c").granted]
    assert granted == names("ab")
    assert ready(line, "i", INTERACTIVE).granted == names("i")
    assert ready(line, "j", INTERACTIVE).granted == names("j")
    assert line.leave(RequestId("i"), 0.0).granted == []


def test_a_floor_never_takes_the_last_place() -> None:
    for places in (1, 2, 3):
        line = Line(Classes(interactive=InteractiveRule(floor=9)), places)
        assert ready(line, "b", BULK).granted == names("b")
        assert ready(line, "c", BULK).granted == []


def test_somebody_who_waits_takes_the_place_of_a_bulk_request_without_a_token() -> None:
    line = Line(flat(), places=2)
    ready(line, "a", BULK)
    ready(line, "b", BULK)
    line.begun(RequestId("b"))
    assert ready(line, "d") == Changes([], [])
    assert ready(line, "i", INTERACTIVE) == Changes(names("i"), names("a"))
    assert not line.is_running(RequestId("a"))
    assert ready(line, "j", INTERACTIVE) == Changes([], [])  # b has its first token
    assert line.leave(RequestId("i"), 0.0).granted == names("j")
    assert line.leave(RequestId("j"), 0.0).granted == names("d")
    assert line.leave(RequestId("d"), 0.0).granted == names("a")


def test_a_request_is_put_back_twice_at_most() -> None:
    line = Line(flat(), places=1)
    ready(line, "b", BULK)
    for name in "ij":
        assert ready(line, name, INTERACTIVE).preempted == names("b")
        assert line.leave(RequestId(name), 0.0).granted == names("b")
    assert ready(line, "k", INTERACTIVE) == Changes([], [])


def test_a_request_whose_worker_was_lost_waits_and_competes_when_it_is_prepared_again() -> None:
    line = line_of("ab", places=1)
    assert line.give_back(RequestId("a"), 0.0).granted == names("b")
    assert line.waiting_count == 1
    assert line.give_back(RequestId("a"), 0.0) == Changes()
    assert line.leave(RequestId("b"), 0.0).granted == []
    again = line.prepared(RequestId("a"), 1.0, 0.0, 0.0)
    assert isinstance(again, Changes)
    assert again.granted == names("a")


def test_a_request_whose_place_was_taken_as_its_worker_was_lost_competes_once() -> None:
    line = Line(flat(), places=1)
    ready(line, "b", BULK)
    assert ready(line, "i", INTERACTIVE).preempted == names("b")
    assert line.give_back(RequestId("b"), 0.0) == Changes()
    assert line.leave(RequestId("i"), 0.0).granted == []
    again = line.prepared(RequestId("b"), 1.0, 0.0, 0.0)
    assert isinstance(again, Changes)
    assert again.granted == names("b")
    assert line.resize(2, 0.0).granted == []


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    line = line_of("ab", places=1)
    line.begun(RequestId("a"))
    line.leave(RequestId("a"), 10.0)  # ten seconds each; b runs
    ready(line, "c", entered_s=10.0)
    assert enter(line, "d", entered_s=10.0, deadline_s=12.0) == TooLate(10.0, 2.0)
    assert enter(line, "d", entered_s=10.0, deadline_s=21.0) is None  # before c, which has none
    assert line.prepared(RequestId("d"), 1.0, 2.0, 10.0) == TooLate(12.0, 11.0)


def test_the_prompt_s_own_time_counts_against_its_deadline() -> None:
    line = Line(flat(), places=2)
    assert enter(line, "a", deadline_s=3.0) is None
    assert line.prepared(RequestId("a"), 1.0, 4.0, 0.0) == TooLate(4.0, 3.0)
    line.leave(RequestId("a"), 0.0)
    assert enter(line, "b", deadline_s=5.0) is None
    assert isinstance(line.prepared(RequestId("b"), 1.0, 4.0, 0.0), Changes)


def test_a_place_that_a_bulk_request_would_lose_is_as_good_as_free() -> None:
    line = line_of("a", places=1)
    line.begun(RequestId("a"))
    line.leave(RequestId("a"), 10.0)  # ten seconds each
    ready(line, "b", BULK)
    assert enter(line, "d", deadline_s=5.0) == TooLate(10.0, 5.0)
    assert enter(line, "i", INTERACTIVE, deadline_s=5.0) is None
    line.begun(RequestId("b"))
    assert isinstance(enter(line, "j", INTERACTIVE, deadline_s=5.0), TooLate)


def test_a_rule_that_is_changed_in_one_field_keeps_the_others() -> None:
    assert BulkRule(queue_max=1).queue_timeout_s == 300.0
    assert Classes().of(BULK) == BulkRule()
    assert ClassRule().floor == 0


class LineMachine(RuleBasedStateMachine):
    """Any order of changes keeps the line's promises."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line(Classes(), places=2)
        self.count = 0
        self.now_s = 0.0
        self.here: dict[RequestId, Priority] = {}
        self.prepared_ones: set[RequestId] = set()
        self.running: set[RequestId] = set()
        self.begun_ones: set[RequestId] = set()

    def changed(self, changes: Changes | TooLate) -> None:
        """Nobody is granted twice; only bulk without a token is put back."""
        assert isinstance(changes, Changes)
        for request in changes.preempted:
            assert self.here[request] is BULK
            assert request in self.running - self.begun_ones
            self.running.discard(request)
        for request in changes.granted:
            assert request in self.prepared_ones - self.running
            self.running.add(request)
        assert not changes.granted or len(self.running) <= self.line.places

    @rule(priority=st.sampled_from(Priority), key=st.sampled_from("xyz"))
    def enter(self, priority: Priority, key: str) -> None:
        """One more arrives."""
        self.count += 1
        ask = Ask(
            id=RequestId(str(self.count)),
            priority=priority,
            key=key,
            nbytes=self.count,
            entered_s=self.now_s,
        )
        if self.line.enter(ask) is None:
            self.here[ask.id] = priority

    @rule(passed_s=st.sampled_from([0.1, 4.0, 200.0]))
    def wait(self, passed_s: float) -> None:
        """Time passes."""
        self.now_s += passed_s

    @precondition(lambda self: set(self.here) - self.prepared_ones)
    @rule(data=st.data())
    def prepared(self, data: st.DataObject) -> None:
        """One is prepared."""
        request = data.draw(st.sampled_from(sorted(set(self.here) - self.prepared_ones)))
        self.prepared_ones.add(request)
        self.changed(self.line.prepared(request, 3.0, 0.5, self.now_s))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def begun(self, data: st.DataObject) -> None:
        """One has its first token."""
        request = data.draw(st.sampled_from(sorted(self.running)))
        self.begun_ones.add(request)
        self.line.begun(request)

    @precondition(lambda self: self.running - self.begun_ones)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """One lost its worker before its first token."""
        request = data.draw(st.sampled_from(sorted(self.running - self.begun_ones)))
        self.running.discard(request)
        self.prepared_ones.discard(request)
        self.changed(self.line.give_back(request, self.now_s))

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """One leaves, for any reason."""
        request = data.draw(st.sampled_from(sorted(self.here)))
        del self.here[request]
        self.running.discard(request)
        self.changed(self.line.leave(request, self.now_s))

    @rule(places=st.integers(0, 3))
    def resize(self, places: int) -> None:
        """Workers come, go or change."""
        self.changed(self.line.resize(places, self.now_s))

    @invariant()
    def counts_agree(self) -> None:
        """Nobody is lost, and with places free at most a floor is left free."""
        assert self.line.running_count == len(self.running)
        assert self.line.waiting_count == len(self.here) - len(self.running)
        waits = self.prepared_ones & set(self.here) - self.running
        floors = sum(self.line.classes.of(priority).floor for priority in Priority)
        assert not waits or self.line.running_count >= self.line.places - floors

    def teardown(self) -> None:
        """Sums return to zero."""
        for request in self.here:
            self.line.leave(request, self.now_s)
        counts = (self.line.running_count, self.line.waiting_count)
        assert counts == (0, 0)
        assert enter(self.line, "last", nbytes=256 << 20) is None  # no bytes are left either


LineMachine.TestCase.settings = settings(max_examples=100, deadline=None)
TestLine = LineMachine.TestCase
