"""Whatever becomes of files that were sound: no wrong byte is served, and the others still are."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bramley.cachestore.disk import Disk
from bramley.cachestore.format import Damaged
from bramley.cachestore.objects import ALIGN, StoredObject, padded
from support.simulated_disk import SimulatedDisk
from support.simulated_nodes import PAGE
from support.stored import IDENTITY, OTHER_IDENTITY, OTHER_ROOT, ROOT, make_stored, read

FLIPS = 1000
SEED = 28
SIZES = ((100,), (5000, ALIGN, 20_000), (ALIGN, ALIGN, ALIGN), (100, 20_000))
MADE = [
    make_stored(2 * number + at, sizes, name=name)
    for number, sizes in enumerate(SIZES)
    for at, name in enumerate((ROOT, OTHER_ROOT))
]
PAYLOADS = {stored.id: bytes(payload) for stored, payload in MADE}
ENDS = {  # of the parts in the file; what is between them is nobody's
    stored.id: [
        (start, start + part.nbytes)
        for at, part in enumerate(stored.parts)
        for start in [ALIGN + sum(padded(each.nbytes) for each in stored.parts[:at])]
    ]
    for stored, _ in MADE
}


class Shelf:
    """A disk that was closed in good order, and copies of it to damage."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.sound = SimulatedDisk(self._mount())
        disk = Disk.open(self.sound.mount, self.sound)
        disk.put_namespace(ROOT, IDENTITY)
        disk.put_namespace(OTHER_ROOT, OTHER_IDENTITY)
        for stored, payload in MADE:
            disk.write(stored, payload)
        disk.close(clean=True)
        self.paths = self.sound.paths()
        self.content = {path: self.sound.content()[path] for path in self.paths.values()}

    def _mount(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._place))

    def copy(self, *, index: bool = True) -> SimulatedDisk:
        """Copy it, with its index or without."""
        copy = self.sound.after_kill(self._mount())
        if index:
            shutil.copy(self.sound.mount / "index.db", copy.mount)
        return copy


def is_right(disk: Disk, stored: StoredObject) -> bool:
    """Whether each part is read as it was written."""
    found, right = read(disk, stored), PAYLOADS[stored.id]
    parts = [slice(start - ALIGN, end - ALIGN) for start, end in ENDS[stored.id]]
    return all(found[part] == right[part] for part in parts)


def served(files: SimulatedDisk, *, twice: bool = True) -> set[str]:
    """Start on a disk, read everything, and set aside what is damaged: ids of what was served."""
    disk = Disk.open(files.mount, files)
    whole: set[str] = set()
    harmed: set[str] = set()
    for stored in disk.objects():
        try:
            assert is_right(disk, stored), "wrong bytes"
            whole.add(stored.id)
        except Damaged:
            harmed.add(stored.id)
            disk.quarantine(stored.id)
    assert {stored.id for stored in disk.objects()} == whole
    there = files.content()
    for object_id in harmed | {path.stem for path, _ in disk.found.damaged}:
        assert any(path.startswith(f"quarantine/{object_id}.kvx") for path in there)
    disk.close(clean=False)
    if twice:
        start_again(files, whole)
    shutil.rmtree(files.mount)
    return whole


def start_again(files: SimulatedDisk, whole: set[str]) -> None:
    """Nothing that was set aside comes back by itself, and all can be written anew."""
    again = Disk.open(files.mount, files)
    listed = {stored.id for stored in again.objects()}
    assert listed <= whole
    assert len(whole - listed) <= 1  # whose header no start had read until now
    for stored, payload in MADE:
        again.write(stored, payload)
        assert is_right(again, stored)
    again.close(clean=False)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    """A shelf in RAM, where the system offers it."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Shelf(Path(name))


def test_an_unharmed_shelf_is_served_whole(shelf: Shelf) -> None:
    assert served(shelf.copy()) == served(shelf.copy(index=False)) == PAYLOADS.keys()


def test_b028_one_bit_of_a_thousand_is_never_served(shelf: Shelf) -> None:
    print(f"seed {SEED}")  # noqa: T201
    chance = random.Random(SEED)  # noqa: S311
    missed = 0
    for number in range(FLIPS):
        object_id = chance.choice([*PAYLOADS])
        path = shelf.paths[object_id]
        harmed = bytearray(shelf.content[path])
        at = chance.randrange(len(harmed))
        harmed[at] ^= 1 << chance.randrange(8)
        files = shelf.copy(index=number % 2 == 0)
        files.change(path, bytes(harmed))
        whole = served(files, twice=number % 10 == 0)
        assert whole >= PAYLOADS.keys() - {object_id}
        is_payload = any(start <= at < end for start, end in ENDS[object_id])
        assert not is_payload or object_id not in whole, at
        missed += object_id not in whole
    assert missed > FLIPS // 2


def cuts(content: bytes) -> Iterator[bytes]:
    edges = {0, 1, ALIGN - 1, len(content) // 2, len(content) - 1, *range(0, len(content), PAGE)}
    for edge in sorted(edges):
        yield content[:edge]


def blanks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PAGE):
        yield content[:start] + bytes(PAGE) + content[start + PAGE :]


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("damage", [cuts, blanks])
def test_b028_report_10_a_cut_or_blank_page_costs_its_object_alone(
    shelf: Shelf, damage: Callable[[bytes], Iterator[bytes]], *, index: bool
) -> None:
    for object_id in [stored.id for stored, _ in MADE[:4]]:
        path = shelf.paths[object_id]
        for harmed in damage(shelf.content[path]):
            files = shelf.copy(index=index)
            files.change(path, harmed)
            whole = served(files)
            assert whole >= PAYLOADS.keys() - {object_id}
            lost = any(
                harmed[start:end] != shelf.content[path][start:end]
                for start, end in ENDS[object_id]
            )
            assert not lost or object_id not in whole


@pytest.mark.parametrize("index", [True, False])
def test_two_files_whose_contents_were_swapped_are_not_served(shelf: Shelf, *, index: bool) -> None:
    for one, other in ((0, 6), (0, 1), (2, 3), (2, 4)):  # of one size, of one namespace, or not
        ids = {MADE[one][0].id, MADE[other][0].id}
        first, second = (shelf.paths[object_id] for object_id in sorted(ids))
        files = shelf.copy(index=index)
        files.change(first, shelf.content[second])
        files.change(second, shelf.content[first])
        assert served(files) == PAYLOADS.keys() - ids


@pytest.mark.parametrize("index", [True, False])
def test_names_that_were_swapped_across_namespaces_are_not_served(
    shelf: Shelf, *, index: bool
) -> None:
    for at in range(0, len(MADE), 2):
        ids = [MADE[at][0].id, MADE[at + 1][0].id]
        files = shelf.copy(index=index)
        first, second = (files.mount / shelf.paths[object_id] for object_id in ids)
        files.rename(first, files.mount / "between")
        files.rename(second, first)
        files.rename(files.mount / "between", second)
        assert served(files) == PAYLOADS.keys() - set(ids)


def grown(shelf: Shelf) -> tuple[SimulatedDisk, dict[str, bytes]]:
    """Go on with the shelf: remove some, write them anew and others; and its first index."""
    files = shelf.copy()
    first = (files.mount / "index.db").read_bytes()
    disk = Disk.open(files.mount, files)
    for stored, payload in MADE[:4]:
        disk.remove(stored.id)
        disk.write(stored, payload)
    for stored, _ in MADE[4:6]:
        disk.remove(stored.id)
    disk.close(clean=True)
    return files, {"index.db": first}


def test_a_stale_index_over_newer_files_misleads_nobody(shelf: Shelf) -> None:
    files, stale = grown(shelf)
    (files.mount / "index.db").write_bytes(stale["index.db"])
    gone = {stored.id for stored, _ in MADE[4:6]}
    assert served(files) == PAYLOADS.keys() - gone


def test_a_newer_index_over_older_files_misleads_nobody(shelf: Shelf) -> None:
    newer, _ = grown(shelf)
    files = shelf.copy(index=False)
    shutil.copy(newer.mount / "index.db", files.mount)
    assert served(files) == PAYLOADS.keys()


@pytest.mark.parametrize("index", [b"", b"garbage" * 5000, None], ids=["empty", "garbage", "none"])
def test_report_4_without_an_index_nothing_is_lost(shelf: Shelf, index: bytes | None) -> None:
    files = shelf.copy(index=False)
    if index is not None:
        (files.mount / "index.db").write_bytes(index)
    assert served(files) == PAYLOADS.keys()


def test_the_proof_notices_wrong_bytes(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {part.checksum for stored, _ in MADE for part in stored.parts}
    first = MADE[0][0].parts[0].checksum
    assert len(sums) > 1
    monkeypatch.setattr("bramley.cachestore.format.xxhash.xxh3_128_digest", lambda _: first)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    files = shelf.copy(index=False)
    path = shelf.paths[MADE[0][0].id]
    files.change(path, shelf.content[path][:ALIGN] + b"\xff" * ALIGN)
    with pytest.raises(AssertionError, match="wrong bytes"):
        served(files)
