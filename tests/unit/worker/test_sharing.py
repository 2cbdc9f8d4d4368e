"""Which row of the engine a request starts from."""

from bramley.worker.cache.saved import Restore, StoredPart
from bramley.worker.engine.sharing import Source, common, find_source
from bramley.worker.engine.slots import Parked
from bramley.worker.request import Phase, Request, StopRule
from bramley.worker.sampling.params import SamplingParams

SCOPE = b"scope"
PROMPT = list(range(100))


def request(prompt: list[int], *, restored: int = 0, scope: bytes = SCOPE) -> Request:
    part = StoredPart(0, restored, restored, memoryview(b""))
    return Request(
        id="r",
        prompt=prompt,
        stop=StopRule(max_tokens=1),
        sampling=SamplingParams(),
        scope=scope,
        restore=Restore((part,), lambda: True, lambda: None) if restored else None,
    )


def seated(prompt: list[int], computed: int, slot: int) -> Request:
    one = request(prompt)
    one.phase, one.slot, one.computed, one.output = Phase.SEATED, slot, computed, [7]
    return one


def parked(tokens: list[int], slot: int, scope: bytes = SCOPE) -> Parked:
    return Parked(slot, scope, tokens, 0)


def find(one: Request, *rows: Request | Parked, can_cut: bool = True) -> Source | None:
    sitting = [row for row in rows if isinstance(row, Request)]
    resting = [row for row in rows if isinstance(row, Parked)]
    return find_source(one, sitting, resting, lambda _slot, _tokens: can_cut)


def test_common_counts_shared_tokens_from_the_start() -> None:
    assert common([1, 2, 3], [1, 2, 4, 3]) == 2
    assert common([1, 2], [1, 2, 3]) == 2
    assert common([], [1]) == 0
    assert common([2], [1]) == 0


def test_the_longest_common_prefix_wins() -> None:
    rows = parked(PROMPT[:40], 1), parked([*PROMPT[:60], 7], 2), seated(PROMPT, 50, 3)
    assert find(request(PROMPT), *rows) == Source(2, 60, is_parked=True)


def test_a_parked_row_is_preferred_to_a_copy() -> None:
    rows = seated(PROMPT, 50, 3), parked(PROMPT[:50], 1)
    found = find(request(PROMPT), *rows)
    assert found is not None
    assert found.is_parked


def test_one_token_is_always_left_to_compute() -> None:
    assert find(request(PROMPT), parked(PROMPT, 1)) == Source(1, 99, is_parked=True)


def test_only_what_was_computed_counts() -> None:
    assert find(request(PROMPT), seated(PROMPT, 20, 3)) == Source(3, 20, is_parked=False)


def test_a_row_without_a_first_token_is_shared_with_its_followers_alone() -> None:
    unproved = seated(PROMPT, 40, 3)
    unproved.output.clear()
    assert find(request(PROMPT), unproved) is None


def test_scopes_do_not_share() -> None:
    assert find(request(PROMPT, scope=b"other"), parked(PROMPT, 1), seated(PROMPT, 99, 2)) is None
    assert find(request(PROMPT, scope=b""), parked(PROMPT, 1, b"")) is None


def test_what_is_stored_is_taken_if_it_is_longer_than_a_parked_row() -> None:
    assert find(request(PROMPT, restored=51), parked(PROMPT[:50], 1)) is None
    assert find(request(PROMPT, restored=50), parked(PROMPT[:50], 1)) is not None


def test_a_few_tokens_are_not_worth_it_but_a_follower_takes_what_its_leader_has() -> None:
    short = PROMPT[:5]
    assert find(request(short), parked(short, 1)) is None
    leader = seated(short, 4, 2)
    follower = request(short, scope=b"")
    follower.leader = leader
    assert find(follower, leader) == Source(2, 4, is_parked=False)


def test_a_row_that_cannot_go_back_is_of_no_use() -> None:
    assert find(request(PROMPT), parked(PROMPT, 1), can_cut=False) is None
