"""What the engine and the prefix cache hand each other: memory to restore from, and to save to.

Pure. The memory is the store's; whoever is handed it gives it back by ``release``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bramley.worker.owed import Account

STATE_EVERY = 2048  # tokens of a long prompt, after which a state is kept


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


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the layers that cannot be cut have at one boundary.

    Attributes:
        tokens: before the boundary.
        memory: its payload, verified.
    """

    tokens: int
    memory: memoryview


@dataclass(slots=True)
class Restore:
    """A stored prefix of a prompt, complete from its first token on.

    Attributes:
        parts: of the layers that can be cut, in order, without a gap.
        is_held: asked after the copy: whether the memory was ours all the while.
        release: may be called from any thread; the memory is not touched afterwards.
        state: of the other layers, if there are any; the parts end where it is.
    """

    parts: tuple[StoredPart, ...]
    is_held: Callable[[], bool]
    release: Callable[[], None]
    state: StoredState | None = None

    @property
    def tokens(self) -> int:
        """Tokens that it covers."""
        if self.state is not None:
            return self.state.tokens
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
        extent_blocks: blocks of one extent at most.
        pauses: whether some layer cannot go back: its state must be copied where the row is.
        root: of the namespace.
        session_key: of the conversation.
        account: of the row; it stays with the row when the request ends.
    """

    stage: Callable[[int], Staged | None]
    boundary: int
    extent_blocks: int
    pauses: bool = False
    root: bytes = b""
    session_key: str = ""
    account: Account = field(default_factory=Account)

    def __post_init__(self) -> None:
        """Tell the account what the model needs."""
        self.account.needs_state = self.pauses

    def next_stop(self, computed: int, end: int) -> int:
        """Where the prefill of a row must stop next, to be saved or because it is done."""
        if not self.pauses:
            return end
        mark = (computed // STATE_EVERY + 1) * STATE_EVERY
        return min([end, *(place for place in (self.boundary, mark) if place > computed)])

    def place(self, computed: int, *, is_done: bool) -> int | None:
        """Say what is to be saved of a row whose prompt is being computed.

        Args:
            computed: tokens that the row has.
            is_done: whether its prompt is computed.

        Returns:
            How many tokens; None if this is no place to save at.
        """
        if is_done or computed == self.boundary:
            return computed if self.pauses else min(self.boundary, computed)
        return computed if self.pauses and computed % STATE_EVERY == 0 else None
