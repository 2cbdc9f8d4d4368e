"""Asks a node's cache store itself, past the router: what it holds, and what is to become of it."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

import grpc

from bramley.client import replies
from bramley.client.cache import (
    CachedNamespace,
    CachedObject,
    Evicted,
    Exported,
    Imported,
    Pinned,
    StoreStats,
    Verified,
)
from bramley.common.errors import StoreLost
from bramley.common.rpc import CHANNEL_OPTIONS
from bramley.common.status import RemoteError
from bramley.common.wire import short_name, to_duration, to_seconds
from bramley.protos.v1 import cachestore_pb2 as pb
from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceStub

ANSWER_S = 30.0  # for what reads no payload
SHORT_ID = 8
_PROVED_A_CALL = 8
_GRPCS_OWN = {"UNAVAILABLE", "UNKNOWN", "CANCELLED"}  # the store's errors have a reason

OnProgress = Callable[[float], None]


class Store:
    """One store, over a channel that ends with the block.

    Each call raises RemoteError, or StoreLost if the store does not answer it.

    Args:
        target: gRPC target.
        models: roots of their namespaces by name, as far as they are known.

    Attributes:
        models: the same; of several with one root the first gives its objects their name.
    """

    def __init__(self, target: str, models: Mapping[str, Sequence[bytes]] | None = None) -> None:
        self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._stub = CacheStoreServiceStub(self._channel)
        self.models = models or {}
        self._names: dict[bytes, str] = {}
        for name, roots in self.models.items():
            for root in roots:
                self._names.setdefault(root, name)

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._channel.close()

    def stats(self, timeout_s: float = ANSWER_S) -> StoreStats:
        """Read its counts."""
        with _answers():
            told = self._stub.Stats(pb.StatsRequest(), timeout=timeout_s)
        return StoreStats(counters=dict(told.counters), gauges=dict(told.gauges))

    def namespaces(self) -> list[CachedNamespace]:
        """Describe all namespaces."""
        with _answers():
            told = self._stub.ListNamespaces(pb.ListNamespacesRequest(), timeout=ANSWER_S)
        return [
            CachedNamespace(
                root=one.root.hex(),
                model=self._names.get(one.root, ""),
                identity=_fields(one.identity),
                objects=one.objects,
                bytes=one.bytes,
            )
            for one in told.namespaces
        ]

    def objects(
        self, *, root: bytes = b"", session: str = "", id_prefix: str = "", page: int = 0
    ) -> Iterator[CachedObject]:
        """Describe objects by id, one page after the other.

        Args:
            root: of their namespace; empty for all.
            session: under which they were stored; empty for all.
            id_prefix: with which their ids begin.
            page: how many are asked for at a time; 0 for as many as it takes.

        Yields:
            Each.
        """
        last = ""
        while True:
            request = pb.ListRequest(
                root=root,
                session_key=session,
                object_id_prefix=id_prefix,
                after_object_id=last,
                limit=page,
            )
            with _answers():
                told = self._stub.List(request, timeout=ANSWER_S).objects
            if not told:
                return
            yield from map(self._object, told)
            last = told[-1].object_id

    def _object(self, told: pb.StoredObject) -> CachedObject:
        return CachedObject(
            id=told.object_id,
            short_id=told.object_id[: max(SHORT_ID, told.unique_characters)],
            namespace=told.root.hex(),
            model=self._names.get(told.root, ""),
            kind=short_name(pb.ObjectKind, told.kind).lower(),
            group=told.group,
            first_token=told.first_token,
            end_token=told.first_token + told.tokens,
            bytes=told.bytes,
            promise=short_name(pb.Promise, told.promise).lower(),
            tiers=[short_name(pb.Tier, tier).lower() for tier in told.tiers],
            session=told.session_key,
            idle_s=to_seconds(told.idle) if told.HasField("idle") else None,
            pinned_s=to_seconds(told.pin_left),
        )

    def pin(self, object_ids: Sequence[str], seconds: float) -> Pinned:
        """Keep objects from leaving for a while."""
        request = pb.PinRequest(object_ids=object_ids, ttl=to_duration(seconds))
        with _answers():
            told = self._stub.Pin(request, timeout=ANSWER_S)
        return Pinned(objects=told.pinned, bytes=told.pinned_bytes, bytes_max=told.pinned_bytes_max)

    def unpin(self, object_ids: Sequence[str]) -> int:
        """Let objects leave again: how many there were."""
        with _answers():
            request = pb.UnpinRequest(object_ids=object_ids)
            return self._stub.Unpin(request, timeout=ANSWER_S).unpinned

    def evict(self, object_ids: Sequence[str]) -> Evicted:
        """Remove objects, as far as nothing speaks against it."""
        with _answers():
            told = self._stub.Evict(pb.EvictRequest(object_ids=object_ids), timeout=ANSWER_S)
        return Evicted(
            objects=told.evicted,
            bytes=told.bytes,
            held=told.held,
            pinned=told.pinned,
            followed=told.followed,
        )

    def verify(self, on_progress: OnProgress, *, files_only: bool = False) -> Verified:
        """Have it read all of its bytes; it sets damaged ones aside.

        Args:
            on_progress: told the share that is done, 0 to 1.
            files_only: whether what is in RAM is not looked at.

        Returns:
            What was found.
        """
        proved, corrupt, unreadable, missing, last = 0, list[str](), 0, 0, ""
        while True:
            request = pb.ScrubRequest(
                after_object_id=last, limit=_PROVED_A_CALL, files_only=files_only
            )
            with _answers():
                told = self._stub.Scrub(request)
            proved, last = proved + told.objects, told.last_object_id
            corrupt += told.corrupt_object_ids
            unreadable += told.unreadable
            missing += told.missing
            on_progress(_share(proved, told.objects_total))
            if not last:
                return Verified(
                    objects=proved, corrupt=corrupt, unreadable=unreadable, missing=missing
                )

    def export_to(self, path: str, object_ids: Sequence[str], on_progress: OnProgress) -> Exported:
        """Have it write prefixes to a new file of its machine; ``path`` is absolute."""
        last = pb.ExportResponse()
        with _answers():
            for last in self._stub.Export(pb.ExportRequest(path=path, object_ids=object_ids)):
                on_progress(_share(last.bytes, last.bytes_total))
        return Exported(objects=last.objects, bytes=last.bytes, left_out=last.left_out)

    def import_from(self, path: str, on_progress: OnProgress) -> Imported:
        """Have it take in the prefixes of a file of its machine; ``path`` is absolute."""
        last = pb.ImportResponse()
        with _answers():
            for last in self._stub.Import(pb.ImportRequest(path=path)):
                # Proving and storing are each a half of the work.
                done = last.bytes_proved + (last.bytes if last.objects else 0)
                on_progress(_share(done, 2 * last.bytes_total))
        return Imported(
            objects=last.objects, bytes=last.bytes, skipped=last.skipped, held=last.held
        )


@contextmanager
def _answers() -> Generator[None]:
    """Raise what it answered with, or that it does not answer any more.

    Yields:
        Nothing.

    Raises:
        StoreLost: it is not there, or died or was stopped under the call.
        RemoteError: it answered with an error.
    """
    try:
        with replies.remote_errors():
            yield
    except RemoteError as error:
        if error.reason not in _GRPCS_OWN:
            raise
        is_there = "connect" not in error.message
        words = "died or was stopped under the call" if is_there else "does not answer"
        raise StoreLost(f"the cache store {words}") from error


def _share(done: int, total: int) -> float:
    return min(1.0, done / total) if total else 1.0


def _fields(identity: pb.NamespaceIdentity) -> dict[str, str | list[str]]:
    """Say an identity; what it does not set is left out."""
    return {
        field.name: value if isinstance(value, str) else [str(item) for item in value]
        for field, value in identity.ListFields()
    }
