"""The store's values as messages of the proto, and back."""

from collections.abc import Iterable, Sequence

from bramley.cachestore.catalogue import Entry
from bramley.cachestore.keys import Identity
from bramley.cachestore.leases import Wish
from bramley.cachestore.matching import Boundary, Found, Group, Use
from bramley.cachestore.objects import Kind, padded
from bramley.common.errors import InvalidRequest
from bramley.common.wire import to_duration
from bramley.protos.v1 import cachestore_pb2 as pb

KINDS: dict[Kind, pb.ObjectKind.ValueType] = {
    "extent": pb.OBJECT_KIND_EXTENT,
    "state": pb.OBJECT_KIND_STATE,
    "tail": pb.OBJECT_KIND_TAIL,
}
_KINDS_BACK: dict[int, Kind] = {number: kind for kind, number in KINDS.items()}


def identity(message: pb.NamespaceIdentity) -> Identity:
    """Read an identity; an empty draft or salt is none."""
    return Identity(
        weights_digest=message.weights_digest,
        config_digest=message.config_digest,
        tokenizer_digest=message.tokenizer_digest,
        adapter_digests=tuple(message.adapter_digests),
        kv_scheme=tuple(message.kv_scheme),
        layout=message.layout,
        numerics_epoch=message.numerics_epoch,
        draft_digest=message.draft_digest or None,
        salt=message.salt or None,
    )


def identity_message(value: Identity) -> pb.NamespaceIdentity:
    """Write an identity."""
    return pb.NamespaceIdentity(
        weights_digest=value.weights_digest,
        config_digest=value.config_digest,
        tokenizer_digest=value.tokenizer_digest,
        adapter_digests=value.adapter_digests,
        kv_scheme=value.kv_scheme,
        layout=value.layout,
        numerics_epoch=value.numerics_epoch,
        draft_digest=value.draft_digest or "",
        salt=value.salt or "",
    )


def groups(messages: Iterable[pb.StateGroup]) -> list[Group]:
    """Read a namespace's groups."""
    return [Group(one.name, one.required, one.sliceable) for one in messages]


def wish(request: pb.ReserveRequest) -> Wish:
    """Read what a writer wants room for.

    Returns:
        The wish.

    Raises:
        InvalidRequest: of no kind.
    """
    kind = _KINDS_BACK.get(request.kind)
    if kind is None:
        raise InvalidRequest("kind", "is not set")
    return Wish(
        root=request.root,
        kind=kind,
        group=request.group,
        parent=request.parent or request.root,
        chain=request.chain,
        first_token=request.first_token,
        tokens=request.tokens,
        nbytes=request.bytes,
    )


def object_read(entry: Entry, tier: pb.Tier.ValueType) -> pb.ObjectRead:
    """Describe an object that is in RAM to its reader."""
    stored = entry.object
    assert entry.run is not None
    return pb.ObjectRead(
        object_id=entry.id,
        kind=KINDS[stored.kind],
        group=stored.group,
        tier=tier,
        first_token=stored.first_token,
        tokens=stored.tokens,
        segment=pb.Segment(
            segment_id=entry.run.segment_id, offset=entry.run.offset, bytes=stored.payload_bytes
        ),
        checksums=b"".join(part.checksum for part in stored.parts),
        header=stored.header,
        part_bytes=stored.parts[0].nbytes,
    )


def promise(entry: Entry) -> pb.Promise.ValueType:
    """What an object survives by now."""
    return pb.PROMISE_SPILLED if entry.on_disk else pb.PROMISE_HELD


def stored_object(entry: Entry, now_s: float) -> pb.StoredObject:
    """Describe an object to an administrator."""
    stored = entry.object
    pin_left_s = entry.pinned_until_s - now_s
    in_ram = [pb.TIER_RAM] if entry.run is not None else []
    return pb.StoredObject(
        object_id=entry.id,
        root=stored.root,
        kind=KINDS[stored.kind],
        first_token=stored.first_token,
        tokens=stored.tokens,
        bytes=stored.payload_bytes,
        promise=promise(entry),
        tiers=[*in_ram, *([pb.TIER_SSD] if entry.on_disk else [])],
        group=stored.group,
        pinned=entry.pinned_until_s > now_s,
        pin_left=to_duration(pin_left_s) if pin_left_s > 0 else None,
        session_key=stored.session_key,
        idle=to_duration(max(0.0, now_s - entry.used_s)) if entry.used_s else None,
    )


def namespace(
    root: bytes, value: Identity | None, *, objects: int, size: int, is_open: bool
) -> pb.StoredNamespace:
    """Describe a namespace to an administrator."""
    return pb.StoredNamespace(
        root=root,
        identity=None if value is None else identity_message(value),
        objects=objects,
        bytes=size,
        open=is_open,
    )


def tier_bytes(uses: Sequence[Use]) -> tuple[int, int]:
    """Bytes to be read from RAM and from the disk: leading parts, with their padding."""
    ram = ssd = 0
    for use in uses:
        parts = use.entry.object.parts
        part_tokens = max(1, parts[0].tokens)
        count = max(1, -(-use.tokens // part_tokens))
        size = count * padded(parts[0].nbytes)
        if use.entry.run is None:
            ssd += size
        else:
            ram += size
    return ram, ssd


def boundary(value: Boundary, restore_s: float) -> pb.MatchResponse.Boundary:
    """Describe a boundary."""
    ram, ssd = tier_bytes(value.uses)
    return pb.MatchResponse.Boundary(
        tokens=value.tokens,
        ram_bytes=ram,
        ssd_bytes=ssd,
        restore_estimate=to_duration(restore_s),
        object_ids=[use.entry.id for use in value.uses],
    )


def match_response(found: Found, restore_s: Iterable[float]) -> pb.MatchResponse:
    """Describe what was found, with an estimate for each boundary."""
    pairs = zip(found.boundaries, restore_s, strict=True)
    return pb.MatchResponse(
        boundaries=[boundary(value, estimate_s) for value, estimate_s in pairs],
        missing_groups=found.missing_groups,
    )
