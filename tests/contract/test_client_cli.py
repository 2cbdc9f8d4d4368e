"""What the command line prints and returns, against a scripted router."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bramley.client.commands.up import until_settled
from bramley.common.errors import ContextTooLong, InvalidRequest, NoReadyWorker, WorkerLost
from bramley.common.lease import Lease
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from support.fake_router import MODEL, FakeRouter, Hold, Step, Vanish, answer, serving, write_state
from support.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path / "state", monkeypatch)


@pytest.fixture
def router(shell: Shell) -> Generator[FakeRouter]:
    with serving() as (router, target):
        write_state(shell.state_dir, router=target, node=target)
        yield router


Output = pytest.CaptureFixture[str]


def printed(capsys: Output) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("router")
def test_generate_prints_the_text(shell: Shell, capsys: Output) -> None:
    assert shell.run("generate", MODEL, "hi") == 0
    assert capsys.readouterr().out == "Hello\n"


@pytest.mark.usefixtures("router")
def test_generate_json_has_exactly_the_documented_shape(shell: Shell, capsys: Output) -> None:
    assert shell.run("generate", MODEL, "hi", "--json") == 0
    assert printed(capsys) == {
        "text": "Hello",
        "reasoning_text": "",
        "tool_calls": [],
        "token_ids": [100, 101],
        "finish_reason": "stop",
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "cached_tokens": {"parked": 1, "ram": 2, "ssd": 0},
            "reasoning_tokens": 0,
        },
        "timings": {"queue_s": 0.25, "ttft_s": 0.5, "total_s": 1.5},
    }


@pytest.mark.parametrize(
    ("flags", "has_template", "sent"),
    [
        ([], True, "chat"),
        ([], False, "text"),
        (["--raw"], True, "text"),
        (["--chat"], False, "chat"),
    ],
)
def test_prompt_is_templated_where_the_model_has_a_template(
    shell: Shell, router: FakeRouter, flags: list[str], has_template: bool, sent: str
) -> None:
    router.model.limits.has_chat_template = has_template
    shell.run("generate", MODEL, "hi", *flags)
    assert router.requests[0].WhichOneof("input") == sent


def test_generate_options_reach_the_router(shell: Shell, router: FakeRouter) -> None:
    options = "--max-tokens 9 --temperature 0.5 --top-p 0.25 --seed 7 --stop A --stop B"
    shell.run("generate", MODEL, "hi", *options.split(), "--timeout", "5")
    (request,) = router.requests
    assert request.stop.max_tokens == 9
    assert list(request.stop.strings) == ["A", "B"]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.25, 7)
    assert router.time_remaining_s == pytest.approx(5, abs=1)


def test_dash_reads_the_prompt_from_stdin(shell: Shell, router: FakeRouter) -> None:
    command = [*bramley(shell), "generate", MODEL, "-", "--raw"]
    subprocess.run(command, input="from stdin", text=True, check=True)
    assert router.requests[0].text == "from stdin"


@pytest.mark.usefixtures("router")
def test_stdin_that_is_not_utf8_is_bad_input(shell: Shell) -> None:
    command = [*bramley(shell), "generate", MODEL, "-"]
    ended = subprocess.run(command, input=b"\xff", check=False, capture_output=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"bramley: PROMPT: stdin is not UTF-8")


def test_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "bramley.client", "--state-dir", str(tmp_path / "file/state")]
    ended = subprocess.run([*command, "up", "--detach"], check=False, capture_output=True)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.endswith(b"Not a directory")


def test_generate_waits_for_a_loading_model(
    shell: Shell, router: FakeRouter, capsys: Output
) -> None:
    loading = router_pb2.Model(name=MODEL, state=types_pb2.MODEL_STATE_LOADING, load_progress=0.5)
    router.loading = [loading, loading]
    router.model.limits.has_chat_template = False
    assert shell.run("generate", MODEL, "hi") == 0
    assert router.requests[0].WhichOneof("input") == "text"  # known once it has loaded
    assert capsys.readouterr().err == ""  # no bar: it is no terminal


@pytest.mark.parametrize("has_template", [True, False])
def test_generate_asks_a_model_that_is_not_loaded_and_so_has_it_loaded(
    shell: Shell, router: FakeRouter, has_template: bool
) -> None:
    router.model = router_pb2.Model(name=MODEL, state=types_pb2.MODEL_STATE_UNLOADED)
    if not has_template:
        router.script = [InvalidRequest("chat", "this model has no chat template")]
    assert shell.run("generate", MODEL, "hi") == (0 if has_template else 2)
    inputs = [request.WhichOneof("input") for request in router.requests]
    assert inputs == (["chat"] if has_template else ["chat", "text"])


def test_a_missing_template_is_an_error_for_who_asks_for_it(
    shell: Shell, router: FakeRouter
) -> None:
    router.script = [InvalidRequest("chat", "this model has no chat template")]
    assert shell.run("generate", MODEL, "hi", "--chat") == 2
    assert len(router.requests) == 1


def test_who_waits_for_a_cluster_asks_the_router_that_it_has_by_now(tmp_path: Path) -> None:
    state_dir, gone = tmp_path / "state", f"unix:{tmp_path}/gone.sock"
    write_state(state_dir, router=gone, node=gone)
    told = until_settled(state_dir, 1)
    assert next(told) is None
    with serving() as (router, target):
        write_state(state_dir, router=target, node=target)
        router.model.state = types_pb2.MODEL_STATE_LOADING
        assert [model.state for model in next(told) or []] == ["loading"]
        router.model.state = types_pb2.MODEL_STATE_READY
        assert [model.state for model in next(told) or []] == ["ready"]
        assert list(told) == []


def test_passed_time_limit_is_told_in_plain_words(
    shell: Shell, router: FakeRouter, capsys: Output
) -> None:
    router.script = [Hold()]
    assert shell.run("generate", MODEL, "hi", "--timeout", "0.3") == 1
    expected = "bramley: the time limit has passed [DEADLINE_EXCEEDED]\n"
    assert capsys.readouterr().err == expected


def test_timeout_covers_the_wait_for_a_loading_model(
    shell: Shell, router: FakeRouter, capsys: Output
) -> None:
    router.model = router_pb2.Model(name=MODEL, state=types_pb2.MODEL_STATE_LOADING)
    assert shell.run("generate", MODEL, "hi", "--timeout", "0.2") == 1
    expected = "bramley: model 'fake' is still loading after 0.2 s\n"
    assert capsys.readouterr().err == expected


def test_generate_tells_why_the_router_refuses_a_failed_model(
    shell: Shell, router: FakeRouter, capsys: Output
) -> None:
    router.model = router_pb2.Model(name=MODEL, state=types_pb2.MODEL_STATE_FAILED)
    router.script = [NoReadyWorker("its worker ended: no weights")]
    assert shell.run("generate", MODEL, "hi") == 1
    assert capsys.readouterr().err == "bramley: its worker ended: no weights [NO_READY_WORKER]\n"


def test_refused_field_is_one_line_and_code_2(
    shell: Shell, router: FakeRouter, capsys: Output
) -> None:
    router.script = [ContextTooLong("stop.max_tokens", prompt=9, max_tokens=1, limit=8)]
    assert shell.run("generate", MODEL, "hi") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bramley: stop.max_tokens: 9 prompt tokens")


def test_lost_worker_is_one_line_and_code_1_after_the_text(
    shell: Shell, router: FakeRouter, capsys: Output
) -> None:
    router.script = [*answer("Hel")[:3], WorkerLost(MODEL)]
    assert shell.run("generate", MODEL, "hi") == 1
    output = capsys.readouterr()
    assert output.out == "Hel\n"
    assert output.err.endswith("died under the request [WORKER_LOST]\n")
    assert output.err.count("\n") == 1


@pytest.mark.usefixtures("router")
def test_unknown_model_is_bad_input(shell: Shell, capsys: Output) -> None:
    assert shell.run("generate", "nobody", "hi") == 2
    assert capsys.readouterr().err == "bramley: no model is named 'nobody' [NOT_FOUND]\n"


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", MODEL),
        ("generate", MODEL, "hi", "--seed", "-1"),
        ("generate", MODEL, "hi", "--seed", str(2**64)),
        ("nonsense",),
        ("up", "--nonsense"),
    ],
)
def test_bad_arguments_are_code_2(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell.run(*arguments) == 2


@pytest.mark.parametrize(
    "arguments", [("generate", MODEL, "hi"), ("chat", MODEL), ("models",), ("down",)]
)
def test_stopped_cluster_is_told_in_one_line(
    shell: Shell, capsys: Output, arguments: tuple[str, ...]
) -> None:
    assert shell.run(*arguments) == 1
    expected = f"bramley: no cluster runs in {shell.state_dir}: start one with `bramley up`\n"
    assert capsys.readouterr().err == expected


def test_dead_cluster_is_a_stopped_one(shell: Shell, capsys: Output) -> None:
    write_state(shell.state_dir, router="unix:/nonexistent/r", node="unix:/nonexistent/n")
    assert shell.run("models") == 1
    assert "no cluster runs in" in capsys.readouterr().err
    assert shell.run("status", "--json") == 0
    assert printed(capsys)["state"] == "stopped"


@pytest.mark.parametrize("pid", [2**22 + 1, None])
def test_down_ends_what_a_dead_supervisor_left(
    shell: Shell, capsys: Output, pid: int | None
) -> None:
    write_state(shell.state_dir, router="unix:/nonexistent/r", node="unix:/nonexistent/n")
    if pid is not None:  # it died a moment ago: its lease is fresh
        lease = Lease(epoch=1, pid=pid, start_time=0.0, renewed_s=time.monotonic())
        (shell.state_dir / "lease.json").write_bytes(msgspec.json.encode(lease))
    assert shell.run("down") == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == (f"the cluster in {shell.state_dir} has stopped\n", "")
    assert not (shell.state_dir / "node.json").exists()


def test_down_of_a_foreign_folder_touches_nothing(shell: Shell, capsys: Output) -> None:
    shell.state_dir.mkdir()
    (shell.state_dir / "node.json").write_text("of another program")
    assert shell.run("down") == 2
    assert "is not empty, and no state folder" in capsys.readouterr().err
    assert [path.name for path in shell.state_dir.iterdir()] == ["node.json"]


@pytest.mark.parametrize("option", ["--grpc", "--http"])
@pytest.mark.parametrize("address", ["7410", "127.0.0.1:99999", "a b:1"])
def test_wrong_address_is_told_with_its_key(
    shell: Shell, capsys: Output, option: str, address: str
) -> None:
    assert shell.run("up", "--detach", option, address) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bramley: router.{option[2:]}: ")


def test_router_that_goes_away_is_told_in_plain_words(
    shell: Shell, router: FakeRouter, capsys: Output
) -> None:
    router.script = [*answer("Hel")[:3], Vanish()]
    assert shell.run("generate", MODEL, "hi") == 1
    line = "bramley: the router went away in the middle of the answer [UNAVAILABLE]\n"
    assert capsys.readouterr().err == line


def test_only_defaults_that_nobody_chose_are_left_to_the_model(
    shell: Shell, router: FakeRouter
) -> None:
    assert shell.run("generate", MODEL, "hi") == 0
    assert router.requests[0].stop.max_tokens == 512
    assert not router.requests[0].sampling.HasField("temperature")


def test_import_onto_an_import_says_so(shell: Shell, capsys: Output, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (tmp_path / "x.gguf", folder / "config.json", folder / "model.safetensors"):
        file.write_text("{}")
    assert shell.run("models", "import", str(tmp_path / "x.gguf"), str(folder)) == 0
    assert capsys.readouterr().out == f"already there: {folder}\n"


@pytest.mark.usefixtures("router")
def test_empty_prompt_is_refused(shell: Shell, capsys: Output) -> None:
    assert shell.run("generate", MODEL, "") == 2
    assert capsys.readouterr().err == "bramley: PROMPT: is empty\n"


def test_load_progress_is_a_round_figure(shell: Shell, router: FakeRouter, capsys: Output) -> None:
    router.model.state, router.model.load_progress = types_pb2.MODEL_STATE_LOADING, 0.1234
    shell.run("models", "--json")
    assert printed(capsys)[0]["load_progress"] == 0.12
    router.model.state = types_pb2.MODEL_STATE_READY
    shell.run("models", "--json")
    assert printed(capsys)[0]["load_progress"] == 1.0


def test_absent_router_of_a_living_cluster_is_not_a_stopped_cluster(
    shell: Shell, capsys: Output
) -> None:
    write_state(shell.state_dir, router="unix:/nonexistent/r", node="unix:/nonexistent/n")
    lease = Lease(epoch=1, pid=os.getpid(), start_time=0.0, renewed_s=time.monotonic())
    (shell.state_dir / "lease.json").write_bytes(msgspec.json.encode(lease))
    assert shell.run("models") == 1
    expected = "bramley: no router answers at unix:/nonexistent/r [UNAVAILABLE]\n"
    assert capsys.readouterr().err == expected


def test_chat_keeps_the_conversation_until_reset(shell: Shell, router: FakeRouter) -> None:
    said = "one\ntwo\n\n/reset\nthree\n/exit\nnever\n"
    command = [*bramley(shell), "chat", MODEL]
    ended = subprocess.run(command, input=said, text=True, check=True, stdout=subprocess.PIPE)
    assert ended.stdout == "Hello\n" * 3
    turns = [[turn.content for turn in request.chat.messages] for request in router.requests]
    assert turns == [["one"], ["one", "Hello", "two"], ["three"]]
    sessions = [request.session_key for request in router.requests]
    assert sessions[0] == sessions[1] != sessions[2]
    assert all(sessions)


def test_chat_takes_options_and_lists_its_commands(shell: Shell, router: FakeRouter) -> None:
    options = ["--max-tokens", "9", "--temperature", "0.5", "--seed", "7"]
    command = [*bramley(shell), "chat", MODEL, *options]
    ended = subprocess.run(
        command, input="/help\n/halp\none\n", text=True, check=True, capture_output=True
    )
    assert all(name in ended.stdout for name in ("/help", "/reset", "/exit", "Ctrl-C"))
    assert "there is no /halp" in ended.stderr
    (request,) = router.requests
    assert (request.stop.max_tokens, request.sampling.seed) == (9, 7)
    assert request.sampling.temperature == 0.5


def test_interrupting_generate_cancels_the_call(shell: Shell, router: FakeRouter) -> None:
    router.script = [*answer("first")[:3], Hold()]
    command = [*bramley(shell), "generate", MODEL, "hi"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(5) == b"first"  # in the middle of the answer
        process.send_signal(2)
        assert process.wait(5) == 130
        assert process.stderr.read() == b""
    assert router.cancelled.wait(5)


def test_interrupting_chat_cancels_the_answer_only(shell: Shell, router: FakeRouter) -> None:
    router.script = [*answer("first")[:3], Hold()]
    command = [*bramley(shell), "chat", MODEL]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.read(5) == b"first"
        process.send_signal(2)
        assert router.cancelled.wait(5)
        router.script = answer("Hel", "lo")
        output, _ = process.communicate(b"two\n", timeout=10)
        assert process.returncode == 0
    assert output.endswith(b"Hello\n")
    assert [turn.content for turn in router.requests[-1].chat.messages] == ["two"]


def answer_after_progress() -> list[Step]:
    progress = generation_pb2.Progress(prompt_tokens_done=1000, prompt_tokens=2000)
    accepted, started, *rest = answer("Hel", "lo")
    return [accepted, started, router_pb2.GenerateResponse(progress=progress), *rest]


def test_no_progress_is_drawn_where_stderr_is_no_terminal(
    shell: Shell, router: FakeRouter, capsys: Output
) -> None:
    router.script = answer_after_progress()
    assert shell.run("generate", MODEL, "hi") == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == ("Hello\n", "")
    assert not router.requests[0].stream.progress


def test_progress_is_drawn_on_a_terminal_beside_the_text(shell: Shell, router: FakeRouter) -> None:
    router.script = answer_after_progress()
    ours, theirs = os.openpty()
    ended = subprocess.run(
        [*bramley(shell), "generate", MODEL, "hi"],
        check=True,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    drawn = os.read(ours, 1 << 16)
    os.close(ours)
    assert ended.stdout == b"Hello\n"
    assert b"prefill" in drawn
    assert b"50%" in drawn
    assert router.requests[0].stream.progress


def test_starting_the_command_line_loads_no_grpc_and_no_model_library() -> None:
    code = (
        "import sys; from bramley.client import cli;"
        "print([m for m in ('grpc', 'mlx', 'mlx_lm', 'transformers', 'numpy', 'rich')"
        " if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    assert ended.stdout == "[]\n"


def bramley(shell: Shell) -> list[str]:
    """Begin a command line of its own process."""
    return [sys.executable, "-m", "bramley.client", "--state-dir", str(shell.state_dir)]
