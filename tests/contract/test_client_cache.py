"""``bramley cache``, against a scripted router and a scripted store."""

import json
from collections.abc import Generator
from pathlib import Path

import grpc
import pytest

from bramley.cachestore.disk import Disk
from bramley.protos.v1 import cachestore_pb2, router_pb2
from support.fake_router import MODEL, FakeRouter, serving, write_state
from support.fake_store import FakeStore, storing
from support.shell import Shell

Output = pytest.CaptureFixture[str]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path / "state", monkeypatch, "cache")


@pytest.fixture
def cluster(shell: Shell) -> Generator[tuple[FakeRouter, FakeStore]]:
    with storing() as (store, address), serving(address) as (router, target):
        write_state(shell.state_dir, router=target, node=target)
        yield router, store


@pytest.fixture
def router(cluster: tuple[FakeRouter, FakeStore]) -> FakeRouter:
    return cluster[0]


@pytest.fixture
def store(cluster: tuple[FakeRouter, FakeStore]) -> FakeStore:
    return cluster[1]


def test_stats_json_is_what_the_store_tells(shell: Shell, store: FakeStore, capsys: Output) -> None:
    store.stats.counters.update({"matches": 5, "match_hits": 3})
    store.stats.gauges.update({"objects": 2})
    assert shell.run("stats", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "counters": {"matches": 5, "match_hits": 3},
        "gauges": {"objects": 2},
    }


def test_stats_show_tiers_hits_and_each_refusal(
    shell: Shell, store: FakeStore, capsys: Output
) -> None:
    store.stats.counters.update(
        {
            "matches": 5,
            "match_hits": 3,
            "matched_tokens": 700,
            "refused_ram_full": 4,
            "refused_oversize": 0,
            "acquired_ssd": 9,
        }
    )
    store.stats.gauges.update(
        {
            "objects": 2,
            "ram_bytes": 3 << 20,
            "ram_budget_bytes": 1 << 30,
            "ssd_is_on": 1,
            "ssd_is_failing": 1,
        }
    )
    assert shell.run("stats") == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "ram 3 MiB 1.0 GiB 0 on" in rows
    assert "ssd 0 B 0 B 9 failing: full or sick" in rows
    assert "hits 3 of 5, 700 tokens" in rows
    assert "misses 2" in rows
    assert [row for row in rows if row.startswith("refused")] == ["refused: ram full 4"]


def test_flush_tells_what_is_on_the_disk(shell: Shell, router: FakeRouter, capsys: Output) -> None:
    assert shell.run("flush", MODEL) == 0
    expected = "3 MiB are on the disk, the longest prompt of 512 tokens\n"
    assert capsys.readouterr().out == expected
    router.flushed = router_pb2.FlushCacheResponse(pending=1, refused=2, failed=3, missing=4)
    assert shell.run("flush") == 1
    error = capsys.readouterr().err
    assert error.endswith("1 pending, 2 refused, 3 failed, 4 missing\n")


@pytest.mark.usefixtures("cluster")
def test_flush_of_an_unknown_model_is_bad_input(shell: Shell) -> None:
    assert shell.run("flush", "nobody") == 2


@pytest.mark.parametrize(
    ("flags", "has_template", "sent"),
    [
        ([], True, "chat"),
        ([], False, "text"),
        (["--raw"], True, "text"),
        (["--chat"], False, "chat"),
    ],
)
def test_explain_renders_the_prompt_as_generate_would(
    shell: Shell, router: FakeRouter, flags: list[str], has_template: bool, sent: str
) -> None:
    router.model.limits.has_chat_template = has_template
    assert shell.run("explain", MODEL, "hi", *flags) == 0
    assert router.explained[0].WhichOneof("input") == sent


@pytest.mark.usefixtures("cluster")
def test_explain_tells_the_template_what_generate_would(shell: Shell, router: FakeRouter) -> None:
    tools = shell.state_dir / "tools.json"
    tools.write_text('[{"name": "f"}]')
    options = ("--tools", str(tools), "--tool-choice", "f", "--reasoning", "off")
    assert shell.run("explain", MODEL, "hi", "--chat", *options) == 0
    (asked,) = router.explained
    assert [tool.name for tool in asked.tools] == ["f"]
    assert asked.tool_choice.name == "f"
    assert (asked.reasoning.HasField("enabled"), asked.reasoning.enabled) == (True, False)


@pytest.mark.usefixtures("cluster")
def test_explain_says_how_much_and_why_not_more(shell: Shell, capsys: Output) -> None:
    assert shell.run("explain", MODEL, "hi") == 0
    assert capsys.readouterr().out.splitlines() == [
        "block 1 is the first that differs",
        "300 tokens: 256 in ram",
        "differs in: salt",
    ]


def test_verify_proves_every_object(shell: Shell, store: FakeStore, capsys: Output) -> None:
    store.objects = [f"{number:02}" for number in range(20)]
    assert shell.run("verify") == 0
    assert capsys.readouterr().out == "20 objects are whole\n"
    assert store.verified == store.objects


def test_verify_fails_if_something_is_damaged(
    shell: Shell, store: FakeStore, capsys: Output
) -> None:
    store.objects, store.corrupt = ["a", "b", "c"], {"b"}
    assert shell.run("verify") == 1
    assert "1 of 3 objects were damaged" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "what"), [("verify", "objects"), ("scrub", "files")])
def test_what_could_not_be_read_is_told_apart_from_what_is_damaged(
    shell: Shell, store: FakeStore, capsys: Output, command: str, what: str
) -> None:
    store.stats = cachestore_pb2.StatsResponse(gauges={"ssd_is_on": 1})
    store.objects = store.files = [f"{number:02}" for number in range(9)]
    store.unreadable = {"01", "08"}  # which are asked for apart
    assert shell.run(command) == 1
    unreadable = f"2 of 9 {what} could not be read, and are kept: try again"
    assert capsys.readouterr().err.strip().endswith(unreadable)
    store.corrupt = {"05"}
    assert shell.run(command) == 1
    assert f"1 of 9 {what} were damaged, and are set aside; {unreadable}" in capsys.readouterr().err


def test_verify_looks_at_the_files_of_a_stopped_cluster(
    shell: Shell, tmp_path: Path, capfd: Output
) -> None:
    kept = tmp_path / "elsewhere"
    Disk.open(kept).close(clean=True)
    assert shell.run("verify", "--folder", str(kept)) == 0
    assert shell.run("verify") == 2
    assert str(shell.state_dir / "cache.noindex") in capfd.readouterr().out


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.UNKNOWN, "Stream removed"),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
    ],
)
def test_a_store_that_dies_or_stops_under_a_call_is_told_in_plain_words(
    shell: Shell, store: FakeStore, capsys: Output, code: grpc.StatusCode, words: str
) -> None:
    store.objects, store.ends_with = ["01"], (code, words)
    assert shell.run("verify") == 1
    assert "the cache store died or was stopped under the call" in capsys.readouterr().err


def test_verify_of_another_folder_is_refused_while_a_cluster_runs(
    shell: Shell, store: FakeStore, tmp_path: Path, capsys: Output
) -> None:
    store.objects = ["01"]
    assert shell.run("verify", "--folder", str(tmp_path)) == 2
    assert "--folder: is of a stopped cluster, and this one runs" in capsys.readouterr().err
    assert not store.verified


@pytest.mark.parametrize("command", ["stats", "verify"])
def test_without_a_store_the_command_says_so(shell: Shell, capsys: Output, command: str) -> None:
    with serving() as (_, target):
        write_state(shell.state_dir, router=target, node=target)
        assert shell.run(command) == 1
    assert capsys.readouterr().err == "bramley: the cluster runs no cache store now\n"


@pytest.mark.parametrize("arguments", [("stats",), ("flush",), ("explain", MODEL, "hi")])
def test_a_stopped_cluster_is_told_in_one_line(
    shell: Shell, capsys: Output, arguments: tuple[str, ...]
) -> None:
    assert shell.run(*arguments) == 1
    expected = f"bramley: no cluster runs in {shell.state_dir}: start one with `bramley up`\n"
    assert capsys.readouterr().err == expected


def test_a_dead_cluster_is_a_stopped_one(shell: Shell, capsys: Output) -> None:
    write_state(shell.state_dir, router="unix:/nonexistent/r", node="unix:/nonexistent/n")
    assert shell.run("stats") == 1
    assert "no cluster runs in" in capsys.readouterr().err
