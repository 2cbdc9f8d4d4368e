"""The laws of worker/cache/contract.py, by number, for every kind of state."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from support.arrays import floats
from support.rows import HEADS, KINDS, SIZE, Rows, Tokens, contract, tokens

pytestmark = pytest.mark.parametrize("kind", sorted(KINDS))

LENGTHS = (1, 3, 12, 20)


def filled(kind: str, lengths: Sequence[int] = LENGTHS) -> Rows:
    rows = Rows(kind)
    for _ in lengths:
        rows.join()
    rows.append([tokens(100 * row, length) for row, length in enumerate(lengths)])
    return rows


def attend(rows: Rows, content: Tokens, *, first: int, count: int) -> Tokens:
    """Append one token a row and attend from it; (count, HEADS, SIZE)."""
    keys, values = rows.append([content[row : row + 1] for row in range(count)], first=first)
    # The mask as it was in that forward.
    for row in range(first, first + count):
        rows.table.lengths[row] -= 1
    rows.table.begin(range(first, first + count), 1)
    mask = rows.state.make_mask(1)
    queries = mx.ones((count, HEADS, 1, SIZE)) * 0.01
    out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=mask)
    mx.eval(out)
    rows.table.commit()
    return floats(out)[:, :, 0]


def test_every_kind_satisfies_the_protocol(kind: str) -> None:
    assert contract(Rows(kind).state).kind == kind


def test_law_1_a_row_reads_the_same_alone_and_among_others(kind: str) -> None:
    together = filled(kind)
    news = tokens(900, len(LENGTHS))
    seen = attend(together, news, first=0, count=len(LENGTHS))
    for row, length in enumerate(LENGTHS):
        alone = Rows(kind)
        alone.join()
        alone.append([tokens(100 * row, length)])
        np.testing.assert_array_equal(alone.read(0), together.read(row)[:-1])
        np.testing.assert_allclose(
            attend(alone, news[row:], first=0, count=1)[0], seen[row], rtol=1e-6
        )


@pytest.mark.parametrize("piece", [1, 2, 5, 7])
def test_law_2_pieces_equal_the_whole(kind: str, piece: int) -> None:
    whole = filled(kind)
    pieces = Rows(kind)
    for _ in LENGTHS:
        pieces.join()
    for start in range(0, max(LENGTHS), piece):
        pieces.append(
            [tokens(100 * row, length)[start : start + piece] for row, length in enumerate(LENGTHS)]
        )
    for row in range(len(LENGTHS)):
        np.testing.assert_array_equal(pieces.read(row), whole.read(row))


def test_law_3_padding_is_never_read(kind: str) -> None:
    clean, dirty = filled(kind), Rows(kind)
    for _ in LENGTHS:
        dirty.join()
    content = [tokens(100 * row, length) for row, length in enumerate(LENGTHS)]
    dirty.append(content, junk=7e7)
    news = tokens(900, len(LENGTHS))
    seen = [attend(rows, news, first=0, count=len(LENGTHS)) for rows in (clean, dirty)]
    np.testing.assert_array_equal(seen[0], seen[1])


def test_law_4_a_new_row_sees_nothing_of_the_seat_s_former_row(kind: str) -> None:
    rows, fresh = filled(kind), Rows(kind)
    rows.append([np.full((4, HEADS, SIZE), np.nan, np.float32)], first=3)  # a row gone wrong
    rows.leave(3)
    rows.join()
    for _ in LENGTHS:
        fresh.join()
    news = tokens(5, 1)
    seen = attend(rows, news, first=3, count=1)
    assert rows.table.lengths[3] == 1
    np.testing.assert_array_equal(seen, attend(fresh, news, first=3, count=1))


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_law_6_a_row_that_went_wrong_poisons_no_other_on_its_seat(kind: str, gone: int) -> None:
    rows = filled(kind)
    wrong = np.full((30, HEADS, SIZE), np.nan, np.float32)
    rows.append([wrong], first=gone)
    rows.leave(gone)
    rows.join()
    rows.append([tokens(700, 1)], first=3)
    seen = attend(rows, tokens(900, 4), first=0, count=4)
    assert np.isfinite(seen).all()


def test_law_5_a_moved_row_equals_its_source(kind: str) -> None:
    rows = filled(kind)
    before = rows.read(3)
    rows.leave(0)
    np.testing.assert_array_equal(rows.read(0), before)
    rows.join()  # the source's seat serves another, and the moved row stays as it was
    rows.append([tokens(700, 9)], first=3)
    np.testing.assert_array_equal(rows.read(0), before)


def test_law_6_leaving_changes_no_other_row(kind: str) -> None:
    rows = filled(kind)
    before = [rows.read(1), rows.read(2)]
    rows.leave(0)
    np.testing.assert_array_equal(rows.read(1), before[0])
    np.testing.assert_array_equal(rows.read(2), before[1])


def test_law_7_a_rolled_back_row_is_as_if_never_extended(kind: str) -> None:
    rows, untouched = filled(kind), filled(kind)
    rows.append([tokens(800, 3)], first=2)
    rows.rollback(2, 3)
    np.testing.assert_array_equal(rows.read(2), untouched.read(2))
    news = tokens(900, len(LENGTHS))
    np.testing.assert_array_equal(
        attend(rows, news, first=0, count=len(LENGTHS)),
        attend(untouched, news, first=0, count=len(LENGTHS)),
    )


def test_law_8_an_export_keeps_no_hold_on_live_state(kind: str) -> None:
    rows = filled(kind, (200, 130))
    rows.state.reserve(8, 4096)
    exported = rows.export(1, 0, 130)
    held = exported.copy()
    mx.clear_cache()
    mx.reset_peak_memory()
    before, whole = mx.get_active_memory(), rows.state.nbytes
    rows.append([tokens(60, 1)], first=1)
    np.testing.assert_array_equal(exported, held)
    assert mx.get_peak_memory() - before < whole / 4, "the next write copied everything"


def test_law_9_an_imported_row_equals_the_exported(kind: str) -> None:
    rows, other = filled(kind), filled(kind, (2, 9))
    other.table.lengths[1] = 0
    for start, stop in ((0, 5), (5, 12)):  # in two parts, as blocks come
        other.state.import_row(1, start, stop, rows.export(2, start, stop), stop - start)
        other.table.lengths[1] = stop
    np.testing.assert_array_equal(other.read(1), rows.read(2))
    assert other.state.layout == rows.state.layout
    news = tokens(900, 1)
    np.testing.assert_array_equal(
        attend(other, news, first=1, count=1), attend(rows, news, first=2, count=1)
    )


def test_law_9_leading_tokens_of_an_export_can_be_imported_alone(kind: str) -> None:
    rows, other = filled(kind), filled(kind, (2, 9))
    other.table.lengths[1] = 0
    other.state.import_row(1, 0, 7, rows.export(3, 0, 20), 20)
    other.table.lengths[1] = 7
    np.testing.assert_array_equal(other.read(1), rows.read(3)[:7])


def test_law_9_a_state_that_was_reset_can_be_imported_into(kind: str) -> None:
    rows = filled(kind)
    expected, part = rows.read(3), rows.export(3, 0, 20)
    while rows.table.lengths:
        rows.leave(0)
    rows.state.reset()
    rows.join()
    rows.state.import_row(0, 0, 20, part, 20)
    rows.table.lengths[0] = 20
    np.testing.assert_array_equal(rows.read(0), expected)


def test_law_10_growth_keeps_every_row(kind: str) -> None:
    rows = filled(kind)
    before = [rows.read(row) for row in range(len(LENGTHS))]
    rows.state.reserve(9, 600)
    for row, content in enumerate(before):
        np.testing.assert_array_equal(rows.read(row), content)


def test_law_11_bytes_are_what_the_arrays_take(kind: str) -> None:
    mx.clear_cache()
    before = mx.get_active_memory()
    rows = filled(kind)
    mx.clear_cache()
    assert rows.state.nbytes == sum(array.nbytes for array in rows.state.arrays()) > 0
    assert 0 <= mx.get_active_memory() - before - rows.state.nbytes < 4096


def test_law_12_a_forward_that_fails_leaves_every_row_as_it_was(kind: str) -> None:
    rows = filled(kind)
    before = [rows.read(row) for row in range(len(LENGTHS))]
    rows.table.begin(range(len(LENGTHS)), 2)  # and never committed
    rows.state.update_and_fetch(*[mx.ones((len(LENGTHS), HEADS, 2, SIZE))] * 2)
    for row, content in enumerate(before):
        np.testing.assert_array_equal(rows.read(row), content)


def test_a_write_costs_no_copy_of_the_whole(kind: str) -> None:
    rows = filled(kind, (200, 130))
    rows.state.reserve(8, 4096)
    mx.clear_cache()
    mx.reset_peak_memory()
    whole = rows.state.nbytes
    before = mx.get_active_memory()
    rows.append([tokens(1, 1), tokens(2, 1)])
    assert mx.get_peak_memory() - before < whole / 4
