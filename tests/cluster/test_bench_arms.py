"""The serving benchmark with real servers: restarted, killed, and nothing of them left."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bramley.bench.serve import record
from bramley.bench.serve.record import Arm, Run

WRITER = """
from pathlib import Path
import sys
from support.tiny_models import save_tiny
save_tiny(Path(sys.argv[1]), "full", seed=5)
"""
TESTS = str(Path(__file__).parents[1])
PATIENCE_S = 600.0
OURS, OVER_HTTP, PEER = "bramley", "bramley-http", "mlx_lm.server"
ARMS = (OURS, OVER_HTTP, PEER)
TIMES = ("ready", "cold_start", "restart_ready", "restart_ttft", "kill_served_again", "kill_ttft")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the benchmark on a tiny model, as from a shell."""
    folder = tmp_path_factory.mktemp("bench")
    model, out = folder / "model", folder / "run.json"
    write = [sys.executable, "-P", "-c", WRITER, str(model)]
    subprocess.run(write, check=True, timeout=60, env={**os.environ, "PYTHONPATH": TESTS})
    command = [sys.executable, "-P", "-m", "bramley.client", "bench", "serve"]
    command += ["--model", str(model), "--arms", ",".join(ARMS), "--out", str(out)]
    command += ["--quick", "--diagnostic", "--phases", "parity,restart,kill"]
    with subprocess.Popen(command) as running:
        try:
            assert running.wait(PATIENCE_S) == 0
        finally:
            running.terminate()  # as an interruption: it stops its servers
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline"])
        if str(model) in " ".join(process.info["cmdline"] or ())
    ]
    assert left == []
    return record.load(out)


def arm(saved: Run, name: str) -> Arm:
    (found,) = (arm for arm in saved.arms if arm.name == name)
    return found


def values(made: Arm, metric: str) -> list[float]:
    return [sample.value for sample in made.samples if sample.metric == metric]


def test_all_phases_end_well_in_both_turns(saved: Run) -> None:
    assert saved.is_complete
    assert saved.order == [*ARMS, *reversed(ARMS)]
    for made in saved.arms:
        assert [failure for failure in made.failures if failure.is_final] == []
        assert made.not_applicable == {}
        for name in TIMES:
            assert len(values(made, name)) == 2, name
        assert min(values(made, "memory_peak_rss")) >= max(values(made, "memory_idle_rss")) / 2


def test_all_answer_the_same_to_the_same(saved: Run) -> None:
    ours, over_http, theirs = (
        {
            (one.phase, one.attempt, one.index): (one.sha256, one.text, one.prompt_tokens)
            for one in arm(saved, name).requests
            if one.phase == "parity"
        }
        for name in ARMS
    )
    assert ours == over_http == theirs


def test_what_was_stored_outlives_a_restart_and_a_kill_of_ours_alone(saved: Run) -> None:
    for ours in (arm(saved, OURS), arm(saved, OVER_HTTP)):
        prompts = [one.prompt_tokens for one in ours.requests if one.phase == "restart"]
        assert min(values(ours, "restart_cached")) > 0.8 * min(each or 0 for each in prompts)
        assert min(values(ours, "kill_cached")) > 100
    assert max(values(arm(saved, PEER), "restart_cached")) < 50


def test_the_request_under_a_kill_is_kept_with_what_it_was_told(saved: Run) -> None:
    for made in saved.arms:
        cut = [one for one in made.requests if one.phase == "kill" and one.error is not None]
        assert len(cut) >= 2
        assert cut[0].events
        assert cut[0].finish is None
