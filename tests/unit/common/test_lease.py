"""What a look at a lease tells."""

from pathlib import Path

import msgspec
import pytest

from bramley.common.lease import LEASE_TTL_S, Lease, read_lease

LEASE = Lease(epoch=3, pid=1, start_time=2.0, renewed_s=100.0)


def test_a_lease_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "lease.json"
    file.write_bytes(msgspec.json.encode(LEASE))
    assert read_lease(file) == LEASE


@pytest.mark.parametrize("content", [None, b"", b'{"epoch":', b"\xff", b"[]"])
def test_no_lease_and_half_a_lease_are_none(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "lease.json"
    if content is not None:
        file.write_bytes(content)
    assert read_lease(file) is None


def test_a_lease_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_lease(tmp_path)


def test_it_is_fresh_for_its_time_and_never_from_the_future() -> None:
    ages = (-1.0, 0.0, LEASE_TTL_S / 2, LEASE_TTL_S)
    assert [LEASE.is_fresh(100.0 + age) for age in ages] == [False, True, True, False]
