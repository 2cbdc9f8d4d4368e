"""The laws of worker/cache/contract.py, by number, for every kind of state."""

import gc
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from bramley.worker.cache.contract import CannotExport, CannotRollback
from bramley.worker.cache.window import ROLLBACK
from support.rows import KINDS, RECURRENT_KINDS, WRONG, Floats, Rows, contract, same

pytestmark = pytest.mark.parametrize("kind", sorted(KINDS))

LENGTHS = (1, 3, 12, 75)  # the last is more than the small windows' buffers take
ROWS = [range(1000 * row, 1000 * row + length) for row, length in enumerate(LENGTHS, 1)]
NEWS = [[5000 + row] for row in range(len(LENGTHS))]


def filled(kind: str) -> Rows:
    return Rows.of(kind, ROWS)


def of_row(outputs: list[list[Floats]], row: int) -> list[list[Floats]]:
    return [[layer[row]] for layer in outputs]


def test_every_kind_satisfies_the_protocol(kind: str) -> None:
    kinds = {contract(state).kind for state in Rows(kind).states}
    assert kinds <= {"full", "rotating", "recurrent"}


def test_every_kind_gives_what_plain_attention_gives(kind: str) -> None:
    rows, held = filled(kind), [list(row) for row in ROWS]
    for step, counts in enumerate([(1, 1, 1, 1), (16, 2, 0, 9), (1, 1, 1, 1), (0, 90, 3, 1)]):
        new = [[7000 + 100 * step + i for i in range(count)] for count in counts]
        outputs = rows.append(new)
        for row, part in enumerate(new):
            held[row] += part
            rows.gives(outputs, row, held[row])
            rows.holds(row, held[row])


@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_law_1_a_row_gives_the_same_bits_alone_and_among_others(kind: str, row: int) -> None:
    together, alone = filled(kind), Rows.of(kind, [ROWS[row]])
    for step in range(70):  # several times through a small window's buffers
        new = [[5000 + 100 * i + step] for i in range(len(LENGTHS))]
        same(of_row(together.append(new), row), alone.append([new[row]]))


@pytest.mark.parametrize("piece", [1, 2, 5, 7, 40])
def test_law_2_pieces_equal_the_whole(kind: str, piece: int) -> None:
    whole, pieces = Rows(kind), Rows(kind)
    for rows in (whole, pieces):
        for _ in ROWS:
            rows.join()
    once = whole.append(ROWS)
    for start in range(0, max(LENGTHS), piece):
        given = pieces.append([row[start : start + piece] for row in ROWS])
        for layer, expected in zip(given, once, strict=True):
            for part, row in zip(layer, expected, strict=True):
                np.testing.assert_array_equal(part, row[start : start + piece])
    for row, tokens in enumerate(ROWS):
        pieces.holds(row, tokens)
    same(whole.append(NEWS), pieces.append(NEWS))


def test_law_3_padding_is_never_read(kind: str) -> None:
    clean, dirty = filled(kind), Rows(kind)
    for _ in ROWS:
        dirty.join()
    dirty.append(ROWS, junk=7e7)
    same(clean.append(NEWS), dirty.append(NEWS))


def test_law_3_padding_drops_nothing(kind: str) -> None:
    rows = filled(kind)
    rows.append([[], [1], [], range(7000, 7200)])
    for row in (0, 2):
        rows.holds(row, ROWS[row])
    rows.holds(1, [*ROWS[1], 1])


def test_law_4_a_new_row_sees_nothing_of_the_seat_s_former_row(kind: str) -> None:
    rows, fresh = filled(kind), Rows(kind)
    rows.append([[WRONG] * 4], first=3)
    rows.leave(3)
    rows.join()
    for _ in ROWS:
        fresh.join()
    same(rows.append([[5]], first=3), fresh.append([[5]], first=3))
    assert rows.lengths[3] == 1


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_law_6_a_row_that_went_wrong_poisons_no_other_on_its_seat(kind: str, gone: int) -> None:
    rows = filled(kind)
    rows.append([[WRONG] * 30], first=gone)
    rows.leave(gone)
    rows.join()
    rows.append([[700]], first=3)
    assert all(np.isfinite(row).all() for layer in rows.append(NEWS) for row in layer)


def test_law_6_padding_and_drafts_that_went_wrong_poison_no_other_row(kind: str) -> None:
    rows = filled(kind)
    rows.append([[1], [2] * 20], first=1, junk=float("nan"))  # beyond row 1
    rows.append([[WRONG] * 16], first=0)
    rows.rollback(0, 16)
    for row in (1, 0):
        rows.leave(row)
        rows.join()
        rows.append([[700]], first=3)
    assert all(np.isfinite(row).all() for layer in rows.append(NEWS) for row in layer)


@pytest.mark.parametrize("count", [43, 49, 111])
def test_law_6_what_a_wrong_row_dropped_poisons_no_other_row(kind: str, count: int) -> None:
    rows = Rows.of(kind, [range(count - 1), [WRONG] * count])
    rows.append([[WRONG]], first=1)  # copied down where there was no room
    rows.leave(1)
    rows.join()
    assert all(np.isfinite(row).all() for layer in rows.append([[1], [2]]) for row in layer)


@pytest.mark.parametrize("source", range(len(LENGTHS)))
@pytest.mark.parametrize("target", range(len(LENGTHS)))
def test_law_5_moved_copied_and_swapped_rows_are_what_they_were(
    kind: str, source: int, target: int
) -> None:
    if source == target:
        return
    for verb in ("move", "copy", "swap"):
        rows, expected = filled(kind), dict(enumerate(map(list, ROWS)))
        getattr(rows, verb)(source, target)
        left = {"move": [], "copy": expected[source], "swap": expected[target]}[verb]
        expected[source], expected[target] = left, expected[source]
        for row, tokens in expected.items():
            rows.holds(row, tokens)
        outputs = rows.append(NEWS)
        for row, tokens in expected.items():
            rows.gives(outputs, row, [*tokens, *NEWS[row]])


@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_law_5_a_moved_row_gives_the_same_bits(kind: str, row: int) -> None:
    rows, moved = filled(kind), filled(kind)
    moved.swap(row, (row + 1) % 4)
    moved.fit(4, 1)
    for step in range(70):
        new = [[5000 + step] for _ in ROWS]
        same(of_row(rows.append(new), row), of_row(moved.append(new), (row + 1) % 4))


def test_law_6_leaving_changes_no_other_row(kind: str) -> None:
    rows = filled(kind)
    rows.leave(0)
    for row, tokens in enumerate((ROWS[3], ROWS[1], ROWS[2])):
        rows.holds(row, tokens)
    rows.join()  # the source's seat serves another, and the moved row stays as it was
    rows.append([range(700, 709)], first=3)
    rows.holds(0, ROWS[3])


@pytest.mark.parametrize("count", [1, 3, 16, ROLLBACK])
@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_law_7_a_rolled_back_row_is_as_if_never_extended(kind: str, row: int, count: int) -> None:
    rows, untouched = filled(kind), filled(kind)
    for drafts in (min(count, 16), count - min(count, 16)):
        if drafts:
            rows.append([range(8000, 8000 + drafts)], first=row)
    if kind in RECURRENT_KINDS and count > 16:
        with pytest.raises(CannotRollback):
            rows.rollback(row, count)
        rows.rollback(row, count - 16)
        rows.holds(row, [*ROWS[row], *range(8000, 8016)])
        return
    rows.rollback(row, count)
    for index, tokens in enumerate(ROWS):
        rows.holds(index, tokens)
    same(rows.append(NEWS), untouched.append(NEWS))


@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_law_7_rows_that_moved_since_go_back_as_well(kind: str, row: int) -> None:
    rows, other = filled(kind), (row + 1) % 4
    rows.append(NEWS)
    rows.swap(row, other)
    rows.rollback(other, 1)
    rows.holds(other, ROWS[row])
    rows.holds(row, [*ROWS[other], *NEWS[other]])
    rows.copy(row, other)
    rows.rollback(other, 1)
    rows.holds(other, ROWS[other])
    rows.holds(row, [*ROWS[other], *NEWS[other]])


def test_law_7_rolling_back_too_far_is_refused_and_changes_nothing(kind: str) -> None:
    rows = filled(kind)
    try:
        rows.rollback(3, 70)
    except CannotRollback:
        assert kind != "full"
        rows.holds(3, ROWS[3])
    else:
        assert kind == "full"
        rows.holds(3, ROWS[3][:5])


def test_law_7_a_row_can_always_be_emptied(kind: str) -> None:
    rows = filled(kind)
    if kind in RECURRENT_KINDS:
        rows.clear(3)
    else:
        rows.rollback(3, LENGTHS[3])
    outputs = rows.append([range(50)], first=3)
    rows.gives(outputs, 0, range(50))


def test_law_8_an_export_keeps_no_hold_on_live_state(kind: str) -> None:
    rows = filled(kind)
    rows.reserve(200, 4096)
    exported = rows.export(3, LENGTHS[3])
    held = [part.copy() for part in exported]
    mx.clear_cache()
    mx.reset_peak_memory()
    before, whole = mx.get_active_memory(), rows.nbytes
    rows.append([[60]], first=3)
    for part, kept in zip(exported, held, strict=True):
        np.testing.assert_array_equal(part, kept)
    if kind in RECURRENT_KINDS:
        return  # whose rows are written by a copy of all, hold or no hold
    assert mx.get_peak_memory() - before < whole / 8, "the next write copied everything"


@pytest.mark.parametrize("before", range(4))
def test_law_8_a_place_a_little_before_the_end_can_be_exported(kind: str, before: int) -> None:
    rows, other = filled(kind), filled(kind)
    rows.append([[900]], first=3)  # makes room, and keeps some
    stop = LENGTHS[3] + 1 - before
    if before and kind in RECURRENT_KINDS:
        with pytest.raises(CannotExport):
            rows.export(3, stop)
        return
    other.import_(2, stop, rows.export(3, stop))
    other.holds(2, [*ROWS[3], 900][:stop])


def test_law_8_what_is_gone_is_refused(kind: str) -> None:
    rows = filled(kind)
    if kind == "full":
        rows.export(3, 20)
        return
    with pytest.raises(CannotExport):
        rows.export(3, 20)


def test_law_9_an_imported_row_equals_the_exported(kind: str) -> None:
    rows = filled(kind)
    for source, length in enumerate(LENGTHS):
        for target in range(len(LENGTHS)):
            other = filled(kind)
            other.import_(target, length, rows.export(source, length))
            other.holds(target, ROWS[source])
            kept = filled(kind)
            for step in range(3):
                new = [[900 + step]]
                same(other.append(new, first=target), kept.append(new, first=source))
    layouts = [state.layout for state in rows.states]
    assert layouts == [state.layout for state in filled(kind).states]


def test_law_9_sliceable_kinds_take_parts_and_leading_tokens_of_them(kind: str) -> None:
    rows, other = filled(kind), filled(kind)
    for state, into in zip(rows.states, other.states, strict=True):
        if not state.is_sliceable:
            continue
        for start, stop, wanted in ((0, 5, 5), (5, 20, 12)):
            part = np.zeros(state.export_bytes(stop - start), np.uint8)
            state.export_row(3, start, stop, part)
            into.import_row(1, start, wanted, part, stop - start)
        found, expected = (np.zeros(into.export_bytes(12), np.uint8) for _ in range(2))
        into.export_row(1, 0, 12, found)
        state.export_row(3, 0, 12, expected)
        np.testing.assert_array_equal(found, expected)


def test_law_9_a_state_that_was_reset_can_be_imported_into(kind: str) -> None:
    rows = filled(kind)
    exported = rows.export(3, LENGTHS[3])
    while rows.lengths:
        rows.leave(0)
    for state in rows.states:
        state.reset()
    rows.join()
    rows.import_(0, LENGTHS[3], exported)
    rows.holds(0, ROWS[3])


def test_law_10_growing_and_shrinking_keep_every_row(kind: str) -> None:
    rows, untouched = filled(kind), filled(kind)
    rows.reserve(9, 600)
    grown = rows.nbytes
    for row, tokens in enumerate(ROWS):
        rows.holds(row, tokens)
    rows.fit(0, 0)
    assert rows.nbytes < grown
    for row, tokens in enumerate(ROWS):
        rows.holds(row, tokens)
    for _ in range(3):
        same(rows.append(NEWS), untouched.append(NEWS))


def test_law_10_an_empty_batch_shrinks_to_nothing(kind: str) -> None:
    rows = filled(kind)
    while rows.lengths:
        rows.leave(0)
    rows.fit(0, 0)
    assert rows.nbytes == 0
    rows.join()
    rows.gives(rows.append([range(20)]), 0, range(20))


def test_law_11_bytes_are_what_the_arrays_take(kind: str) -> None:
    gc.collect()  # states and their window hold each other
    mx.clear_cache()
    before = mx.get_active_memory()
    rows = filled(kind)
    mx.clear_cache()
    assert rows.nbytes == sum(array.nbytes for array in rows.arrays()) > 0
    if kind in RECURRENT_KINDS:
        rows.append(NEWS)  # a short one: what it started from is kept
        mx.clear_cache()
        assert rows.nbytes > sum(array.nbytes for array in rows.arrays())
    assert 0 <= mx.get_active_memory() - before - rows.nbytes < 4096 * len(rows.states)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (5, 20), (4, 300), (9, 1000)])
def test_law_11_what_growth_takes_is_foretold(kind: str, count: int, columns: int) -> None:
    rows = filled(kind)
    foretold = sum(state.bytes_after(count, columns) for state in rows.states)
    rows.reserve(count, columns)
    assert rows.nbytes == foretold


def test_law_11_a_row_takes_what_was_foretold(kind: str) -> None:
    rows = Rows.of(kind, [range(300)])
    assert sum(state.row_bytes(300) for state in rows.states) == rows.nbytes


@pytest.mark.parametrize("columns", [1, 2, 30, 200])
def test_law_12_a_forward_that_fails_leaves_every_row_as_it_was(kind: str, columns: int) -> None:
    rows, untouched = filled(kind), filled(kind)
    rows.append([range(9000, 9000 + columns)] * len(LENGTHS), commit=False)
    for row, tokens in enumerate(ROWS):
        rows.holds(row, tokens)
    same(rows.append(NEWS), untouched.append(NEWS))


def test_rows_outside_a_forward_stay_untouched(kind: str) -> None:
    rows = filled(kind)
    for step in range(60):
        rows.append([[5000 + step], [6000 + step]])
    for row in (2, 3):
        rows.holds(row, ROWS[row])


@pytest.mark.parametrize("count", [1, 2, 16])
def test_a_write_costs_no_copy_of_the_whole(kind: str, count: int) -> None:
    if kind in RECURRENT_KINDS:
        return
    rows = filled(kind)
    rows.reserve(400, 4096)
    for step in range(3):
        new = [range(100 * step, 100 * step + count)] * len(LENGTHS)
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        rows.append(new)
        assert mx.get_peak_memory() - before < rows.nbytes / 8


def test_a_long_piece_costs_no_copy_of_the_whole(kind: str) -> None:
    if kind in RECURRENT_KINDS:
        return
    rows = filled(kind)
    rows.reserve(4000, 512)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    rows.append([range(300)], first=3)
    assert mx.get_peak_memory() - before < rows.nbytes / 8


@pytest.mark.parametrize("rows", [[ROWS[3]], ROWS])
def test_widths_are_rounded_up_for_several_columns_only(kind: str, rows: list[range]) -> None:
    if kind in RECURRENT_KINDS:
        return
    stepped, exact = Rows.of(kind, rows, width_step=16), Rows.of(kind, rows)
    widths: set[int] = set()
    for count in (1, 2, 16, 3, 100, 1, 5):
        new = [range(100 * row, 100 * row + count) for row in range(len(rows))]
        same(stepped.append(new), exact.append(new))
        stepped.table.begin(range(1), 2)
        for state in stepped.states:
            fetched = cast("Any", state).update_and_fetch(*[mx.zeros((1, 2, 2, 4))] * 2)
            widths.add(fetched[0].shape[2])
    assert {width % 16 for width in widths} == {0}


@pytest.mark.parametrize("verb", ["move", "copy", "swap"])
def test_law_5_a_row_that_just_joined_takes_another(kind: str, verb: str) -> None:
    rows = Rows.of(kind, ROWS[3:])
    rows.join()
    getattr(rows, verb)(0, 1)
    rows.holds(1, ROWS[3])


@pytest.mark.parametrize("count", [43, 49, 111, 256])
def test_a_piece_that_fills_the_room_to_the_last_column_is_kept(kind: str, count: int) -> None:
    rows = Rows.of(kind, [range(count)])
    rows.holds(0, range(count))
    rows.clear(0)
    rows.append([range(900, 900 + count)])
    rows.holds(0, range(900, 900 + count))
