"""Decides which cohort a new row joins: rows of one forward pay for the longest. Pure."""

from collections.abc import Mapping, Sequence


def choose_cohort(
    lengths: Mapping[int, Sequence[int]], length: int, waste_columns: int
) -> int | None:
    """Choose the cohort where a row adds the least padding.

    Args:
        lengths: of each cohort's rows, by the cohort's number; parked rows count too.
        length: of the new row, prompt included.
        waste_columns: padding that a forward may read before a forward of its own is cheaper.

    Returns:
        The cohort's number; None for a new one.
    """
    best: tuple[int, int] | None = None
    for number, rows in lengths.items():
        joined = [*rows, length]
        waste = len(joined) * max(joined) - sum(joined)
        if waste <= waste_columns and (best is None or waste < best[0]):
            best = (waste, number)
    return best[1] if best else None
