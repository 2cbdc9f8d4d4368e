"""Two runs are compared on equal items alone, by the exact test."""

from math import comb
from pathlib import Path

import msgspec
import pytest

from bramley.bench.eval import paired, report
from bramley.bench.eval.provenance import describe
from bramley.bench.eval.record import Record, Run, digest, load, save
from bramley.common.errors import InvalidRequest


def record(
    name: str, verdict: str, *, task: str = "t", prompt: str = "p", item: str = "i"
) -> Record:
    facts = {"task": task, "id": name, "prompt_sha256": prompt, "item_sha256": item}
    return msgspec.convert({**facts, "verdict": verdict, "why": "", "finish": "stop"}, Record)


def run(*records: Record) -> Run:
    return Run(provenance=describe({}, {}, {}), records=list(records))


def verdicts(letters: str, task: str = "t") -> list[Record]:
    words = {"r": "right", "w": "wrong", "e": "error"}
    return [record(f"{n}", words[letter], task=task) for n, letter in enumerate(letters)]


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 5, 1.0), (5, 0, 0.0625), (0, 6, 0.03125), (9, 1, 22 / 1024)],
)
def test_the_exact_test_is_that_of_fair_coins(gained: int, lost: int, p: float) -> None:
    assert paired.mcnemar(gained, lost) == pytest.approx(p)
    assert paired.mcnemar(lost, gained) == pytest.approx(p)


def test_the_exact_test_holds_for_many_pairs() -> None:
    assert paired.mcnemar(700, 600) == pytest.approx(
        2 * sum(comb(1300, k) for k in range(601)) / 2**1300
    )


def test_pairs_are_counted_by_what_changed() -> None:
    (one, every) = paired.compare(run(*verdicts("rrrwwr")), run(*verdicts("rrwrww")))
    assert (one.pairs, one.gained, one.lost, one.unpaired) == (6, 2, 1, 0)
    assert one.difference == pytest.approx(1 / 6)
    assert one.difference_interval is not None
    assert one.difference_interval.low < 1 / 6 < one.difference_interval.high
    assert msgspec.structs.replace(every, task="t") == one


def test_what_was_asked_or_judged_otherwise_is_no_pair() -> None:
    mine = [record("a", "right"), record("b", "right"), record("c", "right"), record("d", "error")]
    theirs = [
        record("a", "wrong", prompt="other"),
        record("b", "wrong", item="other"),
        record("c", "wrong"),
        record("d", "wrong"),
        record("e", "wrong"),
    ]
    one = paired.compare(run(*mine), run(*theirs))[0]
    assert (one.pairs, one.gained, one.unpaired) == (1, 1, 7)
    assert one.difference_interval is None  # of one pair


def test_pairs_that_all_agree_have_no_interval_of_no_width() -> None:
    one = paired.compare(run(*verdicts("rrrwww")), run(*verdicts("rrrwww")))[0]
    assert (one.pairs, one.difference, one.difference_interval, one.p) == (6, 0, None, 1.0)


def test_no_pairs_are_no_difference() -> None:
    one = paired.compare(run(*verdicts("rr")), run(*verdicts("rr", task="u")))[0]
    assert (one.pairs, one.difference, one.p) == (0, None, 1.0)


def test_the_summary_counts_each_task_once_and_leaves_errors_out() -> None:
    told = report.summary(run(*verdicts("rrre"), *verdicts("rw", "u")), [], Path("x"))
    assert [one.accuracy for one in told.scores] == [1.0, 0.5]
    assert (told.mean, told.scores[0].errors) == (0.75, 1)
    assert report.summary(run(*verdicts("e")), [], Path("x")).mean is None


def test_people_see_scores_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    mine = run(*verdicts("rrrrrw"), *verdicts("e", "u"))
    report.show(mine, paired.compare(mine, run(*verdicts("wwwwww"))), Path("run.json"))
    printed = capsys.readouterr().out
    assert "83.3%" in printed
    assert "+83.3%" in printed
    assert "0.0625" in printed
    assert "run.json" in printed


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = run(*verdicts("rwe"))
    save(made, tmp_path / "run.json")
    assert load(tmp_path / "run.json") == made
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 1}'])
def test_another_file_is_no_run(tmp_path: Path, content: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(content)
    with pytest.raises(InvalidRequest, match="is no run"):
        load(file)
    with pytest.raises(InvalidRequest, match="No such file"):
        load(tmp_path / "none.json")
    save(msgspec.structs.replace(run(), schema=2), file)
    with pytest.raises(InvalidRequest, match="schema 2"):
        load(file)


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest([1, 2]) != digest([2, 1])
