"""What the local history keeps of runs, and what it tells."""

import json
import sqlite3
from pathlib import Path

import pytest

from bramley.bench.serve import history, record
from bramley.bench.serve.history import machine_key, opened
from bramley.bench.serve.record import Model, Run, Source
from bramley.common.errors import InvalidRequest
from support.runs import OURS, PEER, ArmBuilder, run


def measured(seed: int = 1, rate: float = 20.0, **facts: object) -> Run:
    ours = ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", rate, rate + 2, rate + 1)
    peer = ArmBuilder(PEER).add("decode", "decode_rate", "tok/s", 10.0)
    return run(ours, peer, seed=seed, **facts)


def test_a_run_is_there_once_however_often_it_is_added(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path / "bench.sqlite") as kept:
            kept.add(measured())
            kept.add(measured())
            assert [one.id for one in kept.runs()] == ["run-1"]
            assert len(kept.course("decode_rate")) == 2


def test_a_run_that_is_added_again_has_its_new_figures_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "bench.sqlite") as kept:
        kept.add(measured(is_complete=False))
        later = run(ArmBuilder(OURS).add("ttft", "ttft_cold", "s", 3.0))
        kept.add(later)
        assert [one.is_complete for one in kept.runs()] == [True]
        assert kept.course("decode_rate") == []
        assert [one.median for one in kept.course("ttft_cold")] == [3.0]


def test_a_figure_is_the_median_and_the_range_of_its_samples(tmp_path: Path) -> None:
    with opened(tmp_path / "bench.sqlite") as kept:
        kept.add(measured(rate=20.0))
        (one,) = kept.course("decode_rate", arm=OURS)
    assert (one.median, one.low, one.high, one.samples) == (21.0, 20.0, 22.0, 3)


def test_a_course_is_of_one_model_and_arm_and_the_oldest_first(tmp_path: Path) -> None:
    with opened(tmp_path / "bench.sqlite") as kept:
        for seed in (3, 1, 2):
            kept.add(measured(seed=seed, rate=10.0 * seed))
        kept.add(measured(id="other", model=Model(name="big")))
        found = kept.course("decode_rate", model="tiny", arm=OURS)
    assert [one.median for one in found] == [11.0, 21.0, 31.0]


def test_machines_are_kept_apart_and_named_by_what_makes_their_speed(tmp_path: Path) -> None:
    first = measured()
    elsewhere = measured(seed=2, machine={**first.machine, "cpu": "Other"})
    upgraded = measured(seed=3, machine={**first.machine, "packages": {"mlx": "2.0"}})
    assert machine_key(first) != machine_key(elsewhere)
    assert machine_key(first) == machine_key(upgraded)
    with opened(tmp_path / "bench.sqlite") as kept:
        for each in (first, elsewhere, upgraded):
            kept.add(each)
        found = kept.course("decode_rate", arm=OURS)
    # Not 1, 2, 3: machine after machine.
    assert [one.run for one in found] in (["run-1", "run-3", "run-2"], ["run-2", "run-1", "run-3"])


def test_a_change_is_told_only_against_a_figure_of_the_same_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = measured(rate=20.0)
    files = [
        saved(tmp_path, one)
        for one in (
            first,
            measured(seed=2, rate=41.0),
            measured(seed=3, machine={**first.machine, "cpu": "Other"}),
        )
    ]
    told = [*files, "--history", str(tmp_path / "h.sqlite"), "--metric", "decode_rate"]
    assert history.main([*told, "--arm", OURS]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert sum("+100.0%" in line for line in lines) == 1
    assert sum("%" in line for line in lines) == 1


def saved(folder: Path, one: Run) -> str:
    path = folder / f"{one.id}.json"
    record.save(one, path)
    return str(path)


def test_sources_that_are_no_commit_are_marked(tmp_path: Path) -> None:
    source = Source(start="5" * 64, end="5" * 64, commit="c" * 40, is_clean=False)
    with opened(tmp_path / "bench.sqlite") as kept:
        kept.add(measured(source=source))
        assert kept.runs()[0].revision == "c" * 12 + "+"


def test_runs_are_listed_for_programs_as_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [saved(tmp_path, measured(seed=seed)) for seed in (1, 2)]
    assert history.main([*files, "--history", str(tmp_path / "new" / "h.sqlite"), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["seed"] for line in lines] == [1, 2]


def test_runs_are_listed_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path, measured(is_complete=False))
    assert history.main([file, "--history", str(tmp_path / "h.sqlite")]) == 0
    printed = capsys.readouterr().out
    assert "run-1" in printed
    assert "cut short" in printed
    assert f"{OURS}, {PEER}" in printed


def test_an_unknown_metric_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, measured())
    told = [file, "--history", str(tmp_path / "h.sqlite"), "--metric", "decode_speed"]
    assert history.main(told) == 2
    assert "decode_rate" in capsys.readouterr().err


def test_a_file_that_is_no_history_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("These are notes and no database at all.\n" * 40)
    before = other.read_bytes()
    assert history.main(["--history", str(other)]) == 2
    assert "is no history" in capsys.readouterr().err
    assert other.read_bytes() == before


def test_a_history_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InvalidRequest, match="version 99"), opened(path):
        pass


def test_a_file_that_is_no_run_adds_nothing(tmp_path: Path) -> None:
    good, bad = saved(tmp_path, measured()), tmp_path / "bad.json"
    bad.write_text("{}")
    path = tmp_path / "h.sqlite"
    assert history.main([good, str(bad), "--history", str(path)]) == 2
    assert not path.exists()
