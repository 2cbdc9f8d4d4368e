"""Which token ends a request, and with which reason."""

import pytest

from bramley.worker.engine.stopping import Finish, finish
from bramley.worker.request import Request, StopRule
from bramley.worker.sampling.params import SamplingParams


def ends(
    output: list[int],
    *,
    max_tokens: int = 9,
    eos: frozenset[int] = frozenset(),
    stops: frozenset[int] = frozenset(),
) -> Finish | None:
    rule = StopRule(max_tokens=max_tokens, end_ids=eos, stop_ids=stops)
    request = Request(id="r", prompt=[1], stop=rule, sampling=SamplingParams(), output=output)
    return finish(request)


def test_a_token_like_any_other_ends_nothing() -> None:
    assert ends([5], eos=frozenset({6}), stops=frozenset({7})) is None


@pytest.mark.parametrize("token", [256, 257, 259])
def test_b006_every_end_token_ends_the_turn(token: int) -> None:
    assert ends([5, token], eos=frozenset({256, 257, 259})) == Finish("stop", token)


def test_b006_ignored_end_tokens_end_nothing() -> None:
    assert ends([5, 256], eos=frozenset()) is None


def test_the_request_s_own_stop_id_is_told_apart_from_the_model_s_end() -> None:
    both = frozenset({7})
    assert ends([7], eos=both, stops=both) == Finish("stop_sequence", 7)


def test_the_limit_ends_after_exactly_so_many_tokens() -> None:
    assert ends([5, 5], max_tokens=3) is None
    assert ends([5, 5, 5], max_tokens=3) == Finish("length")


def test_an_end_token_at_the_limit_is_a_stop() -> None:
    assert ends([5, 256], max_tokens=2, eos=frozenset({256})) == Finish("stop", 256)
