"""The serving benchmark as a client of a router: what it records of our own answers."""

import time

from bramley.bench.serve.dialects import Grpc
from bramley.bench.serve.record import Event, Request
from bramley.bench.serve.workload import Asked
from bramley.common.errors import Overloaded
from support.fake_router import MODEL, FakeRouter, Hold, Step, Vanish, answer, serving

ASKED = Asked(
    phase="p",
    attempt=1,
    index=2,
    turn=0,
    messages=({"role": "user", "content": "Hello"},),
    max_tokens=9,
    session="talk",
)


def asked(script: list[Step], *, leave: bool = False) -> tuple[Request, FakeRouter]:
    """Ask a router that plays a script."""

    def go_on(_: Event) -> bool:
        return not leave

    with serving() as (router, target):
        router.script = script
        request = Grpc(target, MODEL, 10.0).ask(ASKED, time.monotonic, go_on)
        if leave:
            assert router.cancelled.wait(10)
        return request, router


def test_counts_are_the_router_s_own() -> None:
    request, router = asked(answer("Hel", "lo"))
    assert (request.text, request.error, request.finish) == ("Hello", None, "stop")
    assert (request.prompt_tokens, request.completion_tokens) == (5, 2)
    assert request.cached_tokens == {"parked": 1, "ram": 2, "ssd": 0}
    assert [event.tokens for event in request.events] == [1, 1]
    assert request.counted_by == "ids"
    assert request.sent_s < request.events[0].at_s <= request.events[1].at_s <= request.ended_s
    sent = router.requests[0]
    assert (sent.chat.messages[0].content, sent.stop.max_tokens) == ("Hello", 9)
    assert (sent.sampling.temperature, sent.session_key) == (0.0, "talk")


def test_tokens_whose_text_is_held_back_count_when_it_comes() -> None:
    request, _ = asked(answer("Hel", "", "", "lo"))
    assert request.text == "Hello"
    assert [event.tokens for event in request.events] == [1, 3]


def test_a_refusal_is_recorded_by_its_reason() -> None:
    request, _ = asked([Overloaded("no room", retry_after_s=1.0)])
    assert request.error is not None
    assert request.error.startswith("RESOURCE_EXHAUSTED ")
    assert "no room" in request.error
    assert request.events == []


def test_an_answer_that_breaks_off_is_kept_as_far_as_it_came() -> None:
    request, _ = asked([*answer("Hel", "lo")[:3], Vanish()])
    assert request.error is not None
    assert request.error.startswith("UNAVAILABLE")
    assert (request.text, request.finish) == ("Hel", None)


def test_who_leaves_cancels_and_says_so() -> None:
    request, _ = asked([*answer("Hel", "lo")[:3], Hold()], leave=True)
    assert (request.text, request.finish, request.error) == ("Hel", "left", None)
    assert [event.tokens for event in request.events] == [1]
