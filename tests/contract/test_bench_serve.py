"""The serving benchmark against a server that knows when it said what."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from typing_extensions import override

from bramley.bench.serve import __main__ as command
from bramley.bench.serve import phases, preflight, record
from bramley.bench.serve.arms import Elsewhere
from bramley.bench.serve.dialects import Clock, GoOn, to_the_end
from bramley.bench.serve.metrics import METRICS, metric
from bramley.bench.serve.phases import go_through
from bramley.bench.serve.record import Arm, Request, Run
from bramley.bench.serve.turn import Turn
from bramley.bench.serve.workload import Asked, Sizes, Workload, four_characters_a_token
from support.scripted_server import MODEL, Fault, Heard, Script, ScriptedServer, scripted_server
from support.virtual_time import VirtualTime

TIMEOUT_S = 20.0
TTFT_S, CACHED_S, ITL_S = 0.4, 0.15, 0.04
LONG_S, LONG_ITL_S = 3.0, 0.1
approx = partial(pytest.approx, rel=0.02)
SIZES = Sizes(
    parity_answer=3,
    decode_samples=2,
    decode_answer=9,
    ttft_prompt=200,
    ttft_samples=1,
    short_answer=2,
    context_prompt=400,
    context_answer=6,
    context_repeats=1,
    streams=(1, 3),
    aggregate_answer=6,
    aggregate_context=40,
    stagger_s=0.1,
    mixed_streams=2,
    mixed_prompt=400,
    mixed_answer=2000,
    mixed_s=2.0,
    agent_turns=3,
    agent_prompt=200,
    agent_result=30,
    agent_answer=4,
)


class Slowed(Elsewhere):
    """A server whose time is not the machine's."""

    times: VirtualTime

    @override
    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        with self.times.asking(json.dumps(asked.messages)):
            return super().ask(asked, now, go_on)


class Bench:
    """A turn at a scripted server."""

    def __init__(self, server: ScriptedServer, times: VirtualTime) -> None:
        self.server = server
        self.arm = Arm(name="scripted", kind="url", command=[], versions={})
        slowed = Slowed(server.url, TIMEOUT_S)
        slowed.times = times
        slowed.start()
        workload = Workload(1, SIZES, four_characters_a_token)
        self.turn = Turn(slowed, self.arm, workload, times.now, 0, times.sleep)

    def values(self, name: str) -> list[float]:
        """Samples of a metric."""
        return [sample.value for sample in self.arm.samples if sample.metric == name]


@contextmanager
def bench(script: Script) -> Generator[Bench]:
    times = VirtualTime()
    with scripted_server(script, times) as server:
        yield Bench(server, times)


@contextmanager
def through(phase: str, **more: float) -> Generator[Bench]:
    """Go through a phase at a server of known figures, without a failure."""
    figures = {"ttft_s": TTFT_S, "cached_s": CACHED_S, "itl_s": ITL_S, **more}
    script = Script()
    for name, value in figures.items():
        setattr(script, name, value)
    with bench(script) as made:
        assert go_through(made.turn, phase), made.arm.failures
        assert made.arm.failures == []
        yield made


def words(heard: Heard) -> int:
    """How the server counts a prompt's tokens."""
    return len(heard.prompt.split())


def test_decode_tells_the_rate_and_the_time_of_each_sample() -> None:
    with through("decode") as made:
        wall_s = TTFT_S + (SIZES.decode_answer - 1) * ITL_S
        assert made.values("decode_rate") == approx([1 / ITL_S] * 2)
        assert made.values("request_wall") == approx([wall_s] * 2)
        assert made.values("output_rate") == approx([SIZES.decode_answer / wall_s] * 2)


def test_first_texts_are_told_cold_and_repeated_and_cached_tokens_are_not_prefilled() -> None:
    with through("ttft") as made:
        cold, again = made.server.heard
        assert cold.cached == 0
        assert [one.prompt_tokens for one in made.arm.requests] == [words(cold), words(again)]
        assert made.arm.requests[1].cached_tokens == {"any": words(again)}
        assert made.values("ttft_cold") == approx([TTFT_S])
        assert made.values("ttft_repeat") == approx([CACHED_S])
        assert made.values("prefill_rate") == approx([words(cold) / TTFT_S])


def test_a_long_context_is_told_cold_and_repeated() -> None:
    with through("context") as made:
        assert made.values("context_ttft") == approx([TTFT_S])
        assert made.values("context_repeat_ttft") == approx([CACHED_S])
        assert made.values("context_prefill_rate") == approx([words(made.server.heard[0]) / TTFT_S])
        assert made.values("context_decode_rate") == approx([1 / ITL_S] * 2)


def test_streams_together_are_told_as_a_whole_and_each_and_start_one_after_the_other() -> None:
    with through("aggregate") as made:
        _, *three = made.server.heard
        wall_s = TTFT_S + (SIZES.aggregate_answer - 1) * ITL_S
        assert made.values("aggregate_rate@1") == approx([SIZES.aggregate_answer / wall_s])
        starts = [later.came_s - one.came_s for one, later in pairwise(three)]
        assert min(starts) > SIZES.stagger_s * 0.999
        span_s = sum(starts) + wall_s
        assert made.values("aggregate_rate@3") == approx([3 * SIZES.aggregate_answer / span_s])
        assert made.values("aggregate_stream_rate@3") == approx([1 / ITL_S] * 3)
        assert made.values("aggregate_ttft@3") == approx([TTFT_S] * 3)


def test_running_streams_a_long_prompt_and_a_short_one_are_told_beside_each_other() -> None:
    with through("mixed", long_s=LONG_S, long_words=300, long_itl_s=LONG_ITL_S) as made:
        assert made.values("mixed_idle_ttft") == approx([TTFT_S])
        assert made.values("mixed_short_ttft") == approx([TTFT_S])
        assert made.values("mixed_long_ttft") == approx([LONG_S])
        assert made.values("mixed_itl_p50") == approx([LONG_ITL_S])
        assert made.values("mixed_itl_p99") == approx([LONG_ITL_S])
        assert made.values("mixed_gap") == approx([LONG_ITL_S])
        # Of some 50 words, one more or less at either end of each stream.
        assert made.values("mixed_kept") == approx([ITL_S / LONG_ITL_S], rel=0.1)


def test_an_agent_s_turns_are_told_with_what_was_cached_of_them() -> None:
    with through("agent") as made:
        first, *later = made.server.heard
        assert first.cached == 0
        assert all(0 < each.cached < words(each) for each in later)
        turns, rest_s = SIZES.agent_turns, (SIZES.agent_answer - 1) * ITL_S
        assert made.values("agent_ttft") == approx([CACHED_S] * (turns - 1))
        share = sum(each.cached for each in later) / sum(map(words, later))
        assert made.values("agent_cached") == approx([share])
        wall_s = TTFT_S + (turns - 1) * CACHED_S + turns * rest_s
        assert made.values("agent_wall") == approx([wall_s])


def test_an_agent_s_next_turn_has_what_the_server_answered() -> None:
    with bench(Script(words=2)) as made:
        assert go_through(made.turn, "agent")
        second = made.server.heard[1].body["messages"]
        assert second[1] == {"role": "assistant", "content": "w0 w1 "}


def test_probes_keep_their_texts() -> None:
    with bench(Script()) as made:
        assert go_through(made.turn, "parity")
        assert {request.text for request in made.arm.requests} == {"w0 w1 w2 "}
        assert made.arm.samples == []


@pytest.mark.parametrize("phase", ["load", "restart", "kill"])
def test_what_only_the_owner_of_a_server_can_do_is_told_as_such(phase: str) -> None:
    with bench(Script()) as made:
        assert go_through(made.turn, phase)
        assert list(made.arm.not_applicable) == [phase]
        assert made.server.heard == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("refuse", "HTTP 503"),
        ("cut", "cut before its end"),
        ("error", "the device is lost"),
        ("garble", "truncated"),
    ],
)
def test_a_phase_that_fails_once_is_tried_again_with_other_prompts(fault: Fault, told: str) -> None:
    with bench(Script(faults=[None, fault])) as made:
        assert go_through(made.turn, "decode")
        (failure,) = made.arm.failures
        assert told in failure.error
        assert (failure.attempt, failure.is_final) == (1, False)
        assert [(one.attempt, one.error is None) for one in made.arm.requests] == [
            *((1, True), (1, False)),
            *((2, True), (2, True)),
        ]
        assert len({one.sha256 for one in made.arm.requests}) == 4
        assert len(made.values("decode_rate")) == SIZES.decode_samples
        assert {sample.requests[0] for sample in made.arm.samples} == {2, 3}


def test_a_cut_answer_is_kept_as_far_as_it_came() -> None:
    with bench(Script(faults=["cut"])) as made:
        go_through(made.turn, "decode")
        cut = made.arm.requests[0]
        assert cut.text == "w0 w1 w2 w3 "
        assert len(cut.events) == 4
        assert cut.finish is None


def test_a_phase_that_fails_twice_has_no_samples_and_a_final_failure() -> None:
    with bench(Script(faults=["refuse", None, "cut"])) as made:
        assert not go_through(made.turn, "decode")
        assert [failure.is_final for failure in made.arm.failures] == [False, True]
        assert made.arm.samples == []


def test_streams_that_fail_are_all_ended_and_kept() -> None:
    with bench(Script(faults=[None, "cut", "refuse"])) as made:
        assert go_through(made.turn, "aggregate")
        assert sum(one.error is not None for one in made.arm.requests) == 2
        assert sum(one.attempt == 1 for one in made.arm.requests) == sum(SIZES.streams)


def test_a_server_that_counts_nothing_is_counted_by_its_texts() -> None:
    with bench(Script(usage=False, itl_s=0.01)) as made:
        assert go_through(made.turn, "ttft")
        request = made.arm.requests[0]
        assert request.counted_by == "events"
        assert request.completion_tokens is None
        assert [event.tokens for event in request.events] == [1, 1]
        assert "prefill_rate" in made.arm.not_applicable
        assert made.values("prefill_rate") == []


def test_a_server_that_tells_no_cached_tokens_has_no_share_of_them() -> None:
    with bench(Script(tells_cached=False)) as made:
        assert go_through(made.turn, "agent")
        assert made.arm.requests[0].cached_tokens is None
        assert "agent_cached" in made.arm.not_applicable


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each run the seconds that it looks at the machine."""
    facts = preflight.Facts(2, 0.0, 0.0, 1.0, 0, {}, "", None)
    monkeypatch.setattr(preflight, "look", lambda: facts)


def run(folder: Path, *arguments: str) -> tuple[int, Path]:
    """Run the command as from a shell; the exit code, and the file."""
    out = folder / "run.json"
    given = ["--quick", "--diagnostic", "--out", str(out), *arguments]
    return command.measure(command.parse(given)), out


def test_a_run_of_two_servers_asks_both_the_same_in_turns(tmp_path: Path) -> None:
    with scripted_server(Script()) as one, scripted_server(Script()) as other:
        urls = f"url={one.url},url={other.url}#named"
        code, out = run(tmp_path, "--arms", urls, "--phases", "decode,restart", "--seed", "7")
        assert code == 0
        saved = record.load(out)
        assert saved.order == [one.url, other.url, other.url, one.url]
        assert (saved.seed, saved.mode, saved.is_complete) == (7, "diagnostic", True)
        assert saved.preflight.checks
        assert saved.source.end
        assert saved.command[:3] == ["bramley", "bench", "serve"]
        assert saved.command[-2:] == ["--seed", "7"]
        assert {"--arms", urls} <= set(saved.command)
        assert saved.asked.keys() == {*hashes(saved, 0)}
        assert saved.asked[hashes(saved, 0)[1]]["messages"] == one.heard[1].body["messages"]
        assert hashes(saved, 0) == hashes(saved, 1)
        assert {sample.turn for sample in saved.arms[0].samples} == {0, 1}
        asked = [[heard.body["messages"] for heard in each.heard] for each in (one, other)]
        assert asked[0] == asked[1]
        assert [each.heard[0].body["model"] for each in (one, other)] == [MODEL, "named"]
        assert "restart" in saved.arms[0].not_applicable


def hashes(saved: Run, arm: int) -> list[str]:
    """What an arm was asked."""
    return [request.sha256 for request in saved.arms[arm].requests]


def test_every_sample_is_of_a_known_metric_and_rests_on_requests_of_its_phase(
    tmp_path: Path,
) -> None:
    with scripted_server(Script(itl_s=0.002)) as server:
        _, out = run(tmp_path, "--arms", f"url={server.url}", "--streams", "1,2")
    arm = record.load(out).arms[0]
    assert arm.failures == []
    for sample in arm.samples:
        assert sample.unit == metric(sample.metric).unit
        assert sample.requests
        assert all(arm.requests[place].error is None for place in sample.requests)
    measured = {sample.metric.partition("@")[0] for sample in arm.samples}
    owners = ("ready", "cold_start", "restart", "kill", "memory")  # of a server know more
    assert {name.rstrip("@") for name in METRICS} - measured == {
        name.rstrip("@") for name in METRICS if name.startswith(owners)
    }


def test_a_failure_for_good_shows_in_the_exit_code_and_the_rest_goes_on(tmp_path: Path) -> None:
    with scripted_server(Script(faults=[None, "refuse", "refuse"])) as server:
        arms = f"url={server.url}"
        code, out = run(tmp_path, "--arms", arms, "--phases", "warm-up,parity,decode")
    assert code == 1
    arm = record.load(out).arms[0]
    assert [failure.phase for failure in arm.failures if failure.is_final] == ["parity"]
    assert any(sample.metric == "decode_rate" and sample.turn == 0 for sample in arm.samples)


def test_a_server_that_is_not_there_is_a_failure_of_its_start(tmp_path: Path) -> None:
    code, out = run(tmp_path, "--arms", "url=http://127.0.0.1:9", "--phases", "decode")
    assert code == 1
    assert [failure.phase for failure in record.load(out).arms[0].failures] == ["start", "start"]


def test_several_seeds_are_a_file_each_and_ask_other_things(tmp_path: Path) -> None:
    with scripted_server(Script()) as server:
        arms = f"url={server.url}"
        run(tmp_path, "--arms", arms, "--phases", "decode", "--seeds", "2", "--seed", "3")
    runs = [record.load(tmp_path / f"run-{seed}.json") for seed in (3, 4)]
    decoded = [
        {request.sha256 for request in saved.arms[0].requests if request.phase == "decode"}
        for saved in runs
    ]
    assert not decoded[0] & decoded[1]


def test_an_interruption_leaves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with scripted_server(Script()) as server:
        arms = f"url={server.url}"
        monkeypatch.setitem(phases.PHASES, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "--arms", arms, "--phases", "decode")
    saved = record.load(tmp_path / "run.json")
    assert [request.phase for request in saved.arms[0].requests] == ["warm-up"]
    assert saved.asked.keys() == {*hashes(saved, 0)}
    assert not saved.is_complete


def test_the_command_line_passes_everything_on() -> None:
    begin = [sys.executable, "-P", "-m", "bramley.client", "bench", "serve"]
    for arguments, code, told in (
        (["--arms", "nobody"], 2, "--arms: 'nobody' is none that is known"),
        (["--help"], 0, "usage: bramley bench serve"),
    ):
        ended = subprocess.run(
            [*begin, "--diagnostic", *arguments], check=False, capture_output=True, text=True
        )
        assert ended.returncode == code
        assert told in ended.stdout + ended.stderr
