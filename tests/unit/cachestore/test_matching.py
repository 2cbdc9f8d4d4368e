"""Matching: the longest prefix that every required group has, token by token."""

import msgspec
import pytest

from bramley.cachestore import keys
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.matching import Found, Group, Query, common_tokens, find
from support.objects import ROOT, catalogue, entry
from support.store import ids

KV = Group("kv", required=True, sliceable=True)
STATES = Group("states", required=True, sliceable=False)
DRAFT = Group("draft", required=False, sliceable=True)


def query(tokens: bytes, root: bytes = ROOT) -> Query:
    return Query(root, keys.chain(root, tokens), tokens)


def found(stored: Catalogue, tokens: bytes, *groups: Group) -> Found:
    return find(stored, groups or (KV,), query(tokens))


def deepest(stored: Catalogue, tokens: bytes, *groups: Group) -> tuple[int, list[Entry]]:
    boundaries = found(stored, tokens, *groups).boundaries
    if not boundaries:
        return 0, []
    return boundaries[0].tokens, [use.entry for use in boundaries[0].uses]


def test_an_empty_store_has_nothing() -> None:
    assert found(catalogue(), ids(600)) == Found((), ("kv",))


def test_a_line_is_followed_from_the_root_to_its_deepest_block() -> None:
    first, second = entry(ids(512)), entry(ids(1024), 2)
    stored = catalogue(first, second)
    assert deepest(stored, ids(1500)) == (1024, [first, second])
    assert deepest(stored, ids(800)) == (799, [first, second])
    assert deepest(stored, ids(513)) == (512, [first])


def test_a_child_may_leave_an_extent_in_its_middle() -> None:
    tokens = ids(512) + ids(512, seed=1)
    trunk, branch = entry(ids(1024)), entry(tokens, 2)
    stored = catalogue(trunk, branch)
    assert deepest(stored, tokens + ids(9)) == (1024, [trunk, branch])
    boundary = found(stored, tokens + ids(9)).boundaries[0]
    assert [use.tokens for use in boundary.uses] == [512, 512]


def test_a_gap_ends_the_line() -> None:
    stored = catalogue(entry(ids(256)), entry(ids(1024), 2))
    assert deepest(stored, ids(1100))[0] == 256


def test_a_gap_that_was_filled_by_another_extent_is_none() -> None:
    late, whole = entry(ids(1024), 2), entry(ids(512))
    stored = catalogue(late, whole)
    assert deepest(stored, ids(1100)) == (1024, [whole, late])


@pytest.mark.parametrize("shared", [1, 100, 255, 256, 300, 511])
def test_any_leading_part_of_a_block_is_used(shared: int) -> None:
    stored = catalogue(entry(ids(512)))
    assert deepest(stored, ids(shared) + ids(600, seed=5))[0] == shared


def test_the_tail_that_shares_most_is_found_among_many() -> None:
    tails = [entry(ids(256) + ids(n) + ids(40, seed=n), 1, kind="tail") for n in range(1, 200)]
    trunk = entry(ids(256))
    stored = catalogue(trunk, *tails)
    tokens = ids(256) + ids(150) + ids(80, seed=150)
    assert deepest(stored, tokens) == (256 + 150 + 40, [trunk, tails[149]])


def test_a_part_inside_another_extent_stands_for_what_it_covers() -> None:
    short, long = entry(ids(512)), entry(ids(768))
    stored = catalogue(short, long)
    boundary = found(stored, ids(700)).boundaries[0]
    assert (boundary.tokens, [use.entry for use in boundary.uses]) == (699, [long])


def test_at_least_one_token_is_left_and_boundaries_come_deepest_first() -> None:
    stored = catalogue(entry(ids(512)), entry(ids(1024), 2))
    ends = [boundary.tokens for boundary in found(stored, ids(1024)).boundaries]
    assert ends == [1023, 768, 512]


def test_tokens_are_compared_and_not_only_their_hashes() -> None:
    forged = entry(ids(512))
    lying = msgspec.structs.replace(forged.object, token_ids_le=ids(512, seed=3))
    assert deepest(catalogue(Entry(lying)), ids(600))[0] == 0


def test_another_root_is_another_world() -> None:
    stored = catalogue(entry(ids(512), root=b"x" * 32))
    assert deepest(stored, ids(600))[0] == 0


def test_states_are_not_cut() -> None:
    deep = entry(ids(900), 3, kind="state", group="states")
    edge = entry(ids(512), 2, kind="state", group="states")
    trunk, tail = entry(ids(768)), entry(ids(1000), 3, kind="tail")
    stored = catalogue(trunk, tail, edge, deep)
    assert deepest(stored, ids(1000), KV, STATES) == (900, [trunk, tail, deep])
    assert deepest(stored, ids(900), KV, STATES) == (512, [trunk, edge])
    assert found(stored, ids(512), KV, STATES) == Found((), ("states",))


def test_a_state_without_its_blocks_is_nothing() -> None:
    stored = catalogue(entry(ids(256)), entry(ids(512), 2, kind="state", group="states"))
    assert found(stored, ids(600), KV, STATES).boundaries == ()


def test_states_alone_are_enough_where_there_is_nothing_else() -> None:
    state = entry(ids(512), 2, kind="state", group="states")
    assert deepest(catalogue(state), ids(600), STATES) == (512, [state])


def test_an_optional_group_is_used_or_told() -> None:
    trunk, draft = entry(ids(512)), entry(ids(512), group="draft")
    assert found(catalogue(trunk), ids(600), KV, DRAFT).missing_groups == ("draft",)
    answer = found(catalogue(trunk, draft), ids(600), KV, DRAFT)
    assert answer.missing_groups == ()
    assert [use.entry for use in answer.boundaries[0].uses] == [trunk, draft]


def test_the_shallowest_of_the_required_groups_decides() -> None:
    other = Group("window", required=True, sliceable=True)
    stored = catalogue(entry(ids(1024)), entry(ids(300), 0, group="window", kind="extent"))
    assert deepest(stored, ids(1100), KV, other)[0] == 256


def test_what_was_removed_is_not_found_and_its_double_is() -> None:
    one, double = entry(ids(512)), entry(ids(512))
    stored = catalogue(one, double)
    stored.remove(one)
    assert deepest(stored, ids(600)) == (512, [double])
    stored.remove(double)
    assert deepest(stored, ids(600)) == (0, [])
    assert not stored.entries


def test_entries_are_told_by_their_ids_while_others_come_and_go() -> None:
    made = [entry(ids(256, seed=seed), id=name) for seed, name in enumerate(["b1", "d1", "b2"])]
    stored = catalogue(*made)
    told = [one.id for one in stored.in_order()]
    assert told == ["b1", "b2", "d1"]
    assert [one.id for one in stored.in_order("b1")] == ["b2", "d1"]
    assert [one.id for one in stored.in_order("b1", begins="b")] == ["b2"]
    assert [one.id for one in stored.in_order(begins="b1")] == ["b1"]
    steps = stored.in_order()
    assert next(steps).id == "b1"
    stored.remove(made[0])
    stored.remove(made[2])
    stored.add(entry(ids(256, seed=9), id="c1"))
    stored.add(entry(ids(256, seed=10), id="a1"))
    stored.add(entry(ids(256, seed=11), id="a2"))
    assert [one.id for one in steps] == ["c1", "d1"]


def test_an_extent_is_a_leaf_once_nothing_follows_it() -> None:
    trunk, branch, state = entry(ids(512)), entry(ids(768), 2), entry(ids(256), 1, kind="state")
    stored = catalogue(trunk, branch, state)
    assert not stored.is_leaf(trunk)
    assert stored.is_leaf(branch)
    stored.remove(branch)
    assert not stored.is_leaf(trunk)
    stored.remove(state)
    assert stored.is_leaf(trunk)


@pytest.mark.parametrize(("a", "b", "shared"), [(0, 5, 0), (5, 5, 5), (7, 300, 7)])
def test_common_tokens_are_counted(a: int, b: int, shared: int) -> None:
    assert common_tokens(ids(a), ids(b)) == shared
    assert common_tokens(ids(a) + b"\1\1\1\1", ids(a) + b"\1\1\1\2") == a
