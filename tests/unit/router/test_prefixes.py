"""What the router believes of stores and rows, event by event."""

import pytest

from bramley.router.prefixes import Gap, Stored, StoreView, row_tokens, split


def chain(number: int) -> bytes:
    return number.to_bytes(32, "big")


def chains(*numbers: int) -> list[bytes]:
    return [chain(number) for number in numbers]


def view() -> StoreView:
    made = StoreView()
    made.reset(epoch=3, sequence=10)
    made.apply(3, 10, b"".join(chains(1, 2)), b"", "ram")
    made.apply(3, 11, chain(3), b"", "ssd")
    return made


def test_a_prompt_matches_as_far_as_its_blocks_are_known() -> None:
    assert view().match(chains(1, 2, 3, 4)) == Stored(ram=512, ssd=256)
    assert view().match(chains(1, 9, 3)) == Stored(ram=256)
    assert view().match(chains(9, 1)) == Stored()
    assert view().match([]) == Stored()


def test_what_is_removed_matches_no_more_and_what_moved_counts_where_it_is() -> None:
    made = view()
    made.apply(3, 12, b"", chain(3), "ram")
    made.apply(3, 13, chain(2), b"", "ssd")
    assert made.match(chains(1, 2, 3)) == Stored(ram=256, ssd=256)
    made.apply(3, 14, b"", chain(77), "ram")
    assert len(made) == 2


@pytest.mark.parametrize(("epoch", "sequence"), [(3, 13), (3, 9), (4, 12), (2, 12)])
def test_a_missing_event_or_another_store_voids_the_view(epoch: int, sequence: int) -> None:
    with pytest.raises(Gap, match=f"event {sequence} of epoch {epoch} after 11 of 3"):
        view().apply(epoch, sequence, chain(5), b"", "ram")


def test_a_reset_forgets_everything() -> None:
    made = view()
    made.reset(epoch=4, sequence=1)
    assert made.match(chains(1, 2, 3)) == Stored()
    made.apply(4, 2, chain(1), b"", "ram")
    assert made.match(chains(1)) == Stored(ram=256)


def test_rows_share_up_to_their_last_whole_block() -> None:
    assert row_tokens(chains(1, 2, 3), chains(2)) == 512
    assert row_tokens(chains(1, 2, 3), chains(1, 3, 9)) == 768
    assert row_tokens(chains(1, 2, 3), chains(9)) == 0
    assert row_tokens(chains(1), []) == row_tokens([], chains(1)) == 0


def test_hashes_that_lie_end_to_end_are_cut() -> None:
    assert split(b"".join(chains(1, 2))) == chains(1, 2)
    assert split(b"") == []
