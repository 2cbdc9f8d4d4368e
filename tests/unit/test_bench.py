"""What the benchmarks make of what they measured; none of them is run."""

import json
import subprocess
import sys

import pytest

from bramley.bench import engine, fairness
from bramley.bench.fairness import Turn
from bramley.bench.figures import Figure, Machine, Required, show
from bramley.bench.timeline import Timeline


def figure(*turns: tuple[float, float]) -> Figure:
    made = Figure("one stream", "tok/s", ("ours", "theirs"), required=Required(">=", 1.0))
    for ours, theirs in turns:
        made.add(ours, theirs)
    return made


def test_the_verdict_is_of_the_median_of_each_turn_s_own_ratio() -> None:
    assert figure((1, 2), (30, 20), (4, 2)).verdict == "ok"
    assert figure((1, 2), (30, 40), (4, 2)).verdict == "MISSED"


def test_a_bound_from_above_is_met_from_below() -> None:
    assert Required("<=", 1.01).is_met(1.01)
    assert not Required("<=", 1.01).is_met(1.02)


def test_the_table_tells_ratio_requirement_verdict_and_a_busy_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([figure((30, 20))], others=0.5)
    printed = capsys.readouterr().out
    assert "1.500" in printed
    assert ">= 1  " in printed
    assert "ok" in printed
    assert "busy: others had 50%" in printed


def test_json_has_every_turn(capsys: pytest.CaptureFixture[str]) -> None:
    show([figure((30, 20), (1, 2))], others=0.0, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["figures"][0]["ours"] == [30, 1]
    assert told["figures"][0]["verdict"] == "ok"


def test_a_rate_is_of_the_time_in_which_all_rows_ran() -> None:
    early, late = [0.0, 1.0, 2.0, 3.0], [2.0, 2.5, 3.0, 3.5, 9.0]
    assert Timeline([early, late]).rate == (1 + 2) / 1.0
    assert Timeline([early, late]).step_s == pytest.approx(2 / 3)


def test_rows_that_never_ran_together_have_no_rate() -> None:
    with pytest.raises(AssertionError, match="take more tokens"):
        _ = Timeline([[0.0, 1.0], [1.0, 2.0]]).rate


def test_cpu_time_is_counted_a_step() -> None:
    times = [0.0, 1.0, 2.0]
    assert Timeline([times], [(at_s, at_s / 4) for at_s in times]).cpu_s == 0.25


def test_the_command_line_takes_parts_and_models() -> None:
    arguments = engine.parse(["--part", "alone", "--part", "host", "--model", "tiny", "--json"])
    assert (arguments.part, arguments.model) == (["alone", "host"], ["tiny"])
    assert fairness.parse(["--turns", "2"]).turns == 2
    with pytest.raises(SystemExit):
        engine.parse(["--part", "nothing"])


def turn(short_s: float, during: float, gap_s: float) -> Turn:
    return Turn(idle_s=0.1, short_s=short_s, long_s=5.0, before=10.0, during=during, gap_s=gap_s)


def test_fairness_judges_the_first_system_alone(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = turn(0.5, 5.0, 0.3), turn(5.0, 0.5, 4.0)
    assert fairness.show([[good], [bad]], ("ours", "theirs"), 0.0, as_json=False) == 0
    assert fairness.show([[bad], [good]], ("ours", "theirs"), 0.0, as_json=False) == 1
    assert capsys.readouterr().out.count("MISSED") == 3


def test_what_a_child_used_is_not_of_others_after_it_has_ended() -> None:
    spin = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    before = Machine().used_s()
    subprocess.run([sys.executable, "-c", spin], check=True)
    assert Machine().used_s() - before >= 0.4
