"""``bramley eval tasks`` against a scripted router: who is asked what, and what is left."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bramley.bench.eval import __main__ as main
from bramley.bench.eval.record import Run, load
from bramley.client import cli
from bramley.common.errors import NoReadyWorker
from support.fake_router import MODEL, FakeRouter, answer, serving, write_state


@pytest.fixture
def router(tmp_path: Path) -> Generator[FakeRouter]:
    with serving() as (router, target):
        write_state(tmp_path / "state", router=target, node=target)
        router.script = answer("It is ", "18")
        yield router


def evaluate(folder: Path, patch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the evaluation in this process, on the state folder of the scripted router."""
    command = ["bramley eval", "--state-dir", str(folder / "state"), "tasks", "--model", MODEL]
    patch.setattr(sys, "argv", [*command, "--out", str(folder / "run.json"), *arguments])
    patch.chdir(folder)
    return main.main()


Patch = pytest.MonkeyPatch
Output = pytest.CaptureFixture[str]


def test_a_run_is_printed_and_kept_with_every_verdict(
    router: FakeRouter, tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    assert evaluate(tmp_path, monkeypatch, "gsm8k", "--json") == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["scores"][0]["items"] == 10
    assert printed["scores"][0]["right"] == 1  # the first one's answer is 18
    run = load(tmp_path / "run.json")
    assert run.records[0].verdict == "right"
    assert run.records[0].answer == "It is 18"
    assert {record.verdict for record in run.records[1:]} == {"wrong"}
    assert run.provenance.models["model"].revision == "abc"
    assert len(run.provenance.files["gsm8k"]) == 64
    assert {request.sampling.temperature for request in router.requests} == {0.0}
    assert all(request.chat.messages for request in router.requests)


def test_the_user_s_own_items_are_asked_in_the_style_that_is_wanted(
    router: FakeRouter, tmp_path: Path, monkeypatch: Patch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    lines = [{"id": name, "question": f"{name}?", "answer": "18"} for name in ("a", "b")]
    (data / "gsm8k.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ("gsm8k", "--data", str(data), "--limit", "1", "--style", "raw")
    assert evaluate(tmp_path, monkeypatch, *arguments) == 0
    assert [request.text for request in router.requests] == ["Question: a?\nAnswer:"]
    (data / "gsm8k.jsonl").write_text("\n".join([json.dumps(lines[0])] * 2))
    assert evaluate(tmp_path, monkeypatch, "gsm8k", "--data", str(data)) == 2


def test_what_is_not_answered_makes_the_exit_code(
    router: FakeRouter, tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    router.script = [NoReadyWorker("nobody is here")]
    assert evaluate(tmp_path, monkeypatch, "bfcl", "--limit", "2") == 1
    run = load(tmp_path / "run.json")
    assert [record.verdict for record in run.records] == ["error"] * 2
    assert "nobody is here" in run.records[0].why
    assert "bfcl" in capsys.readouterr().out


@pytest.mark.usefixtures("router")
def test_a_baseline_is_compared_item_by_item(
    tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    assert evaluate(tmp_path, monkeypatch, "gsm8k") == 0
    baseline = load(tmp_path / "run.json")
    flipped = [msgspec.structs.replace(one, verdict="wrong") for one in baseline.records]
    before = tmp_path / "before.json"
    before.write_bytes(msgspec.json.encode(Run(provenance=baseline.provenance, records=flipped)))
    capsys.readouterr()
    assert evaluate(tmp_path, monkeypatch, "gsm8k", "--baseline", str(before), "--json") == 0
    told = json.loads(capsys.readouterr().out)["differences"][0]
    assert (told["pairs"], told["gained"], told["lost"], told["p"]) == (10, 1, 0, 1.0)
    arguments = ("gsm8k", "--style", "raw", "--baseline", str(before))
    assert evaluate(tmp_path, monkeypatch, *arguments) == 0  # nothing was asked alike


def test_a_program_that_a_model_wrote_is_run(
    router: FakeRouter, tmp_path: Path, monkeypatch: Patch
) -> None:
    router.script = answer("```python\ndef last_vowel(text):\n", "    return 'u'\n```")
    assert evaluate(tmp_path, monkeypatch, "humaneval", "--limit", "1") == 0
    run = load(tmp_path / "run.json")
    (record,) = run.records
    assert run.provenance.settings["isolation"]
    assert (record.verdict, record.finish) == ("wrong", "stop")
    assert "AssertionError" in record.why


@pytest.mark.usefixtures("router")
def test_a_run_that_is_cut_short_has_kept_the_tasks_that_were_done(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    # The scripted tokenizer is too fine for so few lines: hashhop cannot be asked.
    arguments = ("bfcl", "hashhop", "gsm8k", "--limit", "1", "--context-tokens", "9")
    assert evaluate(tmp_path, monkeypatch, *arguments) == 2
    run = load(tmp_path / "run.json")
    assert ([record.task for record in run.records], run.is_complete) == (["bfcl"], False)
    assert evaluate(tmp_path, monkeypatch, "bfcl", "gsm8k", "--limit", "1") == 0
    assert load(tmp_path / "run.json").is_complete


def test_hashhop_is_as_long_as_is_wanted(
    router: FakeRouter, tmp_path: Path, monkeypatch: Patch
) -> None:
    arguments = ("hashhop", "--limit", "2", "--context-tokens", "1500")
    assert evaluate(tmp_path, monkeypatch, *arguments) == 0
    lengths = [len(request.chat.messages[0].content) for request in router.requests]
    assert 1200 < min(lengths) <= max(lengths) < 1500
    assert load(tmp_path / "run.json").provenance.settings["hashhop_lines"] > 50
    too_little = ("hashhop", "--context-tokens", "100")
    assert evaluate(tmp_path, monkeypatch, *too_little) == 2


def test_without_a_cluster_it_says_so(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    assert evaluate(tmp_path, monkeypatch, "gsm8k") == 1
    assert "bramley up" in capsys.readouterr().err
    write_state(tmp_path / "state", router="", node="unix:none")
    assert evaluate(tmp_path, monkeypatch, "gsm8k") == 1
    assert "not up yet" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("nothing",), ("gsm8k", "--limit", "0"), ()])
def test_a_wrong_command_line_is_refused(
    tmp_path: Path, monkeypatch: Patch, arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        evaluate(tmp_path, monkeypatch, *arguments)
    assert ended.value.code == 2


def test_the_client_s_command_becomes_the_evaluation(tmp_path: Path, monkeypatch: Patch) -> None:
    became: list[list[str]] = []

    def execv(_: str, command: list[str]) -> None:
        became.append(command)

    monkeypatch.setattr(os, "execv", execv)
    command = ["bramley", "--state-dir", str(tmp_path), "eval", "tasks", "all", "--help"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        cli.main()
    (told,) = became
    assert told[1:4] == ["-P", "-m", "bramley.bench.eval"]
    assert told[4:] == ["--state-dir", str(tmp_path), "tasks", "all", "--help"]


def test_tasks_are_asked_without_mlx() -> None:
    code = (
        "import sys; import bramley.bench.eval.__main__;"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert not set(done.stdout.split()) & {"mlx", "mlx_lm", "transformers"}
