"""Files of exported prefixes: taken apart, put together as no exporter would, passed to stores."""

import hashlib
import io
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import msgspec
import xxhash

from bramley.cachestore import artifacts, keys
from bramley.cachestore.artifacts import FileRecord, Manifest, NamespaceRecord
from bramley.cachestore.format import encode_header
from bramley.cachestore.matching import Group
from bramley.cachestore.objects import BLOCK, Kind, Part, StoredObject, padded
from bramley.common.status import RemoteError
from bramley.protos.v1 import cachestore_pb2 as pb
from support.store import KV, identity, payload

if TYPE_CHECKING:
    from bramley.protos.v1.cachestore_pb2_grpc import CacheStoreServiceAsyncStub

PART_BYTES = 20_000
ROOT = keys.root(identity())


async def export_to(
    stub: "CacheStoreServiceAsyncStub", path: Path, object_ids: Sequence[str] = ()
) -> pb.ExportResponse:
    """Export objects, all if none is named."""
    if not object_ids:
        listed = (await stub.List(pb.ListRequest())).objects
        object_ids = [one.object_id for one in listed]
    call = stub.Export(pb.ExportRequest(path=str(path), object_ids=object_ids))
    return [at async for at in call][-1]


async def import_from(stub: "CacheStoreServiceAsyncStub", path: Path) -> pb.ImportResponse:
    """Import a file."""
    return [at async for at in stub.Import(pb.ImportRequest(path=str(path)))][-1]


async def import_refused(stub: "CacheStoreServiceAsyncStub", path: Path) -> RemoteError:
    """Import a file that is to be refused: why it was."""
    try:
        await import_from(stub, path)
    except grpc.aio.AioRpcError as error:
        return RemoteError(error)
    raise AssertionError("it was taken in")


@dataclass
class Member:
    """One file in an archive."""

    name: str
    content: bytes
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    size: int | None = None  # that its header tells, if not the right one


def take_apart(path: Path) -> list[Member]:
    """Read an archive as any tar."""
    with tarfile.open(path) as archive:
        found: list[Member] = []
        for info in archive.getmembers():
            content = archive.extractfile(info)
            assert content is not None
            found.append(Member(info.name, content.read()))
    return found


def put_together(members: Sequence[Member]) -> bytes:
    """Write an archive of whatever is asked for."""
    out = io.BytesIO()
    for one in members:
        info = tarfile.TarInfo(one.name)
        info.type, info.linkname, info.mode = one.kind, one.link, 0o600
        info.size = len(one.content) if one.size is None else one.size
        out.write(info.tobuf(tarfile.GNU_FORMAT) + one.content)
        out.write(bytes(-len(one.content) % tarfile.BLOCKSIZE))
    out.write(bytes(2 * tarfile.BLOCKSIZE))
    out.write(bytes(-out.tell() % tarfile.RECORDSIZE))
    return out.getvalue()


def with_manifest(members: Sequence[Member], change: Callable[[dict[str, object]], None]) -> bytes:
    """Write an archive whose manifest was changed, as long as before where that can be."""
    manifest = msgspec.json.decode(members[0].content, type=dict[str, object])
    change(manifest)
    text = msgspec.json.encode(manifest).ljust(len(members[0].content))
    return put_together([Member(members[0].name, text), *members[1:]])


def stored_object(
    kind: Kind,
    tokens: bytes,
    *,
    first_block: int = 0,
    group: str = "kv",
    **fields: object,
) -> tuple[StoredObject, bytes]:
    """An object of the tokens from ``first_block`` on, and its payload."""
    chains = keys.chain(ROOT, tokens)
    own = tokens[first_block * BLOCK * 4 :]
    parent = chains[(first_block - 1) * 32 : first_block * 32] if first_block else ROOT
    if kind == "extent":
        ends = [chains[at : at + 32] for at in range(first_block * 32, len(chains), 32)]
    else:
        ends = [keys.tail_hash(parent, own) if own else parent]
    pieces = [payload(end, PART_BYTES) for end in ends]
    parts = tuple(
        Part(
            chain=end,
            tokens=BLOCK if kind == "extent" else len(own) // 4,
            nbytes=PART_BYTES,
            checksum=xxhash.xxh3_128_digest(piece),
        )
        for end, piece in zip(ends, pieces, strict=True)
    )
    stored = StoredObject(
        id=hashlib.sha256(kind.encode() + b"".join(ends)).hexdigest()[:32],
        root=ROOT,
        kind=kind,
        group=group,
        parent=parent,
        first_token=first_block * BLOCK,
        token_ids_le=own,
        parts=parts,
        header=b"header",
    )
    whole = b"".join(piece.ljust(padded(len(piece)), b"\0") for piece in pieces)
    return msgspec.structs.replace(stored, **fields), whole


def forged(
    objects: Sequence[tuple[StoredObject, bytes]],
    groups: Sequence[Group] = (KV,),
    **changes: object,
) -> bytes:
    """Write an archive of objects that may be wrong, with right sums.

    Args:
        objects: with their payloads.
        groups: of their namespace.
        changes: to the manifest.

    Returns:
        Its bytes.
    """
    contents = [encode_header(stored) + whole for stored, whole in objects]
    files: list[FileRecord] = [
        artifacts.file_record(stored, len(content), hashlib.sha256(content).hexdigest())
        for (stored, _), content in zip(objects, contents, strict=True)
    ]
    record = NamespaceRecord(root=ROOT.hex(), identity=identity(), groups=tuple(groups))
    manifest = Manifest(namespaces=(record,), files=tuple(files))
    text = artifacts.encode_manifest(msgspec.structs.replace(manifest, **changes))
    pairs = zip(files, contents, strict=True)
    members = [Member(one.name, content) for one, content in pairs]
    return put_together([Member(artifacts.MANIFEST, text), *members])
