"""Answers are kept for so long, so many bytes of them, each for its holder."""

from bramley.router.gateway.openai import stored
from bramley.router.gateway.openai.responses_items import Message
from bramley.router.gateway.openai.stored import Kept, Stored


def kept(text_bytes: int = 0) -> Kept:
    return Kept(body=b"", items=[], output=[], text_bytes=text_bytes)


def test_an_answer_is_kept_for_its_time_and_its_holder() -> None:
    one = Stored(10, 1 << 20)
    given = kept()
    one.keep("ann", "a", given, now_s=100)
    assert one.find("ann", "a", now_s=109.9) is given
    assert one.find("bob", "a", now_s=100) is None
    assert one.find("ann", "a", now_s=110) is None
    one.keep("ann", "b", kept(), now_s=110)
    assert len(one) == 1
    assert one.bytes == kept().cost


def test_the_oldest_leave_first() -> None:
    one = Stored(10, 3 * kept().cost + 5)
    for name in "abc":
        one.keep("", name, kept(), now_s=0)
    one.keep("", "d", kept(6), now_s=1)
    found = [name for name in "abcd" if one.find("", name, now_s=1)]
    assert found == ["c", "d"]
    assert one.bytes == kept().cost + kept(6).cost


def test_no_more_are_kept_than_may_be() -> None:
    one = Stored(10, 1 << 40)
    for number in range(stored.COUNT_MAX + 2):
        one.keep("", str(number), kept(), now_s=0)
    assert len(one) == stored.COUNT_MAX
    assert one.find("", "1", now_s=0) is None
    assert one.find("", "2", now_s=0) is not None


def test_one_that_is_too_large_by_itself_puts_out_no_other() -> None:
    one = Stored(10, 2 * kept().cost)
    one.keep("", "a", kept(), now_s=0)
    one.keep("", "b", kept(2 * kept().cost), now_s=0)
    assert one.find("", "a", now_s=0) is not None
    assert one.find("", "b", now_s=0) is None


def test_who_deletes_is_told_whether_it_was_there() -> None:
    one = Stored(10, 1 << 20)
    one.keep("ann", "a", kept(), now_s=0)
    assert not one.delete("bob", "a", now_s=0)
    assert not one.delete("ann", "a", now_s=10)
    one.keep("ann", "a", kept(), now_s=20)
    assert one.delete("ann", "a", now_s=20)
    assert (len(one), one.bytes) == (0, 0)
    assert not one.delete("ann", "a", now_s=20)


def test_the_next_turn_goes_on_from_all_of_it() -> None:
    asked, said = Message(role="user", content="x"), Message(role="assistant", content="y")
    assert Kept(b"", [asked], [said], 0).conversation == [asked, said]


def test_an_answer_counts_as_all_of_its_conversation() -> None:
    item = Message(role="user", content="x")
    assert Kept(b"12345", [item, item], [item], 7).cost == kept(12).cost + 3 * stored.ITEM_BYTES
