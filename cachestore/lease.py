"""A worker's read lease: the parts that lead to a boundary, readable while it is held."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Self

import msgspec
import xxhash

from bramley.cachestore.link import Link
from bramley.cachestore.objects import BLOCK, padded
from bramley.protos.v1 import cachestore_pb2 as pb

CHECKSUM_BYTES = 16


class LeasedPart(msgspec.Struct, frozen=True, kw_only=True):
    """One block's payload, or a tail's or state's.

    Attributes:
        first_token: tokens before it.
        tokens: from its first one on, that lead to the boundary; all of a state's.
        stored_tokens: that its payload has.
        header: describes the arrays in the payload.
        payload: its bytes, read-only.
        checksum: xxh3-128 of them.
    """

    object_id: str
    group: str
    is_state: bool
    first_token: int
    tokens: int
    stored_tokens: int
    header: bytes
    payload: memoryview
    checksum: bytes


class Lease:
    """Holds parts in place until it is released. Any thread may use it.

    After the bytes were copied out, ``is_held`` says whether they are to be trusted: a process
    that was stopped for long may have read what somebody else wrote there since.

    Attributes:
        id: as the store knows it.
        link: that it came by.
        parts: in order, each group's from the root on.
    """

    def __init__(
        self,
        lease_id: int,
        link: Link,
        asked_s: float,
        ended: Callable[["Lease", Sequence[str]], None],
    ) -> None:
        self.id = lease_id
        self.link = link
        self.parts: Sequence[LeasedPart] = ()
        self._deadline_s = asked_s + link.ttl_s
        self._ended = ended
        self._is_released = False
        self._corrupt: set[str] = set()
        self._lock = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Whether the parts are still in place."""
        return self.link.is_alive and not self._is_released and monotonic() < self._deadline_s

    def renewed(self, asked_s: float) -> None:
        """The store has renewed it on a call made then."""
        self._deadline_s = asked_s + self.link.ttl_s

    def verify(self, part: LeasedPart) -> bool:
        """Whether a part's bytes have their checksum; if not, the store is told at release."""
        is_whole = xxhash.xxh3_128_digest(part.payload) == part.checksum
        if not is_whole and self.is_held:
            self._corrupt.add(part.object_id)
        return is_whole

    async def verify_all(self) -> list[bool]:
        """Verify every part, on as many threads as there are cores; in order."""
        loop = asyncio.get_running_loop()
        checks = [loop.run_in_executor(None, self.verify, part) for part in self.parts]
        return await asyncio.gather(*checks)

    def release(self) -> None:
        """Let the parts go; more than once does no harm."""
        with self._lock:
            was_released, self._is_released = self._is_released, True
        if not was_released:
            self._ended(self, sorted(self._corrupt))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def parts_of(
    reads: Sequence[pb.ObjectRead], views: Iterable[memoryview], tokens: int
) -> list[LeasedPart]:
    """Cut leased objects into the parts that lead to a boundary.

    Args:
        reads: as the store described them, each group's from the root on.
        views: the bytes of each.
        tokens: before the boundary.

    Returns:
        The parts, in order.
    """
    parts: list[LeasedPart] = []
    following = [*reads[1:], None]
    for read, view, after in zip(reads, views, following, strict=True):
        is_state = read.kind == pb.OBJECT_KIND_STATE
        goes_on = after is not None and after.group == read.group and not is_state
        end = after.first_token if goes_on and after is not None else tokens
        used = read.tokens if is_state else min(read.tokens, end - read.first_token)
        whole = read.kind == pb.OBJECT_KIND_EXTENT
        count = -(-used // BLOCK) if whole else 1
        for at in range(count):
            start = at * padded(read.part_bytes)
            parts.append(
                LeasedPart(
                    object_id=read.object_id,
                    group=read.group,
                    is_state=is_state,
                    first_token=read.first_token + at * BLOCK,
                    tokens=min(used - at * BLOCK, BLOCK) if whole else used,
                    stored_tokens=BLOCK if whole else read.tokens,
                    header=read.header,
                    payload=view[start : start + read.part_bytes],
                    checksum=read.checksums[at * CHECKSUM_BYTES : (at + 1) * CHECKSUM_BYTES],
                )
            )
    return parts
