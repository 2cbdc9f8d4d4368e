"""The worker's use of the cache store: finds stored prefixes, publishes what was saved.

On the event loop, with checksums on threads. A store that is absent, slow or wrong is a
miss; nothing here fails a request.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec

from bramley.cachestore import keys, wire
from bramley.cachestore.client import StoreClient
from bramley.cachestore.exchange import Refusal, Snapshot
from bramley.cachestore.keys import Identity
from bramley.cachestore.lease import Lease, LeasedPart
from bramley.cachestore.matching import Group
from bramley.cachestore.objects import BLOCK, EXTENT_BLOCKS_MAX, padded
from bramley.common.errors import NotLoaded
from bramley.common.logs import facts
from bramley.protos.v1 import cachestore_pb2, types_pb2
from bramley.worker.cache.saved import Restore, Saving, StoredPart, StoredState
from bramley.worker.cache.snapshot import Span
from bramley.worker.engine.outputs import Saved
from bramley.worker.owed import HELD_BACK, PARENT_MISSING, REJECTED, Account, Outcome

if TYPE_CHECKING:
    from bramley.cachestore.staging import Staged

log = logging.getLogger(__name__)

KV = Group("kv", required=True, sliceable=True)
STATE = Group("state", required=True, sliceable=False)
TOKEN_BYTES = 4
WORTH_TOKENS = 16  # fewer are computed sooner than fetched
SLACK_S = 0.25  # an estimate is only put right by trying, so close calls are fetched
SETTLE_S = 1.0
RATE_MOVED = 1.5  # times faster or slower than the store was told
CLOSE_S = 5.0
ROOTS_MAX = 256  # salts in use at a time
RECALLED_MAX = 16  # as many as one request has answers
_HEADER_END = b"\0"
_FAULT = Outcome(REJECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """What the store must know of a model's state.

    Attributes:
        identity: of its namespaces; each salt makes one of its own.
        token_bytes: of one token, over all layers that can be cut anywhere; 0 without any.
        state_bytes: what the other layers take together at a boundary of so many tokens; 0
            without any.
    """

    identity: Identity
    token_bytes: int
    state_bytes: Callable[[int], int]

    @property
    def is_stored(self) -> bool:
        """Whether anything of it can be."""
        return bool(self.token_bytes) or self.has_state

    @property
    def has_state(self) -> bool:
        """Whether there are layers that are stored whole."""
        return self.state_bytes(1) > 0

    @property
    def groups(self) -> list[Group]:
        """What a prefix consists of."""
        return [*([KV] if self.token_bytes else []), *([STATE] if self.has_state else [])]

    def bytes_of(self, span: Span) -> int:
        """Bytes of each part of a span."""
        if span.kind == "state":
            return self.state_bytes(span.stop)
        return self.token_bytes * span.parts[0]


@dataclass(frozen=True, slots=True)
class Found:
    """A stored prefix, verified and ready to be copied."""

    restore: Restore
    cached: types_pb2.CachedTokens


class PrefixCache:
    """One model's prefixes in the store. Make it on the event loop.

    Args:
        client: of the store.
        state: of the model.
        forget: told of each namespace that is kept no longer.
        settled: told what became of each saved span.

    Attributes:
        has_forgotten_roots: whether there ever was one.
    """

    def __init__(
        self,
        client: StoreClient,
        state: StateFacts,
        forget: Callable[[bytes], None] = lambda _: None,
        settled: Callable[[Saved, Outcome], None] = lambda _, __: None,
    ) -> None:
        self._client = client
        self._state = state
        self._forget = forget
        self._tell = settled
        self._header = state.identity.layout.encode()
        self._roots: OrderedDict[str, bytes] = OrderedDict()  # by salt, the newest last
        self.has_forgotten_roots = False
        self._told_no_room = False
        self._told_rate = 0.0
        self._opening: dict[bytes, asyncio.Task[bytes]] = {}
        self._publishing: asyncio.Queue[Saved] = asyncio.Queue()
        self._publisher = asyncio.create_task(self._publish_all())
        self.root("")  # so that the store knows the model before its first request

    @property
    def roots(self) -> list[bytes]:
        """The namespaces opened so far, as far as they are kept."""
        return list(self._roots.values())

    def root(self, salt: str) -> bytes:
        """The namespace of requests with this salt; opened in the store when first asked for."""
        if salt not in self._roots:
            self._open(salt)
            self._bound_roots()
        self._roots.move_to_end(salt)
        return self._roots[salt]

    def _open(self, salt: str) -> None:
        identity = self._identity(salt)
        root = self._roots[salt] = keys.root(identity)
        if not self._state.is_stored:
            return
        opening = asyncio.create_task(
            self._client.open_namespace(identity, self._state.groups, self._told_rate)
        )
        self._opening[root] = opening

        def opened(done: "asyncio.Task[bytes]") -> None:
            if self._opening.get(root) is done:
                del self._opening[root]

        opening.add_done_callback(opened)

    def _tell_rate(self, prefill_rate: float) -> None:
        """Have the store price what it keeps of this model, once more where the rate has moved."""
        low, high = sorted((prefill_rate, self._told_rate))
        if high > RATE_MOVED * low:
            self._told_rate = prefill_rate
            for salt in self._roots:
                self._open(salt)

    def _bound_roots(self) -> None:
        """Forget the namespace that was asked for longest ago; never the one without a salt."""
        if len(self._roots) > ROOTS_MAX:
            self._roots.move_to_end("")
            _, root = self._roots.popitem(last=False)
            if opening := self._opening.pop(root, None):
                opening.cancel()
            self._client.forget_namespace(root)
            self._forget(root)
            self.has_forgotten_roots = True

    async def recall(self, root: bytes, session_key: str) -> list[bytes] | None:
        """Ask for the newest prompts and answers of a session.

        Returns:
            Token ids of each, oldest first; None where no store said.
        """
        if not self._state.is_stored:
            return []
        if opening := self._opening.get(root):
            await asyncio.wait([opening])
        found = await self._client.recall(root, session_key, RECALLED_MAX)
        if found is None:
            return None
        whole = [self._before(one.header, one.first_token) + one.token_ids_le for one in found]
        pairs = zip(whole, found, strict=True)
        size = [(ids, TOKEN_BYTES * one.first_token + len(one.token_ids_le)) for ids, one in pairs]
        return [ids for ids, expected in reversed(size) if len(ids) == expected]

    async def close_session(self, salt: str, session_key: str) -> bool:
        """Have the store protect a session no longer; says whether it knew it."""
        return await self._client.close_session(self.root(salt), session_key)

    async def find(
        self, root: bytes, chains: bytes, token_ids_le: bytes, prefill_rate: float
    ) -> Found | None:
        """Find and lease the longest stored prefix of a prompt, if it is worth its restore.

        Args:
            root: of the namespace.
            chains: hashes of the prompt's whole blocks.
            token_ids_le: the prompt.
            prefill_rate: measured tokens a second; 0 while unknown.

        Returns:
            A lease to copy from; None for a miss.

        Raises:
            CancelledError: the caller left; nothing stays leased.
        """
        if not self._state.is_stored:
            return None
        self._tell_rate(prefill_rate)
        match = await self._client.match(root, chains, token_ids_le)
        if match is None:
            return None
        at = match.boundaries[0]
        recompute_s = at.tokens / prefill_rate if prefill_rate else float("inf")
        if at.tokens < WORTH_TOKENS or at.restore_s > recompute_s + SLACK_S:
            return None
        lease = await self._client.acquire(match, at)
        if lease is None:
            return None
        try:
            restore = self._restorable(lease, await lease.verify_all(), at.tokens)
        except asyncio.CancelledError:
            lease.release()
            raise
        if restore is None:
            lease.release()
            return None
        from_ssd = at.ssd_bytes / max(at.ram_bytes + at.ssd_bytes, 1)
        ssd = round(restore.tokens * from_ssd)
        return Found(restore, types_pb2.CachedTokens(ram=restore.tokens - ssd, ssd=ssd))

    def saving(
        self, boundary: int, found: Found | None, root: bytes, session_key: str = ""
    ) -> Saving | None:
        """Say how a request is to be saved.

        Args:
            boundary: leading prompt tokens that the next turn will share.
            found: what is stored of the prompt.
            root: of the namespace.
            session_key: of the conversation.

        Returns:
            None where there never was a store, or state and two blocks do not fit staging.
        """
        if not self._state.is_stored:
            return None
        state = padded(self._state.state_bytes(boundary))
        block = padded(self._state.token_bytes * BLOCK)
        room = self._client.staging_bytes - state
        if room < 2 * block:
            self._tell_no_room(state + 2 * block)
            return None
        # Two extents at most fill the staging: one is handed over while the next is copied.
        extent_blocks = min(room // (2 * block), EXTENT_BLOCKS_MAX) if block else 1
        return Saving(
            stage=self._client.stage,
            boundary=boundary,
            extent_blocks=extent_blocks,
            pauses=self._state.has_state,
            root=root,
            session_key=session_key,
            account=Account(stored=found.restore.tokens if found else 0),
        )

    def _tell_no_room(self, nbytes: int) -> None:
        staging = self._client.staging_bytes
        if staging and not self._told_no_room:
            self._told_no_room = True
            log.warning(
                "prompts are not stored: raise store.staging_bytes",
                extra=facts(needed=nbytes, staging=staging),
            )

    def publish(self, saved: Saved) -> None:
        """Hand a saved span over in the background, after those that came before."""
        self._publishing.put_nowait(saved)

    async def explain(self, salt: str, token_ids_le: bytes) -> cachestore_pb2.ExplainResponse:
        """Ask the store in words how much of a prompt it has, and why not more.

        Returns:
            Its answer.

        Raises:
            NotLoaded: there is no store.
        """
        link = self._client.link
        if link is None:
            raise NotLoaded("no cache store is running", reason="NO_STORE", retry_after_s=1.0)
        identity = self._identity(salt)
        return await link.stub.Explain(
            cachestore_pb2.ExplainRequest(
                identity=wire.identity_message(identity),
                block_hashes=keys.chain(keys.root(identity), token_ids_le),
                token_ids_le=token_ids_le,
            ),
            timeout=5.0,
        )

    async def settled(self, within_s: float = SETTLE_S) -> None:
        """Wait, but no longer than that, until all that was handed over is published."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._publishing.join()

    async def close(self) -> None:
        """Publish what waits, within bounds, and end."""
        await self.settled(CLOSE_S)
        self._publisher.cancel()
        await self._client.close()

    def _identity(self, salt: str) -> Identity:
        base = self._state.identity
        return msgspec.structs.replace(base, salt=salt) if salt else base

    async def _publish_all(self) -> None:
        # One after the other: an extent before those that follow it.
        while True:
            saved = await self._publishing.get()
            outcome = _FAULT
            task = asyncio.create_task(self._publish(saved))
            try:
                await asyncio.wait([task])
                if task.cancelled():
                    log.error("a span was not stored: its call was cancelled")
                elif fault := task.exception():
                    log.error("a span was not stored", exc_info=fault)
                else:
                    outcome = task.result()
            finally:
                saved.staged.release()
                self._tell(saved, outcome)
                self._publishing.task_done()

    async def _publish(self, saved: Saved) -> Outcome:
        account, handed = saved.saving.account, saved.handed
        if handed.attempt <= account.void:  # one that comes before it was refused
            return Outcome(HELD_BACK)
        snapshot = self._snapshot(saved)
        staged = cast("Staged", saved.staged)  # as our own saving() took it from the client
        answer = await self._client.publish(staged, snapshot)
        if not isinstance(answer, Refusal):
            return Outcome()
        account.void = max(account.void, handed.attempt)
        reason = answer.reason.lower()
        log.info("not stored", extra=facts(reason=reason, tokens=snapshot.tokens))
        kept = await self._kept(saved, snapshot) if reason == PARENT_MISSING else 0
        return Outcome(reason, answer.retry_after_s or 0.0, kept)

    async def _kept(self, saved: Saved, snapshot: Snapshot) -> int:
        """Ask for how many tokens before a snapshot the store has, in whole blocks."""
        end = (snapshot.first_token + 1) * TOKEN_BYTES  # a match leaves one token to compute
        before = saved.token_ids_le[:end]
        match = await self._client.match(snapshot.root, keys.chain(snapshot.root, before), before)
        tokens = match.boundaries[0].tokens if match is not None else 0
        return tokens // BLOCK * BLOCK

    def _snapshot(self, saved: Saved) -> Snapshot:
        span, tokens, root = saved.span, saved.token_ids_le, saved.saving.root
        before = tokens[: span.first * TOKEN_BYTES]
        chains = keys.chain(root, before)
        return Snapshot(
            root=root,
            kind=span.kind,
            group=(STATE if span.kind == "state" else KV).name,
            parent=chains[-keys.HASH_BYTES :] if chains else root,
            first_token=span.first,
            token_ids_le=tokens[len(before) :],
            part_bytes=self._state.bytes_of(span),
            header=self._header_of(before),
            session_key=saved.saving.session_key,
            prompt_boundary=span.stop == saved.saving.boundary,
        )

    def _header_of(self, before: bytes) -> bytes:
        """Describe a part; where no block has the tokens before it, they are in here."""
        return self._header if self._state.token_bytes else self._header + _HEADER_END + before

    def _before(self, header: bytes, tokens: int) -> bytes:
        return header[len(self._header) + 1 :] if tokens else b""

    def _restorable(self, lease: Lease, whole: Sequence[bool], tokens: int) -> Restore | None:
        """Take what a row can start from.

        Returns:
            All that leads to the boundary. Without states, what comes before the first damaged
            part will do as well. None where there is nothing.
        """
        parts: list[StoredPart] = []
        state: StoredState | None = None
        reached = 0
        for part, is_whole in zip(lease.parts, whole, strict=True):
            if not is_whole or not self._fits(part, reached):
                log.warning("a stored part is damaged", extra=facts(object=part.object_id))
                break
            if part.is_state:
                state = StoredState(part.first_token + part.tokens, part.payload)
                continue
            parts.append(
                StoredPart(part.first_token, part.tokens, part.stored_tokens, part.payload)
            )
            reached += part.tokens
        if self._state.has_state:
            end = reached if self._state.token_bytes else tokens
            if state is None or not state.tokens == end == tokens:
                return None
        elif not parts:
            return None
        return Restore(tuple(parts), lambda: lease.is_held, lease.release, state)

    def _fits(self, part: LeasedPart, reached: int) -> bool:
        if part.header.partition(_HEADER_END)[0] != self._header:
            return False
        if part.is_state:
            return len(part.payload) == self._state.state_bytes(part.first_token + part.tokens)
        size = self._state.token_bytes * part.stored_tokens
        return part.first_token == reached and len(part.payload) == size
