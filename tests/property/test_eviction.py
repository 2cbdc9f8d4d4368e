"""The order of eviction is that of looking at everything, whatever happened before."""

import random

import pytest

from bramley.cachestore.arena import Run
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.eviction import Order
from bramley.cachestore.sessions import Rank, Sessions
from support.objects import ROOT, entry
from support.store import ids

RUN = Run(1, 0, 1)


class Model:
    """A store without bytes, that does at random what a store does."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311
        self.catalogue = Catalogue()
        self.sessions = Sessions()
        self.order = Order(self.catalogue, self.sessions.rank)
        self.sessions.watch = self.order.update_all
        self.sessions.watch_all = lambda root, key: self.order.update_all(
            one.id for one in self.catalogue.of_session(root, key)
        )
        self.held: set[str] = set()
        self.now_s = 0.0

    def any(self) -> Entry:
        return self.draw.choice(list(self.catalogue.entries.values()))

    def step(self) -> None:
        self.now_s += self.draw.random() * 100
        steps = [self.store, self.store, self.use, self.evict, self.evict]
        rare = [self.spill, self.fail, self.drop, self.hold, self.damage, self.close, self.price]
        if self.catalogue.entries:
            self.draw.choice([*steps, *rare])()
        else:
            self.store()

    def store(self) -> None:
        first = self.draw.randrange(4)
        tokens = ids(256 * (first + 1 + self.draw.randrange(2)), self.draw.randrange(3))
        key = self.draw.choice(["", "a", "b"])
        kind = self.draw.choice(["extent", "extent", "state"])
        if kind == "state":
            one = entry(tokens, len(tokens) // 1024, kind="state", group="st", session_key=key)
        else:
            one = entry(tokens, first, session_key=key)
        self.catalogue.add(one)
        self.order.used(one, self.now_s)
        self.catalogue.came_to_ram(one, RUN)
        line = [place.entry.id for place in self.catalogue.line("kv", one.object.parent, ROOT)]
        self.sessions.stored(one, line, self.now_s, ends_prompt=self.draw.random() < 0.5)

    def use(self) -> None:
        one = self.any()
        self.order.used(one, self.now_s)
        if one.run is None:
            self.catalogue.came_to_ram(one, RUN)

    def spill(self) -> None:
        one = self.any()
        if not one.on_disk:
            self.catalogue.came_to_disk(one)

    def fail(self) -> None:
        one = self.any()
        one.fate = "failed"
        self.order.update(one)

    def drop(self) -> None:
        one = self.any()
        if one.on_disk:
            self.catalogue.left_ram(one)

    def hold(self) -> None:
        self.held ^= {self.any().id}

    def damage(self) -> None:
        self.catalogue.remove(self.any())

    def close(self) -> None:
        self.sessions.close(ROOT, self.draw.choice("ab"))

    def price(self) -> None:
        self.order.set_rate(ROOT, self.draw.choice([10.0, 1000.0]))
        self.order.price_some()

    def evict(self) -> None:
        may_lose = self.draw.random() < 0.5
        expected = self.lowest_in_ram(may_lose=may_lose)
        victim = self.order.ram_victim(self.is_free, may_lose=may_lose)
        assert victim is expected
        if victim is not None and victim.on_disk:
            self.catalogue.left_ram(victim)
        elif victim is not None:
            self.catalogue.remove(victim)
        expected = self.lowest_on_disk()
        victim = self.order.disk_victim(self.is_free)
        assert victim is expected
        if victim is not None:
            self.catalogue.remove(victim)

    def is_free(self, one: Entry) -> bool:
        return one.id not in self.held

    # The oracle: by looking at everything

    def lowest_in_ram(self, *, may_lose: bool) -> Entry | None:
        def may_go(one: Entry) -> bool:
            is_lost = may_lose or one.fate == "failed"
            return one.on_disk or (is_lost and self.is_leaf(one))

        found = [one for one in self.catalogue.ram.values() if self.is_free(one) and may_go(one)]
        return min(found, key=lambda one: self.key(one, one.ram_clock), default=None)

    def lowest_on_disk(self) -> Entry | None:
        found = [
            one for one in self.catalogue.disk.values() if self.is_free(one) and self.is_leaf(one)
        ]
        return min(found, key=lambda one: self.key(one, one.disk_clock), default=None)

    def key(self, one: Entry, clock: float) -> tuple[Rank, float, int]:
        rank = self.sessions.rank(one) if self.is_reached(one) else Rank.ORPHAN
        return rank, clock + one.hits * one.worth, one.turn

    def is_leaf(self, one: Entry) -> bool:
        ends = {part.chain for part in one.object.parts}
        others = self.catalogue.entries.values()
        return one.object.kind != "extent" or not any(each.object.parent in ends for each in others)

    def is_reached(self, one: Entry) -> bool:
        """Whether some line of extents leads from the root to it."""
        reached, grew = {ROOT}, True
        while grew:
            before = len(reached)
            for each in self.catalogue.entries.values():
                if each.object.kind == "extent" and each.object.parent in reached:
                    reached |= {part.chain for part in each.object.parts}
            grew = len(reached) > before
        return one.object.parent in reached


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_looking_at_everything(seed: int) -> None:
    model = Model(seed)
    model.catalogue.require(ROOT, ["kv"])
    for _ in range(150):
        model.step()
