"""A refusal counts until what was refused is stored after all, for an hour at most."""

import pytest

from bramley.cachestore import refusals as module
from bramley.cachestore.catalogue import Entry
from bramley.cachestore.leases import Wish
from bramley.cachestore.refusals import FORGET_S, Refusals
from support.objects import ROOT, entry
from support.store import ids

OTHER = b"o" * 32


def wish(one: Entry, *, knows_chain: bool = True) -> Wish:
    stored = one.object
    return Wish(
        root=stored.root,
        kind=stored.kind,
        group=stored.group,
        parent=stored.parent,
        chain=stored.chain if knows_chain else b"",
        first_token=stored.first_token,
        tokens=stored.tokens,
        nbytes=100,
    )


def test_it_is_made_good_by_the_same_object_or_a_longer_one() -> None:
    for stored in (entry(ids(512)), entry(ids(1024))):
        refusals = Refusals()
        refusals.add(wish(entry(ids(512))), 0.0)
        assert refusals.count(ROOT, 0.0) == 1
        refusals.stored(entry(ids(256)).object)
        refusals.stored(entry(ids(512, seed=1)).object)
        refusals.stored(entry(ids(512), group="draft").object)
        assert refusals.count(ROOT, 0.0) == 1
        refusals.stored(stored.object)
        assert refusals.count(ROOT, 0.0) == 0


def test_what_turned_out_to_be_there_is_made_good() -> None:
    refusals, one = Refusals(), wish(entry(ids(512)))
    refusals.add(one, 0.0)
    refusals.found(one.group, one.chain)
    assert refusals.count(b"", 0.0) == 0


@pytest.mark.parametrize(
    ("stored", "left"),
    [
        (entry(ids(600), 2, kind="tail"), 0),
        (entry(ids(700), 2, kind="tail"), 0),
        (entry(ids(1024), 1), 0),
        (entry(ids(590), 2, kind="tail"), 1),
        (entry(ids(768, seed=1), 2), 1),
        (entry(ids(512)), 1),
    ],
)
def test_a_tail_is_made_good_by_whatever_begins_with_it(stored: Entry, left: int) -> None:
    refusals = Refusals()
    refusals.add(wish(entry(ids(600), 2, kind="tail")), 0.0)
    refusals.stored(stored.object)
    assert refusals.count(ROOT, 0.0) == left


def test_a_refusal_said_twice_is_one() -> None:
    refusals, one = Refusals(), wish(entry(ids(600), 2, kind="tail"))
    refusals.add(one, 0.0)
    refusals.add(one, 1.0)
    assert refusals.count(ROOT, 1.0) == 1


def test_namespaces_are_counted_apart() -> None:
    refusals = Refusals()
    refusals.add(wish(entry(ids(512))), 0.0)
    refusals.add(wish(entry(ids(512), root=OTHER), knows_chain=False), 0.0)
    assert [refusals.count(root, 0.0) for root in (ROOT, OTHER, b"", b"n" * 32)] == [1, 1, 2, 0]


def test_too_many_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    refusals = Refusals()
    for seed in range(4):
        refusals.add(wish(entry(ids(512, seed))), float(seed))
    assert refusals.count(ROOT, 3.0) == 4
    for seed in range(4):
        refusals.stored(entry(ids(512, seed)).object)
    assert refusals.count(ROOT, 3.0) == 2  # whoever they were


def test_after_an_hour_nobody_waits_for_it() -> None:
    refusals = Refusals()
    refusals.add(wish(entry(ids(512))), 0.0)
    refusals.add(wish(entry(ids(600), 2, kind="tail")), 10.0)
    refusals.add(wish(entry(ids(512)), knows_chain=False), 20.0)
    assert refusals.count(ROOT, FORGET_S - 1) == 3
    assert refusals.count(ROOT, FORGET_S) == 2
    assert refusals.count(ROOT, FORGET_S + 10) == 1
    assert refusals.count(ROOT, FORGET_S + 20) == 0
