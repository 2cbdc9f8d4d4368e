"""One row's changes to its logits, from step to step."""

from typing import Any

import numpy as np
import pytest

from bramley.worker.sampling.changes import History, RowChanges
from bramley.worker.sampling.params import SamplingParams


def changes(min_until: int = 0, blocked: frozenset[int] = frozenset(), **fields: Any) -> RowChanges:
    return RowChanges(SamplingParams(**fields), min_until, blocked)


def told(row: RowChanges, history: History, position: int = 0) -> dict[int, tuple[float, float]]:
    """Say for each id that changes: its divisor, and what is added; bans add -inf."""
    change = row.at(position, history)
    added = np.where(change.banned == 1, -np.inf, change.added)
    assert len(set(change.ids.tolist())) == len(change.ids)
    entries = zip(change.ids.tolist(), change.divisor.tolist(), added.tolist(), strict=True)
    return {token: (d, a) for token, d, a in entries if (d, a) != (1, 0)}


def test_a_row_that_asks_for_nothing_is_empty() -> None:
    assert changes(temperature=1.0, top_k=3, bad_words=((),)).empty
    assert changes(blocked=frozenset({3})).empty
    assert not changes(repetition_penalty=1.5).empty
    assert not changes(min_until=4, blocked=frozenset({3})).empty
    assert not changes(logit_bias=((3, 1.0),)).empty


def test_only_what_no_history_and_no_position_changes_is_fixed() -> None:
    assert changes(logit_bias=((3, 1.0),), bad_words=((4,),)).fixed
    assert not changes(bad_words=((4, 5),)).fixed
    assert not changes(min_until=4, blocked=frozenset({3})).fixed


def test_repetition_sees_prompt_and_output_the_others_output_alone() -> None:
    row = changes(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    assert told(row, ([1, 1, 2], [2, 3, 3])) == {1: (2, 0), 2: (2, -0.75), 3: (2, -1.0)}


def test_the_window_is_of_the_sequence() -> None:
    row = changes(repetition_penalty=2.0, frequency_penalty=1.0, penalty_window=3)
    prompt, output = [1, 2], [3]
    assert told(row, (prompt, output)) == {1: (2, 0), 2: (2, 0), 3: (2, -1)}
    output += [3, 3]
    assert told(row, (prompt, output)) == {3: (2, -3)}
    output += [4, 2, 2]
    assert told(row, (prompt, output)) == {4: (2, -1), 2: (2, -2)}


@pytest.mark.parametrize("window", [0, 3, 50])
def test_following_a_history_equals_counting_it_afresh(window: int) -> None:
    random = np.random.default_rng(window)
    fields: dict[str, Any] = {
        "repetition_penalty": 1.5,
        "frequency_penalty": 1.0,
        "penalty_window": window,
    }
    row = changes(**fields)
    prompt, output = random.integers(0, 200, 60).tolist(), list[int]()
    for count in (0, 1, 1, 5, 0, 90, 1):
        output += random.integers(0, 200, count).tolist()
        assert told(row, (prompt, output)) == told(changes(**fields), (prompt, output))


def test_another_history_is_counted_afresh() -> None:
    row = changes(frequency_penalty=1.0)
    prompt, output = [1], [2, 3]
    assert told(row, (prompt, output)) == {2: (1, -1), 3: (1, -1)}
    assert told(row, (prompt, [7])) == {7: (1, -1)}
    output.pop()
    assert told(row, (prompt, output)) == {2: (1, -1)}
    output.clear()
    assert told(row, (prompt, output)) == {}


def test_more_biases_than_there_was_room_for_are_all_told() -> None:
    biases = tuple((token, 1.0 + token / 10) for token in range(300))
    assert told(changes(logit_bias=biases), ((), ())).keys() == set(range(300))


def test_biases_of_one_id_add_up() -> None:
    assert told(changes(logit_bias=((3, 1.5), (4, -1.0), (3, 1.0))), ((), ())) == {
        3: (1, 2.5),
        4: (1, -1),
    }


@pytest.mark.parametrize(
    ("history", "banned"),
    [
        (((), ()), set[int]()),
        (((1,), ()), {2}),
        (((1, 2), ()), {3}),
        (((1,), (2,)), {3}),
        (((0,), (1, 2)), {3}),
        (((2, 1), ()), {2}),
        (((5, 5, 5), (1,)), {2}),
        (((1, 2), (3,)), set[int]()),
    ],
)
def test_a_word_is_banned_where_the_history_ends_on_its_beginning(
    history: History, banned: set[int]
) -> None:
    row = changes(bad_words=((1, 2, 3), (1, 2), (9,)))
    assert set(told(row, history)) == banned | {9}


def test_blocked_ids_are_banned_before_their_position() -> None:
    row = changes(min_until=5, blocked=frozenset({3, 4}), logit_bias=((3, 1.0),))
    assert told(row, ((), ()), position=4) == {3: (1, -np.inf), 4: (1, -np.inf)}
    assert told(row, ((), ()), position=5) == {3: (1, 1)}
