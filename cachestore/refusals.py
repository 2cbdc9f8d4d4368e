"""Which refused objects were stored later after all: what a flush may still call ok. Pure."""

from collections import OrderedDict
from dataclasses import dataclass

from bramley.cachestore import keys
from bramley.cachestore.catalogue import TOKEN_BYTES
from bramley.cachestore.leases import Wish
from bramley.cachestore.objects import BLOCK, StoredObject

REMEMBERED = 1024
FORGET_S = 3600.0  # nobody stores it any more

_Name = tuple[str, bytes]  # group, chain hash at its end


@dataclass(slots=True)
class _Refused:
    root: bytes
    at_s: float
    parent: _Name
    tokens: int  # of a tail; 0 for others


class Refusals:
    """Those of the last hour that were not made good.

    Each is known by its chain, as long as there are few; more of them are only counted, and
    those count for an hour after the last one.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[_Name, _Refused] = OrderedDict()  # the oldest first
        self._tails: dict[_Name, set[_Name]] = {}  # by what they follow
        self._unknown: dict[bytes, tuple[int, float]] = {}

    def add(self, wish: Wish, now_s: float) -> None:
        """Note a refusal."""
        self.forget_old(now_s)
        name = (wish.group, wish.chain)
        self._forget(name)
        if not wish.chain or len(self._known) >= REMEMBERED:
            count, _ = self._unknown.get(wish.root, (0, 0.0))
            self._unknown[wish.root] = (count + 1, now_s)
            return
        is_tail = wish.kind == "tail"
        parent = (wish.group, wish.parent)
        self._known[name] = _Refused(wish.root, now_s, parent, wish.tokens if is_tail else 0)
        if is_tail:
            self._tails.setdefault(parent, set()).add(name)

    def stored(self, stored: StoredObject) -> None:
        """Forget what an object holds: up to the end of each of its parts, and tails before."""
        if not self._known:
            return
        before = stored.parent
        for at, part in enumerate(stored.parts):
            self.found(stored.group, part.chain)
            if stored.kind != "state":
                tokens = stored.token_ids_le[at * BLOCK * TOKEN_BYTES :]
                self._forget_tails((stored.group, before), tokens)
            before = part.chain

    def found(self, group: str, chain: bytes) -> None:
        """Forget one that turned out to be there."""
        self._forget((group, chain))

    def count(self, root: bytes, now_s: float) -> int:
        """Count those of a namespace, or all if ``root`` is empty."""
        self.forget_old(now_s)
        known = sum(root in {b"", one.root} for one in self._known.values())
        return known + sum(
            count for name, (count, _) in self._unknown.items() if root in {b"", name}
        )

    def forget_old(self, now_s: float) -> None:
        """Forget those that nobody came back for."""
        while self._known:
            name, oldest = next(iter(self._known.items()))
            if oldest.at_s + FORGET_S > now_s:
                break
            self._forget(name)
        for root, (_, at_s) in list(self._unknown.items()):
            if at_s + FORGET_S <= now_s:
                del self._unknown[root]

    def _forget_tails(self, parent: _Name, tokens: bytes) -> None:
        for name in list(self._tails.get(parent, ())):
            count = self._known[name].tokens
            own = tokens[: count * TOKEN_BYTES]
            if len(own) == count * TOKEN_BYTES and keys.tail_hash(parent[1], own) == name[1]:
                self._forget(name)

    def _forget(self, name: _Name) -> None:
        one = self._known.pop(name, None)
        if one is not None and one.tokens:
            tails = self._tails[one.parent]
            tails.remove(name)
            if not tails:
                del self._tails[one.parent]
