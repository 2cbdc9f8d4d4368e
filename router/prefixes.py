"""The router's view of which prompt prefixes are where, fed by numbered events (pure).

A prompt's block hashes are a chain: where one is known, so are all before it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

BLOCK_TOKENS = 256
HASH_BYTES = 32

Tier = Literal["ram", "ssd"]


class Gap(Exception):
    """An event is missing: the view is void, and is to be asked for anew."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Tokens of a prompt that a cache store has, by tier."""

    ram: int = 0
    ssd: int = 0


NOTHING = Stored()


@dataclass
class StoreView:
    """What one cache store holds.

    Attributes:
        epoch: of the store's incarnation.
        sequence: of the last event; 0 before the first.
    """

    epoch: int = 0
    sequence: int = 0
    _tiers: dict[bytes, Tier] = field(default_factory=dict[bytes, Tier])

    def __len__(self) -> int:
        return len(self._tiers)

    def reset(self, epoch: int, sequence: int) -> None:
        """Begin anew: what follows rebuilds the view."""
        self.epoch, self.sequence = epoch, sequence
        self._tiers.clear()

    def apply(self, epoch: int, sequence: int, stored: bytes, removed: bytes, tier: Tier) -> None:
        """Take in one event.

        Args:
            epoch: of the store that tells.
            sequence: as the last one's while a view is rebuilt, else one more.
            stored: hashes that came to ``tier``, end to end.
            removed: hashes that are gone from both.
            tier: of those that came.

        Raises:
            Gap: it is not the next one.
        """
        if epoch != self.epoch or sequence not in {self.sequence, self.sequence + 1}:
            raise Gap(f"event {sequence} of epoch {epoch} after {self.sequence} of {self.epoch}")
        self.sequence = sequence
        for chain in split(stored):
            self._tiers[chain] = tier
        for chain in split(removed):
            self._tiers.pop(chain, None)

    def match(self, chains: Sequence[bytes]) -> Stored:
        """Count the leading tokens of a prompt that are stored."""
        ram = ssd = 0
        for chain in chains:
            tier = self._tiers.get(chain)
            if tier is None:
                break
            ram += tier == "ram"
            ssd += tier == "ssd"
        return Stored(ram * BLOCK_TOKENS, ssd * BLOCK_TOKENS)


def split(chains: bytes) -> list[bytes]:
    """Cut hashes that lie end to end."""
    return [chains[at : at + HASH_BYTES] for at in range(0, len(chains), HASH_BYTES)]


def row_tokens(chains: Sequence[bytes], rows: Collection[bytes]) -> int:
    """Count the leading tokens of a prompt that a worker has in one of its rows.

    Args:
        chains: of the prompt's whole blocks.
        rows: hash of the last whole block of each row.

    Returns:
        Of the row that shares most; rows that end elsewhere than at a block of the prompt, as
        one that went another way does, share nothing that is known here.
    """
    places = {chain: place for place, chain in enumerate(chains, 1)} if rows else {}
    return max((places.get(row, 0) for row in rows), default=0) * BLOCK_TOKENS
