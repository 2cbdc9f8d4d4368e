"""What a worker tells of itself."""

import time

import psutil
import pytest

from bramley.protos.v1 import types_pb2
from bramley.worker.board import RESIDENT_EVERY_S, Board, Resident
from bramley.worker.engine.counters import Counters


def test_memory_is_told_by_what_it_is_for() -> None:
    counters = Counters(weights_bytes=5, state_bytes=3, workspace_bytes=2)
    memory = Board(counters, {}).load().memory
    assert (memory.weights, memory.state, memory.workspace) == (5, 3, 2)
    assert memory.resident > 1 << 20


def test_a_step_s_age_is_told_while_there_is_a_step() -> None:
    counters = Counters()
    board = Board(counters, {})
    assert board.load().step_age_s == 0
    counters.step_began_s = time.monotonic() - 5
    assert 5 <= board.load().step_age_s < 60
    counters.step_began_s = time.monotonic() + 5  # it has begun since the clock was read
    assert board.load().step_age_s == 0


def test_a_load_is_told_with_its_state_and_share() -> None:
    board = Board(Counters(), {})
    assert board.load().state == types_pb2.MODEL_STATE_LOADING
    board.loading(types_pb2.MODEL_STATE_WARMING, 0.75)
    load = board.load()
    assert (load.state, load.load_progress) == (types_pb2.MODEL_STATE_WARMING, 0.75)


async def test_a_load_s_progress_wakes_those_who_watch() -> None:
    board = Board(Counters(), {})
    seen = await board.wait(-1)
    board.loading(types_pb2.MODEL_STATE_WARMING, 0.75)
    assert await board.wait(seen) > seen


def test_the_system_is_asked_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    info = psutil.Process.memory_info

    def counted(process: psutil.Process) -> object:
        asked.append(process.pid)
        return info(process)

    monkeypatch.setattr(psutil.Process, "memory_info", counted)
    resident = Resident()
    now_s = 1000.0
    first = resident.bytes(now_s)
    assert resident.bytes(now_s + RESIDENT_EVERY_S / 2) == first
    assert len(asked) == 1
    resident.bytes(now_s + RESIDENT_EVERY_S)
    assert len(asked) == 2
