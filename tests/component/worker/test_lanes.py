"""The lane that was found is remembered with all that it depends on, and with nothing else."""

import dataclasses
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import pytest

from bramley.worker import loading
from bramley.worker.engine.selfcheck import choose_lane
from bramley.worker.lanes import KEPT, code_digest, remember, remembered
from bramley.worker.loading import Numerics
from bramley.worker.models.contract import Lane, ModelParts
from bramley.worker.settings import WorkerSettings
from support import tiny_models
from support.blas import BLAS

NUMERICS = Numerics(f"cpu {BLAS.name}", BLAS.sum_panel)
MODEL = ("weights", "config", "epoch")


@pytest.fixture
def memo(tmp_path: Path) -> Path:
    return tmp_path / "models" / "lanes.json"


@pytest.mark.parametrize("lane", Lane)
def test_what_was_found_is_remembered(memo: Path, lane: Lane) -> None:
    assert remembered(memo, MODEL) is None
    remember(memo, MODEL, lane)
    assert remembered(memo, MODEL) is lane


@pytest.mark.parametrize(
    "other",
    [("weights", "config", "other"), ("weights", "config"), ("weightsconfig", "", "epoch")],
)
def test_nothing_is_known_of_what_differs_in_anything(memo: Path, other: tuple[str, ...]) -> None:
    remember(memo, MODEL, Lane.BATCHED)
    assert remembered(memo, other) is None
    remember(memo, other, Lane.SERIAL)
    assert (remembered(memo, other), remembered(memo, MODEL)) == (Lane.SERIAL, Lane.BATCHED)


def test_a_damaged_file_tells_nothing_and_is_written_anew(memo: Path) -> None:
    remember(memo, MODEL, Lane.APART)
    whole = memo.read_bytes()
    for place in range(len(whole)):
        memo.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert remembered(memo, MODEL) is None, place
    memo.write_bytes(whole[:-3])
    assert remembered(memo, MODEL) is None
    remember(memo, MODEL, Lane.APART)
    assert memo.read_bytes() == whole


def test_the_oldest_are_forgotten(memo: Path) -> None:
    for number in range(KEPT + 1):
        remember(memo, (str(number),), Lane.BATCHED)
    assert remembered(memo, ("0",)) is None
    assert remembered(memo, ("1",)) is remembered(memo, (str(KEPT),)) is Lane.BATCHED
    assert list(memo.parent.iterdir()) == [memo]


def test_where_nothing_can_be_written_nothing_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    memo = tmp_path / "file" / "lanes.json"
    remember(memo, MODEL, Lane.BATCHED)
    assert remembered(memo, MODEL) is None


class Starts:
    """Loads a tiny model as a worker does, and counts the checks."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch, self.checks = folder, patch, 0
        tiny_models.save_tiny(folder, "full")
        self.settings, self.numerics = WorkerSettings(path=str(folder)), NUMERICS

        def counted(parts: ModelParts, sum_panel: int) -> Lane:
            self.checks += 1
            return choose_lane(parts, sum_panel)

        patch.setattr(loading, "choose_lane", counted)

    def start(self) -> int:
        """Start once; how many checks that took."""
        before = self.checks
        executor, _ = loading.load(self.settings, self.numerics, lambda _, __: None)
        assert executor.lane is Lane.BATCHED
        return self.checks - before

    def other_weights(self) -> None:
        tiny_models.save_tiny(self.folder, "full", seed=1)

    def other_config(self) -> None:
        path = self.folder / "config.json"
        path.write_text(path.read_text().replace("4096", "4097"))

    def other_blas(self) -> None:
        self.numerics = dataclasses.replace(self.numerics, name="cpu another")

    def other_sums(self) -> None:
        self.numerics = dataclasses.replace(self.numerics, sum_panel=192)

    def other_mlx(self) -> None:
        known = metadata.version

        def newer(distribution_name: str) -> str:
            return known(distribution_name) + ".1"

        self._patch.setattr(metadata, "version", newer)

    def other_epoch(self) -> None:
        self._patch.setattr(loading, "EPOCH", loading.EPOCH + 1)

    def other_code(self) -> None:
        def other(folders: Iterable[Path]) -> str:
            return code_digest(folders)[::-1]

        self._patch.setattr(loading, "code_digest", other)


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(tmp_path / "model", monkeypatch)


def test_a_second_start_does_not_check(starts: Starts) -> None:
    assert [starts.start() for _ in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(
    "change",
    [
        Starts.other_weights,
        Starts.other_config,
        Starts.other_blas,
        Starts.other_sums,
        Starts.other_mlx,
        Starts.other_epoch,
        Starts.other_code,
    ],
)
def test_what_has_changed_is_checked_anew(starts: Starts, change: Callable[[Starts], None]) -> None:
    assert starts.start() == 1
    change(starts)
    assert starts.start() == 1
    assert starts.start() == 0


def test_code_is_every_python_file_by_name_and_content(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    seen = {code_digest([tmp_path])}
    for name, text in (("a.py", "x = 2"), ("b.py", ""), ("b.py", "x = 1")):
        (tmp_path / name).write_text(text)
        seen.add(code_digest([tmp_path]))
    (tmp_path / "notes.txt").write_text("nothing that runs")
    assert code_digest([tmp_path]) in seen
    assert len(seen) == 4
