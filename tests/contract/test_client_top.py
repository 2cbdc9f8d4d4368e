"""``bramley top``, against a scripted router with metrics, a scripted store, and none of them."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typing_extensions import override

from bramley.client import cli
from support.fake_router import MODEL, FakeRouter, serving, write_state
from support.fake_store import FakeStore, storing

Output = pytest.CaptureFixture[str]
PATIENCE_S = 20.0

METRICS = f"""
bramley_router_generated_tokens_total{{model="{MODEL}"}} 1000
bramley_router_queue_depth{{model="{MODEL}",class="bulk"}} 4
bramley_router_time_to_first_token_seconds_bucket{{model="{MODEL}",le="0.5"}} 10
bramley_router_time_to_first_token_seconds_bucket{{model="{MODEL}",le="+Inf"}} 10
bramley_router_cached_tokens_total{{model="{MODEL}",tier="ram"}} 60
bramley_router_prompt_tokens_total{{model="{MODEL}"}} 80
"""


class Metrics(BaseHTTPRequestHandler):
    """Shows the same metrics again and again."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    @override
    def log_message(self, *_: object, **__: object) -> None:
        return


@pytest.fixture
def http() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cluster(tmp_path: Path, http: str) -> Generator[tuple[FakeRouter, FakeStore]]:
    with storing() as (store, address), serving(address) as (router, target):
        write_state(tmp_path, router=target, node=target)
        point_at(tmp_path, http)
        yield router, store


def point_at(state_dir: Path, http: str) -> None:
    """Write another address of the router's metrics."""
    file = state_dir / "node.json"
    told = json.loads(file.read_text())
    told["addresses"]["http"] = http
    file.write_text(json.dumps(told))


def run(state_dir: Path, patch: pytest.MonkeyPatch, *arguments: str, columns: int = 120) -> int:
    command = ["bramley", "--state-dir", str(state_dir), "top", "--every", "0.1", *arguments]
    patch.setattr(sys, "argv", command)
    patch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_once_shows_models_and_cache_and_ends(
    tmp_path: Path,
    cluster: tuple[FakeRouter, FakeStore],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    router, store = cluster
    router.model.requests_running = 3
    router.model.reserved_bytes = 5 << 20
    router.model.memory_bytes = 2 << 20
    store.stats.counters.update({"matches": 4, "match_hits": 1})
    store.stats.gauges.update({"ram_bytes": 1 << 30, "ram_budget_bytes": 2 << 30})
    assert run(tmp_path, monkeypatch, "--once") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bramley 1.2.3  running  3 running  0 waiting  0 tok/s"
    (model,) = [line for line in lines if line.startswith(MODEL)]
    assert cells(model) == [MODEL, "ready", "3", "4 bulk", "0", "0.25 s", "5 MiB", "2 MiB"]
    assert [line.strip() for line in lines[-3:]] == [
        "cache   RAM 1.0 GiB of 2.0 GiB",
        "75% of prompt tokens not computed",
        "25% of lookups hit",
    ]


@pytest.mark.usefixtures("cluster")
def test_a_pipe_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    assert run(tmp_path, monkeypatch) == 0
    assert capsys.readouterr().out.count("bramley 1.2.3") == 1


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("columns", [20, 40, 63, 64, 99, 100])
def test_a_narrow_terminal_is_kept_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, columns: int
) -> None:
    assert run(tmp_path, monkeypatch, "--once", columns=columns) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    head = next(line for line in lines[1:] if line)
    assert ("reserved" in head) == (columns >= 100)
    assert ("first token" in head) == (columns >= 64)


@pytest.mark.parametrize("status", [401, 503])
def test_without_metrics_the_rest_is_shown(
    tmp_path: Path,
    cluster: tuple[FakeRouter, FakeStore],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
    http: str,
    status: int,
) -> None:
    cluster[0].model.memory_bytes = 0
    cluster[0].model.reserved_bytes = 5 << 20
    monkeypatch.setattr(Metrics, "status", status)
    assert run(tmp_path, monkeypatch, "--once") == 0
    lines = capsys.readouterr().out.splitlines()
    (model,) = [line for line in lines if line.startswith(MODEL)]
    assert cells(model) == [MODEL, "ready", "0", "0", "5 MiB"]
    assert lines[-1] == f"metrics none at {http}"


def test_a_router_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    with serving() as (_, target):
        write_state(tmp_path, router="unix:/nowhere.sock", node=target)
        assert run(tmp_path, monkeypatch, "--once") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("bramley running: the router does not answer")
    assert "no store" in shown


def test_without_a_cluster_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    assert run(tmp_path / "none", monkeypatch, "--once") == 1
    assert "no cluster runs" in capsys.readouterr().err


@pytest.mark.usefixtures("cluster")
def test_on_a_terminal_it_is_drawn_again_until_ctrl_c_and_leaves_the_screen_as_it_was(
    tmp_path: Path,
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bramley.client", "--state-dir", str(tmp_path), "top"]
    process = subprocess.Popen(
        [*command, "--every", "0.1"], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        shown = read_until(ours, rb"(bramley 1\.2\.3[\s\S]*){3}")
        assert b"\x1b[?1049h" in shown  # the other screen
        process.send_signal(signal.SIGINT)
        rest = read_until(ours, rb"\x1b\[\?1049l")
        assert b"Traceback" not in shown + rest
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(fd: int, pattern: bytes) -> bytes:
    """Read a terminal until its output has ``pattern``."""
    said = b""
    give_up_s = time.monotonic() + PATIENCE_S
    while not re.search(pattern, said):
        left_s = give_up_s - time.monotonic()
        assert left_s > 0, said
        if select.select([fd], [], [], left_s)[0]:
            said += os.read(fd, 65536)
    return said
