"""What the engine and the prefix cache hand each other: memory to restore from, and to save to.

Pure. The memory is the store's; whoever is handed it gives it back by ``release``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One part of a stored prefix.

    Attributes:
        first: tokens before it.
        tokens: how many of its leading tokens are wanted.
        held: how many it holds.
        memory: its payload, verified.
    """

    first: int
    tokens: int
    held: int
    memory: memoryview


@dataclass(slots=True)
class Restore:
    """A stored prefix of a prompt, complete from its first token on.

    Attributes:
        parts: in order, without a gap.
        is_held: asked after the copy: whether the memory was ours all the while.
        release: may be called from any thread; the memory is not touched afterwards.
    """

    parts: tuple[StoredPart, ...]
    is_held: Callable[[], bool]
    release: Callable[[], None]

    @property
    def tokens(self) -> int:
        """Tokens that it covers."""
        return sum(part.tokens for part in self.parts)


class Staged(Protocol):
    """Room for one object in staging, to be filled and then published or dropped."""

    @property
    def view(self) -> memoryview:
        """Where the payload goes."""
        ...

    def release(self) -> None:
        """Give the room back, unpublished."""
        ...


@dataclass(slots=True, kw_only=True)
class Saving:
    """How a request's state is to be saved.

    Attributes:
        stage: asks for room of so many bytes; None where there is none. From any thread.
        boundary: leading prompt tokens that the next turn will share.
        stored: tokens known to be stored; rises as spans are handed over.
        extent_blocks: blocks of one extent at most.
        pauses: whether the state at the boundary must be copied when it is reached, because
            some layer cannot go back to it.
    """

    stage: Callable[[int], Staged | None]
    boundary: int
    extent_blocks: int
    stored: int = field(default=0)
    pauses: bool = False
