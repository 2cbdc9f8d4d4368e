"""Answers that are kept for the next turn: so many bytes, for so long, of each holder (pure)."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bramley.router.gateway.openai.responses_items import Item

COUNT_MAX: Final = 16384
ANSWER_BYTES: Final = 2048  # of an answer, beside what is told and its items
ITEM_BYTES: Final = 512  # of an item, beside its texts


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer.

    Attributes:
        body: as it was told whole.
        items: the conversation that it answers, from its beginning.
        output: its own items.
        text_bytes: of all items, its own and those before them, as JSON.
    """

    body: bytes
    items: Sequence[Item]
    output: Sequence[Item]
    text_bytes: int

    @property
    def conversation(self) -> Sequence[Item]:
        """What the next turn goes on from."""
        return [*self.items, *self.output]

    @property
    def cost(self) -> int:
        """Bytes that it counts as: all of its conversation, which later answers may share."""
        items = len(self.items) + len(self.output)
        return len(self.body) + self.text_bytes + items * ITEM_BYTES + ANSWER_BYTES


class Stored:
    """Keeps answers; the oldest leave first. One holder's are not there for another.

    Nothing is changed by who looks, so that any thread may.

    Args:
        seconds: that each is kept for.
        bytes_max: that all may have.
    """

    def __init__(self, seconds: float, bytes_max: int) -> None:
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[str, str], tuple[float, Kept]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        """Count them, those included that nobody finds any more."""
        return len(self._kept)

    def find(self, holder: str, name: str, now_s: float) -> Kept | None:
        """Look for an answer."""
        until_s, kept = self._kept.get((holder, name), (0.0, None))
        return kept if now_s < until_s else None

    def keep(self, holder: str, name: str, kept: Kept, now_s: float) -> None:
        """Keep an answer, if it is not too large by itself."""
        self._forget_old(now_s)
        if kept.cost > self._bytes_max:
            return
        self._kept[holder, name] = (now_s + self._seconds, kept)
        self.bytes += kept.cost
        while self.bytes > self._bytes_max or len(self._kept) > COUNT_MAX:
            self._forget(next(iter(self._kept)))

    def delete(self, holder: str, name: str, now_s: float) -> bool:
        """Forget an answer; says whether it was there."""
        is_there = self.find(holder, name, now_s) is not None
        if is_there:
            self._forget((holder, name))
        return is_there

    def _forget_old(self, now_s: float) -> None:
        while self._kept:
            oldest, (until_s, _) = next(iter(self._kept.items()))
            if now_s < until_s:
                return
            self._forget(oldest)

    def _forget(self, key: tuple[str, str]) -> None:
        _, kept = self._kept.pop(key)
        self.bytes -= kept.cost
