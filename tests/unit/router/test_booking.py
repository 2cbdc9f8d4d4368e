"""Whatever happens, in whatever order, a ledger's sums return to zero."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bramley.router.booking import Ledger

AMOUNTS = st.tuples(st.integers(0, 10_000), st.integers(0, 1 << 40), st.integers(0, 3))


@given(st.lists(AMOUNTS, max_size=12), st.randoms(use_true_random=False))
def test_sums_return_to_zero_under_any_order(
    amounts: list[tuple[int, int, int]], rng: object
) -> None:
    ledger = Ledger()
    stacks: list[ExitStack] = []
    for tokens, nbytes, begun in amounts:
        stack = ExitStack()
        booking = stack.enter_context(ledger.book(tokens, nbytes))
        for _ in range(begun):
            booking.begun()
        stacks.append(stack)
    assert ledger.requests == len(amounts)
    assert ledger.memory_bytes == sum(nbytes for _, nbytes, _ in amounts)
    assert ledger.prefill_tokens == sum(tokens for tokens, _, begun in amounts if not begun)
    rng.shuffle(stacks)  # type: ignore[attr-defined]
    for stack in stacks:
        stack.close()
    assert ledger == Ledger()


def test_an_error_releases_as_well() -> None:
    ledger = Ledger()
    with pytest.raises(ZeroDivisionError), ledger.book(5, 7):
        _ = 1 / 0
    assert ledger == Ledger()
