"""How much room rows are given, so that they seldom need more. Pure."""

from typing import Final

COLUMNS_STEP: Final = 256


def grown_room(held: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """Say how many rows and columns to make room for, where what is held is too little."""
    # Rows are doubled: a row more copies everything. Columns grow by an eighth, which costs as
    # little for each token as the step that reads them. More rows leave spare columns behind, or
    # one long row would make every row long.
    (held_rows, held_columns), (rows, columns) = held, wanted
    if rows > held_rows:
        return max(rows, 2 * held_rows), columns
    return held_rows, max(columns, held_columns + held_columns // 8)


def stepped(columns: int, most: int) -> int:
    """Round columns up to what room is made for, ``most`` at most."""
    return min(-(-columns // COLUMNS_STEP) * COLUMNS_STEP, most)
