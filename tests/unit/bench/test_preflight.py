"""Whether a machine is fit for measuring, what is said of it, and what a run leaves."""

import json
from pathlib import Path

import pytest

from bramley.bench.serve import __main__ as command
from bramley.bench.serve import machine, memory, preflight, record
from bramley.bench.serve.memory import MemoryWatch, Used
from bramley.bench.serve.preflight import Facts, judge, look, refusals
from bramley.bench.serve.record import Arm, Event, Model, Preflight, Request, Run, Sample, Source
from bramley.common.errors import InvalidRequest

FIT = Facts(cores=8, load=1.0, others=0.02, free=0.6, swap_bytes=0, large={}, policy="", speed=None)


def test_a_quiet_machine_is_fit() -> None:
    assert refusals(judge(FIT)) == []
    assert Preflight(checks=judge(FIT)).is_clear


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"load": 4.1}, "load average"),
        ({"others": 0.11}, "share of others"),
        ({"free": 0.34}, "free memory"),
        ({"swap_bytes": 600 << 20}, "swap"),
        ({"large": {"browser 12": 3 << 30}}, "browser 12: 3.0 GiB"),
        ({"policy": "powersave"}, "frequency policy"),
        ({"speed": 80}, "speed"),
    ],
)
def test_each_condition_alone_is_enough_to_refuse(change: dict[str, object], name: str) -> None:
    told = refusals(judge(FIT._replace(**change)))
    assert len(told) == 1
    assert name in told[0]
    assert not Preflight(checks=judge(FIT._replace(**change))).is_clear


@pytest.mark.parametrize(
    "change",
    [{"load": 4.0}, {"cores": 1, "load": 1.0}, {"policy": "performance"}, {"speed": 100}],
)
def test_what_is_just_within_a_bound_is_fit(change: dict[str, object]) -> None:
    assert refusals(judge(FIT._replace(**change))) == []


def test_between_runs_the_load_that_was_our_own_is_not_held_against_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "look", lambda: FIT._replace(load=9.0, others=0.2))
    checks = preflight.again()
    assert [one.name for one in checks if not one.is_met] == ["share of others"]
    assert len(checks) == len(judge(FIT)) - 1


def test_a_look_finds_this_machine() -> None:
    seen = look(0.05)
    assert seen.cores >= 1
    assert 0 <= seen.others <= 1
    assert 0 < seen.free <= 1
    assert len(judge(seen)) == 7


def test_a_machine_that_is_not_fit_is_refused_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight, "look", lambda: FIT._replace(load=99.0))
    arguments = ["--arms", "url=http://127.0.0.1:9", "--out", str(tmp_path / "run.json")]
    assert command.measure(command.parse(arguments)) == 2
    assert "load average: 99.0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    command.measure(command.parse([*arguments, "--diagnostic", "--phases", "load"]))
    saved = record.load(tmp_path / "run.json")
    assert saved.mode == "diagnostic"
    assert not saved.preflight.is_clear


def run() -> Run:
    request = Request(
        phase="decode",
        attempt=2,
        index=1000,
        sha256="ab",
        turn=1,
        text="é",
        cached_tokens={"ssd": 3},
        sent_s=1.5,
        ended_s=2.5,
        events=[Event(at_s=2.0, tokens=3)],
    )
    arm = Arm(
        name="bramley",
        kind="bramley",
        command=["x"],
        versions={"mlx": "1"},
        requests=[request],
        samples=[Sample(metric="ready", unit="s", value=1.0, requests=[0])],
        not_applicable={"kill": "why"},
    )
    return Run(
        id="1",
        seed=1,
        started="2026-01-01T00:00:00+00:00",
        mode="measurement",
        preflight=Preflight(checks=judge(FIT)),
        machine={"cores": 2},
        source=Source(start="a", end="a"),
        model=Model(name="m"),
        workload={"streams": [1, 2]},
        order=["bramley"],
        arms=[arm],
    )


def test_a_run_reads_as_it_was_saved(tmp_path: Path) -> None:
    record.save(run(), tmp_path / "run.json")
    assert record.load(tmp_path / "run.json") == run()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("change", "told"),
    [({"schema": 0}, "has schema 0, and not 1"), ({"more": 1}, "more"), ({"seed": "x"}, "seed")],
)
def test_what_is_no_run_of_this_schema_is_refused(
    tmp_path: Path, change: dict[str, object], told: str
) -> None:
    file = tmp_path / "run.json"
    record.save(run(), file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(InvalidRequest, match=told):
        record.load(file)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InvalidRequest, match="is no run"):
        record.load(tmp_path / "run.json")


@pytest.mark.parametrize("place", [-1, 1])
def test_a_sample_has_to_rest_on_requests_that_are_there(tmp_path: Path, place: int) -> None:
    made = run()
    made.arms[0].samples[0].requests = [place]
    record.save(made, tmp_path / "run.json")
    with pytest.raises(InvalidRequest, match="ready rests on a request that is not there"):
        record.load(tmp_path / "run.json")


def test_the_hash_of_the_sources_is_of_names_and_content(tmp_path: Path) -> None:
    file = tmp_path / "bench" / "a.py"
    file.parent.mkdir()
    hashes = [machine.hash_of(tmp_path)]
    file.write_text("one")
    hashes.append(machine.hash_of(tmp_path))
    file.write_text("two")
    hashes.append(machine.hash_of(tmp_path))
    file.rename(file.with_name("b.py"))
    hashes.append(machine.hash_of(tmp_path))
    assert len(set(hashes)) == 4
    (tmp_path / "bench" / "notes.txt").write_text("not a source")
    assert machine.hash_of(tmp_path) == hashes[-1]


def test_facts_name_the_machine_and_what_is_installed() -> None:
    facts = machine.facts()
    assert facts["cpu"]
    assert facts["ram_bytes"] > 0
    assert facts["packages"]["bramley"]
    assert machine.versions(["bramley", "no-such-package"]).keys() == {"bramley"}


def test_the_most_is_of_each_kind_and_of_cpu_the_latest() -> None:
    one = Used(rss=5, pss=3, model=None, cpu_s={(1, 0.0): 1.0, (2, 0.0): 9.0})
    other = Used(rss=4, pss=7, model=2, cpu_s={(1, 0.0): 2.0})
    assert one.most(other) == Used(5, 7, 2, {(1, 0.0): 2.0, (2, 0.0): 9.0})


def test_a_watch_keeps_peaks_between_marks_and_over_all() -> None:
    seen = [Used(rss=value) for value in (1, 9, 3, 4)]
    watch = MemoryWatch(lambda _: seen.pop(0) if len(seen) > 1 else seen[0], every_s=3600)
    assert [watch.mark().rss for _ in range(3)] == [1, 9, 3]
    assert watch.end().rss == 9


def test_processes_that_are_gone_use_nothing() -> None:
    assert memory.used([2**22 + 1]) == Used()


def test_a_process_and_what_is_below_it_count_once() -> None:
    import os

    once, twice = memory.used([os.getpid()]), memory.used([os.getpid()] * 2)
    assert once.rss > 0
    assert abs(twice.rss - once.rss) < once.rss / 2
    assert {pid for pid, _ in once.cpu_s} >= {os.getpid()}
