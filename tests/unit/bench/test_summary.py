"""What is summed up of runs: columns, ratios, statuses and goals; and what is left out."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bramley.bench.serve import arms, goals, summary
from bramley.bench.serve.columns import PARITY
from bramley.bench.serve.compare import MACHINE_FACTS
from bramley.bench.serve.goals import Goal
from bramley.bench.serve.machine import facts
from bramley.bench.serve.phases import PHASES
from bramley.bench.serve.record import Check, Failure, Preflight, Run, Source
from bramley.bench.serve.summary import Cell, Summary, summarise, without_folders
from bramley.common.errors import InvalidRequest
from support.runs import OURS, PEER, ArmBuilder, run


def decoded(seed: int, ours: float, theirs: float = 10.0, **facts: Any) -> Run:
    return run(
        ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", ours, ours),
        ArmBuilder(PEER).add("decode", "decode_rate", "tok/s", theirs, theirs),
        seed=seed,
        **facts,
    )


def failure(error: str) -> Failure:
    return Failure(phase="decode", attempt=1, error=error, is_final=False)


def cell(told: Summary, metric: str = "decode_rate", arm: str = OURS) -> Cell:
    (line,) = (one for one in told.lines if one.metric == metric)
    (found,) = (one for one in line.cells if one.arm == arm)
    return found


def test_five_seeds_have_an_interval_and_four_say_why_not() -> None:
    runs = [decoded(seed, ours) for seed, ours in enumerate((11.0, 12.0, 12.0, 13.0, 12.0), 1)]
    told = cell(summarise(runs)).against
    assert told is not None
    low, ratio, high = told.low or 0.0, told.ratio or 0.0, told.high or 0.0
    assert ratio == pytest.approx(1.198, abs=0.002)
    assert 1.1 < low < ratio < high < 1.3
    few = cell(summarise(runs[:4])).against
    assert few is not None
    assert few.low is few.high is None
    assert few.unsure == "no interval: 4 seeds, and 5 are needed"


def test_a_seed_counts_by_the_median_of_its_pairs_so_that_one_bad_sample_does_not() -> None:
    made = run(
        ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", 20.0, 20.0, 2.0),
        ArmBuilder(PEER).add("decode", "decode_rate", "tok/s", 10.0, 10.0, 10.0),
    )
    told = cell(summarise([made])).against
    assert told is not None
    assert (told.ratio, told.seeds, told.pairs) == (2.0, 1, 3)


def test_the_same_run_given_twice_counts_once() -> None:
    once, twice = (summarise([decoded(1, 12.0)] * times) for times in (1, 2))
    assert msgspec.json.encode(once) == msgspec.json.encode(twice)


def test_a_seed_that_was_run_twice_is_one_block() -> None:
    runs = [decoded(1, 12.0, id=str(number)) for number in range(5)]
    told = cell(summarise(runs)).against
    assert told is not None
    assert told.seeds == 1
    assert told.low is None


def test_a_seed_without_a_ratio_is_named_and_the_others_count() -> None:
    runs = [decoded(seed, 12.0) for seed in (1, 2, 3)]
    runs[1].arms[0].requests[0].text = "Another answer."
    told = cell(summarise(runs))
    assert told.status == "ok"
    assert told.against is not None
    assert told.against.seeds == 2
    assert any("seed 2" in note and "texts differ" in note for note in told.notes)


def test_runs_that_are_not_of_one_kind_are_columns_of_their_own() -> None:
    elsewhere = decoded(2, 24.0, machine={"cpu": "Other"})
    told = summarise([decoded(1, 12.0), elsewhere])
    assert [one.name for one in told.arms] == [
        *(f"{OURS} (1)", f"{OURS} (2)"),
        *(f"{PEER} (1)", f"{PEER} (2)"),
    ]
    assert cell(told, arm=f"{OURS} (1)").against is not None
    other = cell(told, arm=f"{OURS} (2)")
    assert other.spread is not None
    assert other.spread.median == 24.0
    assert other.against is not None
    assert other.against.ratio is None
    assert "seeds differ" in other.notes[0]


def test_two_trees_of_one_seed_are_compared_with_each_other() -> None:
    trees = [ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", rate) for rate in (10.0, 15.0)]
    later = Source(start="6" * 64, end="6" * 64, commit="d" * 40, is_clean=True)
    runs = [run(trees[0]), run(trees[1], id="later", source=later)]
    told = summarise(runs, baseline=f"{OURS} (1)")
    found = cell(told, arm=f"{OURS} (2)").against
    assert found is not None
    assert found.ratio == 1.5


def test_the_baseline_is_the_peer_or_who_is_named() -> None:
    made = [decoded(1, 12.0)]
    assert summarise(made).baseline == PEER
    named = summarise(made, OURS)
    assert named.baseline == OURS
    assert cell(named, arm=PEER).against is not None
    assert cell(named).against is None
    with pytest.raises(InvalidRequest, match="is none of bramley, mlx_lm"):
        summarise(made, "nobody")


def test_each_status_has_its_reason() -> None:
    ours = ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", 12.0)
    ours.add("restart", "restart_ttft", "s", 0.1).add("mixed", "mixed_gap", "s", 0.9)
    peer = ArmBuilder(PEER).add("decode", "decode_rate", "tok/s", 10.0)
    peer.arm.not_applicable["restart"] = "it keeps nothing"
    peer.fail("mixed", "the connection was lost")
    other = ArmBuilder("url").add("decode", "decode_rate", "tok/s", 9.0, cached_tokens=None)
    told = summarise([run(ours, peer, other)])
    assert cell(told).status == "ok"
    suppressed = cell(told, arm="url")
    assert suppressed.status == "suppressed"
    assert "url does not tell the number of cached tokens" in suppressed.notes[0]
    absent = cell(told, "restart_ttft", PEER)
    assert (absent.status, absent.notes) == ("not applicable", ["it keeps nothing"])
    failed = cell(told, "mixed_gap", PEER)
    assert failed.status == "failed"
    assert failed.notes == ["mixed failed: the connection was lost"]
    slow = cell(told, "mixed_gap")
    assert slow.status == "slow"
    assert "required is <= 0.6" in slow.notes[0]
    assert cell(told, "mixed_gap", "url").status == "not measured"


def test_a_phase_that_succeeded_at_the_second_attempt_is_ok_and_the_failure_kept() -> None:
    ours = ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", 12.0)
    ours.fail("decode", "timed out", is_final=False)
    told = summarise([run(ours)])
    assert cell(told).status == "ok"
    assert [one.error for one in told.arms[0].failures] == ["timed out"]


def test_a_server_that_did_not_start_has_failed_at_everything() -> None:
    ours = ArmBuilder(OURS).add("decode", "decode_rate", "tok/s", 12.0)
    told = summarise([run(ours, ArmBuilder(PEER).fail("start", "it did not come up"))])
    assert cell(told, arm=PEER).status == "failed"


def test_a_run_says_what_speaks_against_it() -> None:
    unmet = Preflight(checks=[Check(name="swap", value=900.0, limit="<= 512 MB", is_met=False)])
    changed = Source(start="5" * 64, end="6" * 64, commit="c" * 40)
    made = decoded(1, 12.0, mode="diagnostic", preflight=unmet, source=changed)
    flaws = " ".join(summarise([made]).runs[0].flaws)
    for words in ("no measurement", "swap was 900", "changed while it ran", "no commit's"):
        assert words in flaws
    assert (
        "did not come to its end"
        in summarise([decoded(1, 1.0, is_complete=False)]).runs[0].flaws[0]
    )
    assert summarise([decoded(1, 12.0)]).runs[0].flaws == []


def test_a_machine_that_others_used_meanwhile_and_samples_far_apart_are_told() -> None:
    made = decoded(1, 12.0)
    ours, peer = made.arms
    ours.others, ours.stability = [0.02, 0.1], 1.15
    assert summarise([made]).runs[0].flaws == []
    peer.others, peer.stability = [0.02, 0.4], 1.16
    assert summarise([made]).runs[0].flaws == [
        f"others had 40% of the machine in a turn of {PEER}",
        f"the largest decode sample of {PEER} is 1.16 times the smallest, wanted <= 1.15",
    ]


def test_probes_are_compared_whatever_the_caches_had() -> None:
    ours = ArmBuilder(OURS).add(PARITY, "decode_rate", "tok/s", 1.0, 1.0)
    peer = ArmBuilder(PEER).add(PARITY, "decode_rate", "tok/s", 1.0, 1.0, cached_tokens={"any": 9})
    ours.arm.requests[1].text = "Paris"
    (told,) = summarise([run(ours, peer)]).parity
    assert (told.arm, told.same, told.asked) == (OURS, 1, 2)
    assert "probe 1: the answers differ from character 0 on" in told.differ[0]


def goal(told: Summary, what: str) -> Goal:
    (found,) = (one for one in told.goals if what in one.what)
    return found


def served(prompt_tokens: int = 2000, **facts: Any) -> Run:
    ours = ArmBuilder(OURS).add("ttft", "ttft_cold", "s", 10.0, prompt_tokens=prompt_tokens)
    ours.add("ttft", "ttft_repeat", "s", 0.2, prompt_tokens=prompt_tokens)
    ours.add("restart", "restart_cold_ttft", "s", 10.0, prompt_tokens=prompt_tokens)
    ours.add("restart", "restart_ttft", "s", 0.2, prompt_tokens=prompt_tokens)
    ours.add("kill", "kill_ttft", "s", 0.25, prompt_tokens=prompt_tokens)
    for streams, rate in ((1, 10.0), (4, 18.0), (8, 27.0)):
        ours.add("aggregate", f"aggregate_rate@{streams}", "tok/s", rate)
    ours.add("mixed", "mixed_idle_ttft", "s", 0.2).add("mixed", "mixed_short_ttft", "s", 0.75)
    ours.add("mixed", "mixed_kept", "share", 0.45).also("ready", "s", 2.6)
    return run(ours, **facts)


@pytest.mark.parametrize(
    ("what", "required", "reached", "verdict"),
    [
        ("4 streams together, against one", ">= 1.785", 1.8, "met"),
        ("8 streams together, against one", ">= 2.72", 2.7, "missed"),
        ("(ttft_cold over ttft_repeat)", ">= 100", 50.0, "missed"),
        ("after a restart", ">= 40", 50.0, "met"),
        ("after SIGKILL", "<= 1.5", 1.25, "met"),
        ("a short request", "<= 0.7", 0.75, "missed"),
        ("running streams keep", ">= 0.45", 0.45, "met"),
        ("start of the processes", "<= 2.5", 2.6, "missed"),
        ("longest gap", "<= 0.6", None, "not shown"),
        ("one stream, against", ">= 1", None, "not shown"),
    ],
)
def test_goals_are_judged(what: str, required: str, reached: float | None, verdict: str) -> None:
    found = goal(summarise([served()]), what)
    assert (found.required, found.verdict) == (required, verdict)
    assert found.reached == (reached if reached is None else pytest.approx(reached))


def test_a_gap_is_told_in_the_unit_of_the_goal() -> None:
    told = summarise([served()])
    assert goal(told, "start of the processes").gap == "0.1 s"
    assert goal(told, "(ttft_cold over ttft_repeat)").gap == "50x"
    assert goal(told, "after a restart").gap == ""


@pytest.mark.parametrize(
    ("tokens", "required", "verdict"), [(600, ">= 20", "met"), (599, ">= 20", "not shown")]
)
def test_how_much_a_cache_must_gain_depends_on_the_prompt(
    tokens: int, required: str, verdict: str
) -> None:
    found = goal(summarise([served(tokens)]), "(ttft_cold over ttft_repeat)")
    assert (found.required, found.verdict) == (required, verdict)
    assert f"prompts of {tokens} tokens" in found.note


def test_a_restart_is_judged_at_two_thousand_tokens_and_shown_before() -> None:
    found = goal(summarise([served(1000)]), "after a restart")
    assert found.verdict == "not shown"
    assert found.reached == pytest.approx(50.0)


def test_a_gpu_has_goals_of_its_own() -> None:
    told = summarise([served(machine={"packages": {"mlx-metal": "1.0"}})])
    assert goal(told, "4 streams together, against one").required == ">= 3.3"
    assert not any("restart" in one.what for one in told.goals)


def test_the_peer_s_goals_are_of_comparable_work_alone() -> None:
    made = decoded(1, 11.0)
    assert goal(summarise([made]), "one stream").verdict == "met"
    assert goal(summarise([decoded(1, 9.0)]), "one stream").gap == "0.1x"
    made.arms[1].requests[0].text = "Another answer."
    found = goal(summarise([made]), "one stream")
    assert found.verdict == "not shown"
    assert "texts differ" in found.note


def test_nothing_is_required_of_others() -> None:
    assert summarise([run(ArmBuilder(PEER).also("ready", "s", 99.0))]).goals == []


def test_kinds_of_arms_facts_and_phases_are_those_of_the_benchmark() -> None:
    assert (goals.OURS, goals.PEER) == (arms.OURS, arms.PEER)
    assert set(MACHINE_FACTS) <= facts().keys()
    assert PARITY in PHASES


def test_a_summary_holds_no_text_no_time_of_a_token_and_no_folder() -> None:
    made = decoded(1, 12.0)
    made.arms[0].requests[0].text = "Once upon a time"
    made.arms[0].command = ["/opt/venv/bin/python", "--model=/home/someone/my models/tiny"]
    made.command = ["bramley", "bench", "serve", "--model", "/home/someone/my models/tiny"]
    made.asked = {"0": {"messages": [{"role": "user", "content": "Once upon"}]}}
    made.arms[0].failures = [failure("'/home/someone/my models/tiny' is no model")]
    told = summarise([made], command=["bramley", "~/models/tiny"])
    assert told.commands == ["bramley bench serve --model tiny", "bramley tiny"]
    text = msgspec.json.encode(told).decode()
    for secret in ("Once upon", "at_s", "someone", "/opt", "~/"):
        assert secret not in text
    assert '"--model=tiny"' in text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/someone/run.json", "run.json"),
        ("--out=/tmp/x/run.json", "--out=run.json"),
        ("http://127.0.0.1:8080/v1/models", "http://127.0.0.1:8080/v1/models"),
        ("tok/s and 3/4", "tok/s and 3/4"),
        ("no such file: '/a/b'", "no such file: 'b'"),
        ("no such file: '/a b/c d/e f'", "no such file: 'e f'"),
        ("it isn't in /a/b, nor in '/c/d'", "it isn't in b, nor in 'd'"),
        ("docs/performance/a.json", "docs/performance/a.json"),
    ],
)
def test_of_a_path_the_last_part_is_kept(text: str, kept: str) -> None:
    assert without_folders(text) == kept


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    told, path = summarise([decoded(1, 12.0)]), tmp_path / "a.json"
    summary.save(told, path)
    assert summary.load(path) == told
    first = path.read_bytes()
    summary.save(summary.load(path), path)
    assert path.read_bytes() == first


@pytest.mark.parametrize("content", ['{"schema": 99}', "[]", "no JSON"])
def test_what_is_no_summary_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match=r"summary|schema"):
        summary.load(path)
