"""What servers are asked: the same bytes for each, and never what one was asked before."""

import hashlib
from collections.abc import Callable, Iterator

import pytest

from bramley.bench.serve.workload import (
    FULL,
    LANES_MAX,
    OTHER_TURN,
    PROBES,
    QUICK,
    Asked,
    Place,
    Sizes,
    Workload,
    four_characters_a_token,
    nonce,
)

SIZES = (FULL, QUICK)


def workload(seed: int = 1, sizes: Sizes = FULL) -> Workload:
    return Workload(seed, sizes, four_characters_a_token)


def everything(made: Workload) -> Iterator[Asked]:
    """One request of every kind, in every attempt and turn."""
    for turn in (0, 1):
        for attempt in (1, 2):
            place = made.place("some", attempt, turn)
            yield place.story(10)
            yield place.prompt(100, 10)
            yield place.streamed(50, 10)
            yield (first := place.agent())
            yield place.goes_on(first, "an answer")
            yield place.lane(0).story(10)
            yield place.lane(1).story(10)


def test_the_same_seed_asks_the_same_bytes() -> None:
    one, other = (list(everything(workload())) for _ in range(2))
    assert one == other
    assert [asked.sha256 for asked in one] == [asked.sha256 for asked in other]


def test_no_two_requests_are_the_same_over_attempts_turns_lanes_and_seeds() -> None:
    asked = [*everything(workload(1)), *everything(workload(2))]
    assert len({one.sha256 for one in asked}) == len(asked)
    assert len({one.messages[0]["content"][:12] for one in asked}) == len(asked) - 2 * 4


def test_a_nonce_is_of_seed_phase_attempt_and_index() -> None:
    made = nonce(1, "ttft", 1, 0)
    assert made == hashlib.sha256(b'[1,"ttft",1,0]').hexdigest()[:12]
    others = [nonce(2, "ttft", 1, 0), nonce(1, "decode", 1, 0), nonce(1, "ttft", 2, 0)]
    assert made not in [*others, nonce(1, "ttft", 1, 1)]


MAKERS: dict[str, Callable[[Place], Asked]] = {
    "story": lambda place: place.story(9),
    "prompt": lambda place: place.prompt(60, 9),
    "streamed": lambda place: place.streamed(60, 9),
    "agent": Place.agent,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_nonce_leads_every_prompt_that_nobody_shall_know(kind: str) -> None:
    asked = MAKERS[kind](workload().place("ttft", 1, 0))
    assert asked.messages[0]["content"].startswith(nonce(1, "ttft", 1, 0) + " ")


def test_probes_are_the_same_for_every_seed() -> None:
    probes = [workload(seed).place("parity", 1, 0).fixed(PROBES[0], 9) for seed in (1, 2)]
    assert probes[0].sha256 == probes[1].sha256


@pytest.mark.parametrize("tokens", [12, 300, 4096])
def test_a_prompt_has_about_as_many_tokens_as_asked_for(tokens: int) -> None:
    asked = workload().place("ttft", 1, 0).prompt(tokens, 9)
    counted = four_characters_a_token(asked.messages[0]["content"])
    assert tokens * 0.95 <= counted <= tokens * 1.05 + 40


def test_how_long_a_prompt_is_depends_on_the_model_s_own_count() -> None:
    by_words = Workload(1, FULL, lambda text: len(text.split()))
    asked = by_words.place("ttft", 1, 0).prompt(500, 9)
    assert 500 <= len(asked.messages[0]["content"].split()) <= 530


def test_asking_again_is_the_same_request_in_another_place() -> None:
    place = workload().place("ttft", 1, 0)
    asked = place.prompt(50, 9)
    again = place.again(asked)
    assert again.sha256 == asked.sha256
    assert again.index == asked.index + 1
    assert place.again(asked, 3).sha256 != asked.sha256


def test_the_hash_is_of_what_is_asked_alone() -> None:
    one = workload().place("a", 1, 0).fixed("Hello", 9)
    other = workload().place("b", 2, 1).fixed("Hello", 9)
    assert one.sha256 == other.sha256
    assert one.sha256 != workload().place("a", 1, 0).fixed("Hello", 8).sha256
    assert one.sha256 != workload().place("a", 1, 0).fixed("hello", 9).sha256


def test_an_agent_s_next_turn_begins_with_all_that_was_said() -> None:
    place = workload().place("agent", 1, 0)
    first = place.agent()
    second = place.goes_on(first, "said")
    third = place.goes_on(second, "more")
    assert third.messages[:3] == second.messages
    assert [turn["role"] for turn in third.messages] == ["user", "assistant"] * 2 + ["user"]
    assert third.messages[3]["content"] == "more"
    assert third.session == first.session


def test_streams_lanes_do_not_meet() -> None:
    place = workload().place("aggregate", 1, 1)
    lanes = [place.lane(number).story(9).index for number in range(sum(FULL.streams))]
    assert len(set(lanes)) == len(lanes)
    assert min(lanes) > OTHER_TURN


def test_a_stream_that_asks_again_and_again_asks_nothing_of_another_s_or_the_other_turn_s() -> None:
    first, other = workload().place("mixed", 1, 0), workload().place("mixed", 1, 1)
    lanes = [first.lane(0), first.lane(1), first.lane(LANES_MAX - 1), other]
    asked = [lane.story(9).sha256 for lane in lanes for _ in range(100)]
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("sizes", SIZES)
def test_prompts_whose_times_are_set_beside_each_other_are_of_one_size(sizes: Sizes) -> None:
    assert sizes.kill_prompt == sizes.ttft_prompt


def test_a_restart_is_measured_at_the_size_that_is_required() -> None:
    assert FULL.restart_prompt >= 2000


@pytest.mark.parametrize("sizes", SIZES)
def test_some_of_everything_is_asked(sizes: Sizes) -> None:
    assert sizes.decode_samples == 5
    assert sizes.ttft_samples >= 3
    assert sizes.agent_turns >= 3
    assert 1 in sizes.streams
