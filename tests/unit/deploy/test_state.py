"""The state folder: what survives, what is never given out twice, what is not believed."""

import errno
import stat
import tempfile
from pathlib import Path

import pytest

from bramley.common.errors import SettingsError
from bramley.deploy.state import (
    NodeFile,
    Record,
    StateFolder,
    WantedWorker,
    make_run_dir,
    restore_run_dir,
)
from bramley.deploy.supervisor import Key

RECORD = Record(role="worker", name="a", epoch=7, pid=1, spec="{}", addresses={"socket": "unix:x"})


def test_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    state = StateFolder(tmp_path / "state")
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o700


def test_a_folder_of_other_things_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    tmp_path.chmod(0o755)
    with pytest.raises(SettingsError, match="is not empty"):
        StateFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_folder_whose_first_supervisor_was_killed_is_one(tmp_path: Path) -> None:
    StateFolder(tmp_path).lock.touch()
    assert StateFolder(tmp_path).next_epoch() == 1


def test_only_own_files_are_cleared(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    epoch = state.next_epoch()
    state.write_record(RECORD)
    state.write_settings(RECORD.key, b"{}")
    state.write_wanted({})
    state.write_node(NodeFile(run_dir="/r", node="unix:/r/node.sock", pid=1, epoch=epoch))
    kept = [tmp_path / name for name in ("notes.new", "settings/mine.json", "processes/thesis")]
    for file in kept:
        file.write_text("")
    state.clear()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == sorted([*kept, tmp_path / "epoch"])


def test_epochs_rise_over_restarts(tmp_path: Path) -> None:
    first = StateFolder(tmp_path)
    given = [first.next_epoch(), first.next_epoch(), StateFolder(tmp_path).next_epoch(at_least=9)]
    first.clear()
    assert [*given, StateFolder(tmp_path).next_epoch()] == [1, 2, 9, 10]


def test_a_lost_count_goes_on_above_the_living(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.write_record(RECORD)
    (tmp_path / "epoch").write_text("")
    assert state.next_epoch() == 8


def test_what_was_written_is_read(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    node = NodeFile(run_dir="/r", node="unix:/r/node.sock", pid=1, epoch=state.next_epoch())
    state.write_record(RECORD)
    wanted = {"a": WantedWorker(spec="{}", is_pinned=True)}
    state.write_wanted(wanted)
    state.write_node(node)
    again = StateFolder(tmp_path)
    assert list(again.records()) == [RECORD]
    assert (again.read_wanted(), again.read_node()) == (wanted, node)


@pytest.mark.parametrize("content", [b"", b'{"role": "wor', b"[]", b"\xff"])
def test_a_torn_file_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    state = StateFolder(tmp_path)
    for name in ("processes/worker-a.json", "wanted.json", "node.json"):
        (tmp_path / name).write_bytes(content)
    assert list(state.records()) == []
    assert state.read_wanted() == {}
    assert state.read_node() is None


def test_the_pidfile_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.write_record(RECORD)
    state.remove_record(Key("worker", "a"), epoch=6)
    assert list(state.records()) == [RECORD]
    state.remove_record(Key("worker", "a"), epoch=7)
    assert list(state.records()) == []


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateFolder(tmp_path)
    before = {"a": WantedWorker(spec="1")}
    state.write_wanted(before)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        state.write_wanted({"b": WantedWorker(spec="2")})
    assert state.read_wanted() == before


def test_the_run_folder_is_kept_while_it_is_ours(tmp_path: Path) -> None:
    first = make_run_dir(None)
    try:
        assert make_run_dir(first) == first
        assert stat.S_IMODE(Path(first).stat().st_mode) == 0o700
        Path(first).chmod(0o755)
        other = make_run_dir(first)
        Path(other).rmdir()
        assert other != first
    finally:
        Path(first).rmdir()


def test_the_run_folder_is_short_where_the_temporary_one_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    made = make_run_dir(None)
    Path(made).rmdir()
    assert len(f"{made}/worker-1000000.sock") < 60


def test_a_run_folder_that_is_gone_is_made_again_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for _ in range(2):
        restore_run_dir(str(folder))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    with pytest.raises(PermissionError):
        restore_run_dir(str(folder))
