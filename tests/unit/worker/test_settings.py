"""What a worker's settings refuse."""

import pytest

from bramley.common.errors import SettingsError
from bramley.common.settings import check
from bramley.worker.settings import WorkerSettings


@pytest.mark.parametrize("key", ["kv_bits", "kv_format", "kv_group_size"])
def test_b015_quantized_state_is_refused_by_name_and_never_ignored(key: str) -> None:
    with pytest.raises(SettingsError) as raised:
        check({"path": "m", key: 8}, WorkerSettings, "models.m")
    assert raised.value.key == f"models.m.{key}"


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_rows", 0), ("state_bytes", 0), ("parked_bytes", -1), ("stall_timeout_s", 0.0)],
)
def test_a_number_out_of_range_is_named(key: str, value: float) -> None:
    with pytest.raises(SettingsError) as raised:
        check({"path": "m", key: value}, WorkerSettings, "models.m")
    assert raised.value.key == f"models.m.{key}"


@pytest.mark.parametrize(
    ("state", "memory", "rows"),
    [(None, 0, None), (None, 100, 40), (None, 50, 1), (70, 0, 70), (70, 100, 70)],
)
def test_rows_have_what_weights_leave_of_all_memory_unless_they_have_their_own(
    state: int | None, memory: int, rows: int | None
) -> None:
    made = WorkerSettings(path="m", state_bytes=state, memory_bytes=memory)
    assert made.beside(weights=60) == rows
