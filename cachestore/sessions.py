"""Sessions that are open, and which of their objects leave last. Pure.

A session is open from the first object that it stores until it is closed, was not used for an
hour, or too many others were used since. Its newest line of blocks, whoever stored those, and its
newest states are what its next turn starts from.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from bramley.cachestore.catalogue import Entry
from bramley.cachestore.objects import StoredObject

IDLE_S = 3600.0
OPEN_MAX = 1024
STATES = 2  # where the prompt ended, and where the answer did


class Rank(IntEnum):
    """Who leaves first; an orphan is what no prompt reaches."""

    ORPHAN = 0
    FREE = 1
    OF_SESSION = 2
    NEWEST = 3


@dataclass(slots=True)
class _Session:
    used_s: float = 0.0
    line: frozenset[str] = frozenset()
    states: deque[str] = field(default_factory=lambda: deque[str](maxlen=STATES))
    prompt: str = ""  # the state that its prompt ended with, where that was told

    @property
    def newest(self) -> frozenset[str]:
        return self.line.union(self.states, [self.prompt] if self.prompt else [])


_Name = tuple[bytes, str]


class Sessions:
    """All open ones; a session is of one namespace.

    Attributes:
        watch: told of the objects whose rank may have changed.
        watch_all: told of a session that was opened or closed, and so may all of its objects'.
    """

    def __init__(self) -> None:
        self.watch: Callable[[Iterable[str]], None] = lambda _: None
        self.watch_all: Callable[[bytes, str], None] = lambda _, __: None
        self._open: OrderedDict[_Name, _Session] = OrderedDict()  # the least recently used first
        self._newest: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def stored(
        self, entry: Entry, line: Iterable[str], now_s: float, *, ends_prompt: bool = False
    ) -> None:
        """Note a new object.

        Args:
            entry: of the object.
            line: ids of those that it follows from.
            now_s: the time.
            ends_prompt: whether it ends with the prompt, and not within it or with the answer.
        """
        name = _name(entry.object)
        if name is None:
            return
        is_new = name not in self._open
        session = self._open.setdefault(name, _Session())
        before = session.newest
        self._unmark(session)
        if entry.object.kind != "state":
            session.line = frozenset([*line, entry.id])
        else:
            session.states.append(entry.id)
            session.prompt = entry.id if ends_prompt else session.prompt
        self._newest.update(session.newest)
        self._use(name, now_s)
        if is_new:
            self.watch_all(*name)
        self.watch(before ^ session.newest)
        while len(self._open) > OPEN_MAX:
            self.close(*next(iter(self._open)))

    def used(self, entry: Entry, now_s: float) -> None:
        """Note that an object was read."""
        name = _name(entry.object)
        if name is not None and name in self._open:
            self._use(name, now_s)

    def _use(self, name: _Name, now_s: float) -> None:
        self._open[name].used_s = now_s
        self._open.move_to_end(name)

    def close(self, root: bytes, session_key: str) -> bool:
        """Protect a session no longer; says whether it was open."""
        session = self._open.pop((root, session_key), None)
        if session is not None:
            self._unmark(session)
            self.watch(session.newest)
            self.watch_all(root, session_key)
        return session is not None

    def _unmark(self, session: _Session) -> None:
        for object_id in session.newest:
            self._newest[object_id] -= 1
            if not self._newest[object_id]:
                del self._newest[object_id]

    def end_idle(self, now_s: float) -> None:
        """Close those that nobody used for long."""
        while self._open:
            name, session = next(iter(self._open.items()))
            if session.used_s + IDLE_S > now_s:
                return
            self.close(*name)

    def rank(self, entry: Entry) -> Rank:
        """Say when an object leaves."""
        if entry.id in self._newest:
            return Rank.NEWEST
        return Rank.OF_SESSION if _name(entry.object) in self._open else Rank.FREE


def _name(stored: StoredObject) -> _Name | None:
    return (stored.root, stored.session_key) if stored.session_key else None
