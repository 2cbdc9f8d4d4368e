"""Random work on a simulated disk; after each call, what crashes would leave is opened and proved.

Three kinds of crash: of the process, of the power, and of the power of a drive whose cache
forgets all since the last flush. The index is as it is, of earlier, garbage or gone.
"""

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xxhash

from bramley.cachestore import keys
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.disk import Disk
from bramley.cachestore.format import encode_header
from bramley.cachestore.keys import Identity
from bramley.cachestore.matching import Group, Query, find
from bramley.cachestore.objects import StoredObject
from support.simulated_disk import Killed, SimulatedDisk
from support.stored import IDENTITY, OTHER_IDENTITY, OTHER_ROOT, ROOT, make_stored, read

KV = Group("kv", required=True, sliceable=True)
SIZES = ((100,), (100, 5000), (17_000,))
NAMESPACES = {ROOT: IDENTITY, OTHER_ROOT: OTHER_IDENTITY}
FANS = ("aa", "bb")  # beginnings of ids: few, so that objects share folders
OBJECTS_MAX = 6
LIVES, STEPS_MAX = 4, 12  # of a disk
STALE_MAX = 6  # copies of the index that are kept


class Wrong(AssertionError):
    """A crash left what must not be."""


@dataclass
class Expected:
    """What a crash may leave.

    Attributes:
        made: all objects ever begun, with their payloads.
        spilled: those that are said to be written.
        flushed: of these, those that a flush covers.
        removed: those that are said to be removed.
        told: namespaces that the disk was told of; those that have objects are kept.
        flushed_told: of these, those that a flush covers.
        foreign: files that are not the store's.
    """

    made: dict[str, tuple[StoredObject, bytes]] = field(
        default_factory=dict[str, tuple[StoredObject, bytes]]
    )
    spilled: set[str] = field(default_factory=set[str])
    flushed: set[str] = field(default_factory=set[str])
    removed: set[str] = field(default_factory=set[str])
    told: set[bytes] = field(default_factory=set[bytes])
    flushed_told: set[bytes] = field(default_factory=set[bytes])
    foreign: dict[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def told_now(self) -> set[bytes]:
        """The namespaces that are kept: those that have objects."""
        return self.told & self._roots(self.spilled)

    def leave(self, gone: str) -> None:
        """Expect an object no more, and its namespace only as long as others are in it."""
        self.spilled.discard(gone)
        self.flushed.discard(gone)
        self.flushed_told &= self._roots(self.flushed)

    def _roots(self, names: set[str]) -> set[bytes]:
        return {self.made[name][0].root for name in names}


def _newer(number: int) -> bytes:
    """Make a file of a newer format, sealed by the rule that all formats keep."""
    stored, payload = make_stored(number, (100,))
    header = bytearray(encode_header(stored).replace(b'"reader":"1"', b'"reader":"9"'))
    at = header.index(b'"xxh3":"') + 8
    header[at : at + 32] = b"0" * 32
    header[at : at + 32] = xxhash.xxh3_128_hexdigest(header).encode()
    return bytes(header) + payload


def _foreign() -> dict[str, bytes]:
    text = b'{"weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    newer = make_stored(9_001, (100,))[0]
    space = f"ns/{ROOT.hex()[:16]}"
    return {
        "notes.txt": b"mine",
        "tmp/sub/file": b"mine",
        "ns/other/a.kvx": b"mine",
        f"{space}/notes.txt": b"mine",
        f"{space}/{newer.id[:2]}/{newer.id}.kvx": _newer(9_001),
        f"{space}/ab/ab12.kvx": len(text).to_bytes(8, "little") + text + b"w",
    }


class Crashes:
    """Disks one after the other, the work on them, and the crashes.

    Args:
        kind: of simulated disk.
        scratch: an empty real folder for the indexes.
        seed: of all chances.
        copies: crashes after each call.

    Attributes:
        states: how many were opened and proved, by kind of crash.
    """

    def __init__(
        self, kind: type[SimulatedDisk], scratch: Path, seed: int, copies: int = 3
    ) -> None:
        self.states: Counter[str] = Counter()
        self._kind = kind
        self._scratch = scratch
        self._chance = random.Random(seed)  # noqa: S311
        self._copies = copies
        self._numbers = itertools.count()
        self._foreign = _foreign()
        self._begin()

    def _begin(self) -> None:
        """Take a new disk."""
        mount = self._scratch / "disk"
        if mount.exists():
            shutil.rmtree(mount)
        mount.mkdir()
        self._files = self._kind(mount)
        self._expected = Expected(foreign=self._foreign)
        self._stale: list[dict[str, bytes]] = []
        self._death = -1
        for path, content in self._foreign.items():
            self._files.plant(path, content)

    def run_until(self, states: int) -> None:
        """Do random work until so many crashes were tried.

        Raises:
            Wrong: a crash left what must not be.
        """
        while self.states.total() < states:
            self._begin()
            self._files.watch = self._crash
            for _ in range(LIVES):
                self._live(self._chance.randrange(STEPS_MAX))

    def _live(self, steps: int) -> None:
        """Do the work of one process."""
        disk = None
        try:
            disk = self._open()
            self._expected.spilled |= {stored.id for stored in disk.objects()}
            self._expected.told = set(disk.namespaces())
            for _ in range(steps):
                self._step(disk)
            disk.close(clean=self._chance.random() < 0.7)
            self._keep_index()
        except Killed:
            if disk is not None:
                disk.close(clean=False)
            self._files.restart()
            self._death = -1

    def _open(self) -> Disk:
        return Disk.open(self._files.mount, self._files)

    # Work

    def _step(self, disk: Disk) -> None:
        if self._chance.random() < 0.3:  # the process dies soon
            self._death = self._files.calls + self._chance.randint(1, 16)
        leave = [self._remove, self._quarantine]
        steps = [self._write] * 5 if len(disk.objects()) < OBJECTS_MAX else leave * 2
        steps += [*leave, self._rewrite, self._touch, self._tell, self._flush, self._write_back]
        self._chance.choice(steps)(disk)
        if self._chance.random() < 0.1:
            self._keep_index()

    def _write(self, disk: Disk) -> None:
        there = [stored for stored in disk.objects() if stored.first_token < 1024]
        parent = self._chance.choice([None, *there])
        root = self._chance.choice([*NAMESPACES]) if parent is None else parent.root
        number = next(self._numbers)
        stored, payload = make_stored(number, self._chance.choice(SIZES), name=root, parent=parent)
        fan = self._chance.choice(FANS)
        self._put(disk, msgspec.structs.replace(stored, id=fan + stored.id[2:]), payload)

    def _rewrite(self, disk: Disk) -> None:
        if self._expected.made:
            stored, payload = self._chance.choice([*self._expected.made.values()])
            self._put(disk, stored, memoryview(payload))

    def _put(self, disk: Disk, stored: StoredObject, payload: memoryview) -> None:
        expected = self._expected
        expected.made[stored.id] = stored, bytes(payload)
        expected.removed.discard(stored.id)
        disk.write(stored, payload)
        expected.spilled.add(stored.id)

    def _remove(self, disk: Disk) -> None:
        self._leave(disk.remove, disk)

    def _quarantine(self, disk: Disk) -> None:
        self._leave(disk.quarantine, disk)

    def _leave(self, call: Callable[[str], None], disk: Disk) -> None:
        if not (listed := disk.objects()):
            return
        gone = self._chance.choice(listed).id
        self._expected.leave(gone)
        call(gone)
        self._expected.removed.add(gone)

    def _touch(self, disk: Disk) -> None:
        disk.touch([stored.id for stored in disk.objects()[:2]], float(self._files.calls))

    def _tell(self, disk: Disk) -> None:
        root = self._chance.choice([*NAMESPACES])
        disk.put_namespace(root, NAMESPACES[root])
        self._expected.told.add(root)

    def _flush(self, disk: Disk) -> None:
        disk.flush()
        self._expected.flushed = set(self._expected.spilled)
        self._expected.flushed_told = self._expected.told_now

    def _write_back(self, _: Disk) -> None:
        self._files.write_back()

    # Crashes

    def _crash(self, call: str) -> None:
        expected = self._expected
        for _ in range(self._copies):
            kind = self._chance.choice(("kill", "power", "drive"))
            mount = self._scratch / "copy"
            mount.mkdir()
            if kind == "kill":
                left = self._files.after_kill(mount)
                kept, gone, told = expected.spilled, expected.removed, expected.told_now
            elif kind == "power":
                left = self._files.after_power_cut(mount, self._chance)
                kept, gone, told = expected.spilled, set[str](), expected.told_now
            else:
                left = self._files.after_power_cut(mount, self._chance, drive_cache=True)
                kept, gone, told = expected.flushed, set[str](), expected.flushed_told
            self._leave_index(mount)
            try:
                self._prove(left, kept, gone, told)
            except Exception as error:
                error.add_note(f"{kind} after call {self._files.calls}, {call}")
                raise
            finally:
                shutil.rmtree(mount)
            self.states[kind] += 1
        if self._files.calls == self._death:
            self._files.is_dead = True
            raise Killed

    def _index(self) -> dict[str, bytes]:
        mount = self._files.mount
        return {path.name: path.read_bytes() for path in mount.glob("index.db*")}

    def _keep_index(self) -> None:
        self._stale.append(self._index())
        if len(self._stale) > STALE_MAX:
            self._stale.pop(self._chance.randrange(STALE_MAX))

    def _leave_index(self, mount: Path) -> None:
        kind = self._chance.random()
        if kind < 0.4:
            index = self._index()
        elif kind < 0.7:
            index = self._chance.choice(self._stale or [{}])
        elif kind < 0.8:
            index = {"index.db": self._chance.randbytes(9000)}
        else:
            index = {}
        for name, content in index.items():
            (mount / name).write_bytes(content)

    # Proof

    def _prove(self, left: SimulatedDisk, kept: set[str], gone: set[str], told: set[bytes]) -> None:
        before = left.content()
        disk = Disk.open(left.mount, left)
        try:
            listed = disk.objects()
            self._prove_listed(disk, listed)
            names = {stored.id for stored in listed}
            _require(kept <= names, "what was written is lost", kept - names)
            _require(not gone & names, "what was removed came back", gone & names)
            namespaces: dict[bytes, Identity] = disk.namespaces()
            lost = {root for root in told if namespaces.get(root) != NAMESPACES[root]}
            _require(not lost, "a namespace is not told of", lost)
            _prove_folder(left, before, self._expected.foreign, names)
            if self._chance.random() < 0.2:
                self._prove_matches(listed)
            if self._chance.random() < 0.2:
                self._prove_use(disk)
        finally:
            disk.close(clean=False)

    def _prove_listed(self, disk: Disk, listed: list[StoredObject]) -> None:
        for stored in listed:
            known, payload = self._expected.made.get(stored.id, (None, b""))
            _require(known == stored, "an object is listed that nobody wrote", stored.id)
            try:
                is_same = read(disk, stored) == payload
            except OSError as error:
                raise Wrong("a torn object is listed", stored.id) from error
            _require(is_same, "an object has other bytes", stored.id)
        _require(not disk.found.damaged, "a torn object has its name", disk.found.damaged)

    def _prove_matches(self, listed: list[StoredObject]) -> None:
        """Each conversation is matched up to the first of its objects that is not there."""
        catalogue = Catalogue()
        for stored in listed:
            catalogue.add(Entry(stored, fate="spilled", on_disk=True))
        names = {stored.id for stored in listed}
        by_chain = {(each.root, each.chain): each for each, _ in self._expected.made.values()}
        for stored, _ in self._expected.made.values():
            line = [stored]
            while (stored.root, line[0].parent) in by_chain:
                line.insert(0, by_chain[stored.root, line[0].parent])
            unbroken = list(itertools.takewhile(lambda each: each.id in names, line))
            tokens = b"".join(each.token_ids_le for each in line) + bytes(4)
            query = Query(stored.root, keys.chain(stored.root, tokens), tokens)
            found = find(catalogue, (KV,), query).boundaries
            reach = found[0].tokens if found else 0
            _require(reach == sum(each.tokens for each in unbroken), "a wrong match", stored.id)

    def _prove_use(self, disk: Disk) -> None:
        """Whatever was under way can be done again."""
        for stored, payload in list(self._expected.made.values())[-1:]:
            disk.write(stored, memoryview(payload))
            _require(read(disk, stored) == payload, "what is written again differs", stored.id)


def _prove_folder(
    left: SimulatedDisk, before: dict[str, bytes], foreign: dict[str, bytes], names: set[str]
) -> None:
    after = left.content()
    for path, content in foreign.items():
        _require(after.get(path) == content, "what is not ours was touched", path)
    _require(
        not [path for path in after if path.startswith("tmp/") and path not in foreign],
        "a write's leftovers stay",
        after.keys(),
    )
    objects = {path for path in before if path.endswith(".kvx") and path not in foreign}
    removed = {path for path in objects - after.keys() if path.startswith("ns/")}
    _require(not removed, "a start removed an object", removed)
    files = {path.split("/")[-1].removesuffix(".kvx") for path in objects if path[:3] == "ns/"}
    _require(files == names, "the list is not what the files say", files ^ names)


def _require(condition: bool, why: str, what: object) -> None:
    if not condition:
        raise Wrong(why, what)
