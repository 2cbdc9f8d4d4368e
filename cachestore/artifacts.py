"""The file that carries prefixes from one store to another: a tar of objects' files. Pure.

    manifest.json       the namespaces in readable form; name, size and SHA-256 of what follows
    objects/<id>.kvx    as it is in a store's folder; whatever others follow from comes first

Each member's place follows from the manifest, and a member must be what the manifest says of
it. So a reader takes nothing on trust: no name becomes a path, and what is more, missing, cut,
linked or out of its place is refused before a byte of it is used. The sums tell damage, not
malice: whoever can write the file can say anything in it.
"""

import re
import tarfile
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated

import msgspec

from bramley.cachestore import keys
from bramley.cachestore.catalogue import TOKEN_BYTES
from bramley.cachestore.format import SUFFIX, NotOurs, decode_header, encode_header
from bramley.cachestore.keys import HASH_BYTES, Identity
from bramley.cachestore.matching import Group
from bramley.cachestore.namespaces import Namespace
from bramley.cachestore.objects import ALIGN, BLOCK, EXTENT_BLOCKS_MAX, Kind, StoredObject
from bramley.common.errors import InvalidRequest

FORMAT = "bramley-prefixes"
VERSION = 1
TAR_BLOCK = tarfile.BLOCKSIZE
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 64 << 20
HEADER_BYTES_MAX = 64 << 20
LENGTH_BYTES = 8
NO_SUM = "0" * 64

_NAME = re.compile(rf"objects/[0-9a-f]{{2,128}}\{SUFFIX}")
_SUM = re.compile(r"[0-9a-f]{64}")
_REGULAR = {tarfile.REGTYPE, tarfile.AREGTYPE}
_WORDS = {
    tarfile.SYMTYPE: "a link",
    tarfile.LNKTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.DIRTYPE: "a folder",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class Unfit(InvalidRequest):
    """The file is not to be taken in."""

    default_reason = "ARTIFACT_DAMAGED"

    def __init__(self, problem: str, *, reason: str | None = None) -> None:
        super().__init__("path", problem, reason=reason)


class Unsafe(Unfit):
    """It holds what no writer of ours puts in."""

    default_reason = "ARTIFACT_UNSAFE"


_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]  # what JSON carries everywhere
_Version = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class NamespaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace; ``root`` is in hex."""

    root: str
    identity: Identity
    groups: tuple[Group, ...]

    @property
    def namespace(self) -> Namespace:
        """The same, for the store."""
        return Namespace(bytes.fromhex(self.root), self.identity, self.groups)


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member, and what is in it: for people, and to be compared with what is really in it."""

    name: str
    size: _Number
    sha256: str
    root: str
    kind: Kind
    group: str
    first_token: _Number
    tokens: _Number


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds.

    Attributes:
        version: of the writer.
        reader: the least version that a reader must know.
    """

    format: str = FORMAT
    version: _Version = VERSION
    reader: _Version = VERSION
    namespaces: tuple[NamespaceRecord, ...]
    files: tuple[FileRecord, ...]


class _Beginning(msgspec.Struct):
    format: str = ""
    reader: _Version = VERSION


# Writing


def file_record(stored: StoredObject, size: int, sha256: str = NO_SUM) -> FileRecord:
    """Describe an object's file; its sum may follow later, and takes as much room."""
    return FileRecord(
        name=f"objects/{stored.id}{SUFFIX}",
        size=size,
        sha256=sha256,
        root=stored.root.hex(),
        kind=stored.kind,
        group=stored.group,
        first_token=stored.first_token,
        tokens=stored.tokens,
    )


def file_size(stored: StoredObject) -> int:
    """Bytes of an object's file."""
    return len(encode_header(stored)) + stored.payload_bytes


def encode_manifest(manifest: Manifest) -> bytes:
    """Write the manifest, filled up to whole blocks."""
    text = msgspec.json.format(msgspec.json.encode(manifest))
    return text.ljust(_whole_blocks(len(text)))


def _whole_blocks(size: int) -> int:
    return -(-size // TAR_BLOCK) * TAR_BLOCK


def tar_header(name: str, size: int) -> bytes:
    """The block before a member's content."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")  # more than 8 GiB, where USTAR ends


def places(manifest_bytes: int, files: Iterable[FileRecord]) -> list[int]:
    """Where the content of each member but the manifest begins; at last, where the file ends."""
    begin = 2 * TAR_BLOCK + manifest_bytes
    *starts, end = accumulate((TAR_BLOCK + one.size for one in files), initial=begin)
    end += TAR_BLOCK  # with the block that ``begin`` counts, two empty ones end a tar
    return [*starts, -(-end // tarfile.RECORDSIZE) * tarfile.RECORDSIZE]


# Reading


def check_member(block: bytes, name: str, size: int, before: Iterable[str] = ()) -> None:
    """Check that a member is the one that is expected in its place.

    Args:
        block: the one before its content.
        name: that is expected.
        size: that is expected.
        before: names of those before it.

    Raises:
        Unfit: it is another one, or has another size.
        Unsafe: it is there twice, out of its place, or of a kind that is not used.
    """
    found = member(block)
    if found.name in before:
        raise Unsafe(f"it holds {_shown(found.name)} twice")
    if found.name != name:
        raise Unsafe(f"it holds {_shown(found.name)} where the manifest has {name}")
    if found.size != size:
        raise Unfit(f"{name} has {found.size} bytes, and {size} by the manifest")


def member(block: bytes) -> tarfile.TarInfo:
    """Read the block before a member's content.

    Returns:
        What it says, of a plain file below the archive.

    Raises:
        Unfit: it is none.
        Unsafe: it is no plain file, or leads out of the archive.
    """
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise Unfit("it is no archive of prefixes, or a damaged one") from error
    if info.name.startswith("/") or ".." in info.name.split("/"):
        raise Unsafe(f"{_shown(info.name)} leads out of it")
    if info.type not in _REGULAR:
        kind = _WORDS.get(info.type, "of a kind that is not used")
        raise Unsafe(f"{_shown(info.name)} in it is {kind}")
    return info


def _shown(name: str) -> str:
    return repr(name[:100])


def decode_manifest(text: bytes) -> Manifest:
    """Read the manifest.

    Returns:
        It, consistent in itself.

    Raises:
        Unfit: it is newer, of another program, or wrong.
    """
    try:
        begins = msgspec.json.decode(text, type=_Beginning)
    except (msgspec.DecodeError, ValueError) as error:
        raise Unfit("its manifest cannot be read") from error
    if begins.format != FORMAT:
        raise Unfit("its manifest is another program's", reason="ARTIFACT_FOREIGN")
    if begins.reader > VERSION:
        problem = f"it is of format {begins.reader}, newer than {VERSION}, the newest known here"
        raise Unfit(problem, reason="ARTIFACT_NEWER")
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, ValueError) as error:
        raise Unfit(f"its manifest is wrong: {error}") from error
    if not manifest.files:
        raise Unfit("it holds no object")
    _check_namespaces(manifest.namespaces)
    _check_files(manifest)
    return manifest


def _check_namespaces(namespaces: Sequence[NamespaceRecord]) -> None:
    for one in namespaces:
        if keys.root(one.identity).hex() != one.root:
            raise Unfit(f"the root {_shown(one.root)} does not stand for its identity")
        if len({group.name for group in one.groups}) != len(one.groups):
            raise Unfit("two groups of a namespace have one name")
        if not any(group.required for group in one.groups):
            raise Unfit("a namespace has no group that is required")
    if len({one.root for one in namespaces}) != len(namespaces):
        raise Unfit("a namespace is in its manifest twice")


def _check_files(manifest: Manifest) -> None:
    roots = {one.root for one in manifest.namespaces}
    seen: set[str] = set()
    for one in manifest.files:
        if not _NAME.fullmatch(one.name):
            raise Unsafe(f"its manifest names {_shown(one.name)}, which is no object's name")
        if one.name in seen:
            raise Unsafe(f"its manifest names {one.name} twice")
        if one.size <= 0 or one.size % ALIGN or not _SUM.fullmatch(one.sha256):
            raise Unfit(f"its manifest has no right size and sum of {one.name}")
        if one.root not in roots:
            raise Unfit(f"its manifest does not tell the namespace of {one.name}")
        seen.add(one.name)


def header_bytes(begin: bytes, size: int) -> int:
    """How long the header of an object's file is.

    Args:
        begin: of the file.
        size: of the file.

    Returns:
        Its bytes.

    Raises:
        Unfit: it has none.
    """
    length = LENGTH_BYTES + int.from_bytes(begin[:LENGTH_BYTES], "little")
    if not LENGTH_BYTES < length <= min(size, HEADER_BYTES_MAX):
        raise Unfit("an object in it ends before its header does")
    return length


def decode_object(header: bytes, record: FileRecord) -> StoredObject:
    """Read the header of an object's file.

    Returns:
        The object that the manifest says is there.

    Raises:
        Unfit: it is another one, damaged, or newer.
    """
    try:
        stored = decode_header(header)
    except NotOurs as error:
        reason = "ARTIFACT_NEWER" if error.newer else "ARTIFACT_FOREIGN"
        raise Unfit(f"{record.name} in it is {error}", reason=reason) from error
    except ValueError as error:
        raise Unfit(f"{record.name} in it is damaged: {error}") from error
    if not stored.parts or file_record(stored, record.size, record.sha256) != record:
        raise Unfit(f"{record.name} in it is not the object that its manifest tells of")
    if record.size != len(header) + stored.payload_bytes:
        raise Unfit(f"{record.name} in it has not as many bytes as its header says")
    return stored


class Line:
    """What an object may follow: the blocks that came before it in the same file."""

    def __init__(self, namespaces: Iterable[NamespaceRecord]) -> None:
        self._namespaces = {bytes.fromhex(one.root): one.namespace for one in namespaces}
        self._ends: dict[tuple[bytes, str, bytes], int] = {}

    def add(self, stored: StoredObject) -> None:
        """Check an object, and let others follow from it.

        Raises:
            Unfit: it is no object of its namespace, or what it follows is not there.
        """
        namespace = self._namespaces[stored.root]
        _check_shape(stored, namespace)
        _check_chain(stored)
        self._check_parent(stored, namespace)
        if stored.kind == "extent":
            end = stored.first_token
            for part in stored.parts:
                end += part.tokens
                self._ends[stored.root, stored.group, part.chain] = end

    def _check_parent(self, stored: StoredObject, namespace: Namespace) -> None:
        if stored.parent == stored.root:
            ends = {0}
        else:
            groups = namespace.parent_groups(stored.group)
            places = [(stored.root, group, stored.parent) for group in groups]
            ends = {self._ends.get(place) for place in places} or {stored.first_token}
        if ends != {stored.first_token}:
            raise Unfit(f"what the object {stored.id} follows is not before it")


def _check_shape(stored: StoredObject, namespace: Namespace) -> None:
    group = namespace.group(stored.group)
    if group is None or group.sliceable == (stored.kind == "state"):
        raise Unfit(f"the object {stored.id} is of no group of its namespace")
    count, tokens = len(stored.parts), stored.parts[0].tokens
    right = {
        "extent": 0 < count <= EXTENT_BLOCKS_MAX and tokens == BLOCK,
        "tail": count == 1 and 0 < tokens < BLOCK,
        "state": count == 1 and 0 <= tokens < BLOCK,
    }
    shapes = {(part.tokens, part.nbytes) for part in stored.parts}
    is_even = len(shapes) == 1 and stored.parts[0].nbytes > 0
    if not right[stored.kind] or not is_even or stored.first_token % BLOCK:
        raise Unfit(f"the object {stored.id} is not cut as it should be")


def _check_chain(stored: StoredObject) -> None:
    tokens = stored.token_ids_le
    if len(stored.parent) != HASH_BYTES or len(tokens) != stored.tokens * TOKEN_BYTES:
        raise Unfit(f"the object {stored.id} has not as many tokens as it says")
    if stored.kind == "extent":
        chain = keys.chain(stored.parent, tokens)
    else:
        chain = keys.tail_hash(stored.parent, tokens) if tokens else stored.parent
    if chain != b"".join(part.chain for part in stored.parts):
        raise Unfit(f"the hashes of the object {stored.id} are not the ones of its tokens")
