"""Hands a snapshot over to the store: reserve, fill, seal. A refusal is an answer."""

import asyncio
from collections.abc import AsyncIterator, Callable

from bramley.cachestore import keys, wire
from bramley.cachestore.copying import checksums_of
from bramley.cachestore.exchange import Published, Refusal, Snapshot
from bramley.cachestore.link import Link
from bramley.cachestore.objects import padded
from bramley.cachestore.staging import Staged
from bramley.common.wire import short_name, to_seconds
from bramley.protos.v1 import cachestore_pb2 as pb

WAIT_S = 5.0  # nobody waits for it
WRITE_BYTES = 1 << 20
SLOWEST_RATE = 200e6  # bytes a second: what a call that moves bytes is given beside its wait


async def publish(
    link: Link, staged: Staged, snapshot: Snapshot, give_up: Callable[[pb.Reservation], None]
) -> Published | Refusal:
    """Publish what lies in staging.

    Args:
        link: to the store.
        staged: of this link, with the payload.
        snapshot: what it is.
        give_up: told of a reservation that comes to nothing.

    Returns:
        Where it is, or why it is not.

    Raises:
        AioRpcError: the store failed, or finds fault with the snapshot.
    """
    sizes, chains = snapshot.sizes, snapshot.chains
    reserved = await link.stub.Reserve(
        pb.ReserveRequest(
            root=snapshot.root,
            connection_id=link.id,
            kind=wire.KINDS[snapshot.kind],
            group=snapshot.group,
            parent=snapshot.parent,
            chain=chains[-keys.HASH_BYTES :],
            first_token=snapshot.first_token,
            tokens=snapshot.tokens,
            bytes=sum(sizes),
        ),
        timeout=_patience_s(snapshot),
    )
    match reserved.WhichOneof("answer"):
        case "existing_object_id":
            return Published(reserved.existing_object_id, existed=True)
        case "reservation":
            pass
        case _:
            has_hint = reserved.HasField("retry_after")
            after_s = to_seconds(reserved.retry_after) if has_hint else None
            return Refusal(short_name(pb.ReserveResponse.Refusal, reserved.refusal), after_s)
    try:
        return await _fill(link, staged, snapshot, reserved.reservation)
    except BaseException:
        give_up(reserved.reservation)
        raise


async def _fill(link: Link, staged: Staged, snapshot: Snapshot, lease: pb.Reservation) -> Published:
    sizes, timeout_s = snapshot.sizes, _patience_s(snapshot)
    payload = staged.view[: sum(map(padded, sizes))]
    checksums = await asyncio.to_thread(checksums_of, payload, sizes)
    request = pb.SealRequest(
        lease_id=lease.lease_id,
        generation=lease.generation,
        block_hashes=snapshot.chains,
        token_ids_le=snapshot.token_ids_le,
        checksums=b"".join(checksums),
        header=snapshot.header,
        session_key=snapshot.session_key,
        prompt_boundary=snapshot.prompt_boundary,
    )
    if link.segments is None:
        await link.stub.Write(_pieces(lease, payload), timeout=timeout_s)
    else:
        request.source.segment_id = staged.staging.segment_id
        request.source.offset, request.source.bytes = staged.offset, len(payload)
    answer = await link.stub.Seal(request, timeout=timeout_s)
    return Published(answer.object_id, is_spilled=answer.promise >= pb.PROMISE_SPILLED)


def _patience_s(snapshot: Snapshot) -> float:
    return WAIT_S + sum(map(padded, snapshot.sizes)) / SLOWEST_RATE


async def _pieces(lease: pb.Reservation, payload: memoryview) -> AsyncIterator[pb.WriteRequest]:
    for offset in range(0, len(payload), WRITE_BYTES):
        yield pb.WriteRequest(
            lease_id=lease.lease_id,
            generation=lease.generation,
            offset=offset,
            data=bytes(payload[offset : offset + WRITE_BYTES]),
        )
