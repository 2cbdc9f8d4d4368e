"""Why a worker ended is one word of a closed set, whatever its supervisor says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bramley.router.exits import REASONS, reason_of


@pytest.mark.parametrize(
    ("last_exit", "reason"),
    [
        ("", "unknown"),
        ("exit code unknown", "unknown"),
        ("exit code 0", "stopped"),
        ("signal SIGTERM", "stopped"),
        ("signal SIGKILL", "killed"),
        ("signal SIGSEGV", "crash"),
        ("signal 64", "crash"),
        ("exit code 4: model.safetensors is not there", "crash"),
        ("exit code 70: RuntimeError: [metal::malloc] Out of memory", "oom"),
        ("signal SIGABRT: terminating: std::bad_alloc", "oom"),
        ("exit code 71: the engine has been inside one step for over 120 s", "hang"),
        ("silent for 30 s: signal SIGKILL", "hang"),
        ("inside one step for 61 s: signal SIGKILL", "hang"),
        ("not ready in time: signal SIGKILL", "start"),
        ("cannot start: [Errno 2] No such file or directory", "start"),
        ("ended its hand-shake without addresses: exit code 1: no", "start"),
        ("a reason nobody knows: signal SIGKILL", "killed"),
    ],
)
def test_each_end_has_its_word(last_exit: str, reason: str) -> None:
    assert reason_of(last_exit) == reason


@given(st.text())
def test_any_words_have_one(last_exit: str) -> None:
    assert reason_of(last_exit) in REASONS
