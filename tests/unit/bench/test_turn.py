"""Phases at a server that does as it is told: what is asked, and what no sample is made of."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from bramley.bench.cluster import Failed
from bramley.bench.serve.dialects import Clock, GoOn, Noting, to_the_end
from bramley.bench.serve.memory import Used
from bramley.bench.serve.phases import go_through
from bramley.bench.serve.record import Arm, Request
from bramley.bench.serve.turn import Stream, Turn, ended
from bramley.bench.serve.workload import Asked, Sizes, Workload, four_characters_a_token

SIZES = Sizes(ttft_prompt=40, kill_prompt=40, restart_prompt=40)


class Obedient:
    """Answers each request after a second with one text, unless told otherwise.

    Args:
        refusals: requests that are refused after a kill.
        says: the text.
    """

    name = kind = "obedient"
    is_ours = True
    packages: Sequence[str] = ()

    def __init__(self, refusals: int = 0, says: str = "text") -> None:
        self.command: list[str] = []
        self.settings: dict[str, Any] = {}
        self.now_s = 0.0
        self.starts = 0
        self._refusals, self._refusing, self._says = refusals, 0, says
        self._is_killed = threading.Event()

    def now(self) -> float:
        """Its clock, on which an answer takes a second."""
        return self.now_s

    def start(self) -> None:
        """Begin."""
        self.starts += 1

    def restart(self) -> float:
        """Begin again."""
        return 2.0

    def kill(self) -> None:
        """Cut what is under way, and refuse for a while."""
        self._refusing = self._refusals
        self._is_killed.set()

    def revive(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def memory(self, shared: bool) -> Used:
        """Use nothing."""
        return Used()

    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        """Answer."""
        noting = Noting(asked, now, go_on)
        if self._refusing:
            self._refusing -= 1
            return noting.end(error="not now")
        self.now_s += 1.0
        noting.came(self._says, 1)
        if asked.max_tokens == SIZES.kill_answer:
            self._is_killed.wait()
            return noting.end(error="gone")
        noting.request.prompt_tokens, noting.request.completion_tokens = 40, 2
        noting.request.cached_tokens = {"any": 0}
        return noting.end(finish="stop")


def turn_at(server: Obedient) -> Turn:
    arm = Arm(name="obedient", kind="obedient", command=[], versions={})
    workload = Workload(1, SIZES, four_characters_a_token)
    return Turn(server, arm, workload, server.now, 0, lambda _: None)


def rests_on(turn: Turn, metric: str) -> list[Request]:
    """The requests of a metric's samples."""
    found = (sample for sample in turn.arm.samples if sample.metric == metric)
    return [turn.arm.requests[place] for sample in found for place in sample.requests]


def test_how_often_a_killed_server_refuses_moves_nothing_that_is_asked_later() -> None:
    turns = [turn_at(Obedient(refusals)) for refusals in (0, 7)]
    for turn in turns:
        assert go_through(turn, "kill"), turn.arm.failures
    one, other = (rests_on(turn, "kill_ttft")[0] for turn in turns)
    assert (one.index, one.sha256) == (other.index, other.sha256)
    assert [rests_on(turn, "kill_served_again")[0].retries for turn in turns] == [0, 7]


def test_the_first_text_of_all_is_told_without_what_the_benchmark_does_meanwhile() -> None:
    server = Obedient()
    turn = turn_at(server)
    turn.ready_s, server.now_s = 3.0, 50.0
    assert go_through(turn, "warm-up")
    (sample,) = turn.arm.samples
    assert (sample.metric, sample.value) == ("cold_start", 4.0)


def test_a_restart_is_told_beside_the_same_prompt_before_it() -> None:
    turn = turn_at(Obedient())
    assert go_through(turn, "restart")
    cold, warm = rests_on(turn, "restart_cold_ttft"), rests_on(turn, "restart_ttft")
    assert [one.sha256 for one in cold] == [one.sha256 for one in warm]


def test_an_answer_without_text_has_no_first_text_but_may_be_compared() -> None:
    turn = turn_at(Obedient(says=""))
    assert not go_through(turn, "ttft")
    assert turn.arm.samples == []
    assert "no text came" in turn.arm.failures[-1].error
    assert go_through(turn, "parity")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stream_that_broke_is_not_left_out_of_what_they_all_give() -> None:
    def breaks() -> Asked:
        raise SystemExit  # which a thread ends by without a word

    turn = turn_at(Obedient())
    asked = turn.place("aggregate", 1).fixed("Hello", 9)
    streams = [Stream(turn, lambda: asked), Stream(turn, breaks)]
    with pytest.raises(Failed, match="without a record"):
        ended(streams)
