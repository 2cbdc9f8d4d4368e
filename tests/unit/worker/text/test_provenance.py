"""What is kept of sessions, how long, and who may have it."""

from collections.abc import Sequence

import pytest

from bramley.worker.text import provenance
from bramley.worker.text.provenance import Provenance

PAIRS = 256  # ids from here on are two letters
END = 1000


class Letters:
    """One letter is one token, and so are two; plain texts are single letters."""

    added_ids = frozenset({END})

    def __init__(self) -> None:
        self.reads_badly = False

    def token_bytes(self, number: int) -> bytes:
        if number == END:
            return b"<end>"
        return (
            bytes([number])
            if number < PAIRS
            else bytes(divmod(number - PAIRS, 26)).translate(bytes(range(97, 123)) + bytes(230))
        )

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        assert not skip_special_tokens
        if self.reads_badly:
            return str(list(ids))
        return b"".join(map(self.token_bytes, ids)).decode()


def pair(text: str) -> int:
    a, b = (ord(letter) - 97 for letter in text)
    return PAIRS + 26 * a + b


def plain(text: str) -> list[int]:
    return list(text.encode())


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def kept(letters: Letters) -> Provenance:
    return Provenance(letters)


ANSWER = [*plain("q:"), pair("ab"), pair("cd")]


def test_kept_ids_stand_in_for_their_text(kept: Provenance) -> None:
    kept.keep(b"r", "s", ANSWER)
    assert kept.ids(b"r", "s", plain("q:abcd.")) == [*ANSWER, ord(".")]


def test_they_end_at_the_last_border_that_both_have(kept: Provenance) -> None:
    kept.keep(b"r", "s", ANSWER)
    assert kept.ids(b"r", "s", plain("q:abc")) == [*ANSWER[:3], ord("c")]
    merged = [*plain("q:a"), pair("bc"), ord("d")]
    assert kept.ids(b"r", "s", merged) == ANSWER
    merged = [*plain("q:"), pair("ab"), ord("c"), pair("de")]
    assert kept.ids(b"r", "s", merged) is merged


def test_a_special_token_stands_for_itself_alone(kept: Provenance) -> None:
    kept.keep(b"r", "s", [*plain("q"), pair("ab"), *plain("<end>"), pair("cd")])
    prompt = [*plain("qab"), END, *plain("cd")]
    assert kept.ids(b"r", "s", prompt) == [ord("q"), pair("ab"), END, *plain("cd")]
    kept.keep(b"r", "t", [*plain("x"), pair("ab"), END, pair("cd")])
    assert kept.ids(b"r", "t", plain("xab<end>cd")) == [ord("x"), pair("ab"), *plain("<end>cd")]


def test_ids_that_stand_for_nothing_are_kept_between_others_and_left_at_the_border(
    kept: Provenance,
) -> None:
    empty = 97  # an id of a padded vocabulary
    kept._vocabulary.token_bytes = lambda number: b"" if number == empty else bytes([number])  # type: ignore[method-assign]
    kept.keep(b"r", "s", [*plain("x"), empty, *plain("y"), empty])
    assert kept.ids(b"r", "s", plain("xyz")) == [*plain("x"), empty, *plain("yz")]
    assert kept.ids(b"r", "s", plain("x")) == plain("x")  # the prompt itself, asked again


def test_a_session_s_own_come_before_others_of_the_same_text(kept: Provenance) -> None:
    kept.keep(b"r", "s", ANSWER)
    other = [*plain("q:a"), pair("bc"), ord("d")]
    kept.keep(b"r", "t", other)
    assert kept.ids(b"r", "s", plain("q:abcd")) == ANSWER
    assert kept.ids(b"r", "t", plain("q:abcd")) == other
    assert kept.ids(b"r", "", plain("q:abcd")) == other  # the newest


def test_the_text_alone_finds_them_but_never_from_another_namespace(kept: Provenance) -> None:
    kept.keep(b"r", "s", ANSWER)
    prompt = plain("q:abcd")
    assert kept.ids(b"r", "", prompt) == ANSWER
    assert kept.ids(b"other", "s", prompt) is prompt


def test_whoever_shares_more_text_is_taken(kept: Provenance) -> None:
    kept.keep(b"r", "s", [*plain("q:"), pair("ab")])
    kept.keep(b"r", "t", [*plain("q:a"), pair("bc"), ord("x")])
    assert kept.ids(b"r", "s", plain("q:abcx")) == [*plain("q:a"), pair("bc"), ord("x")]


def test_forgotten_sessions_and_namespaces_are_gone(kept: Provenance) -> None:
    kept.keep(b"r", "s", ANSWER)
    kept.keep(b"r", "t", [*plain("u:"), pair("ab")])
    kept.keep(b"q", "s", ANSWER)
    kept.forget(b"r", "s")
    assert kept.ids(b"r", "s", plain("q:abcd")) == plain("q:abcd")
    assert kept.ids(b"r", "t", plain("u:ab")) == [*plain("u:"), pair("ab")]
    assert kept.ids(b"q", "s", plain("q:abcd")) == ANSWER
    kept.forget_namespace(b"q")
    assert kept.ids(b"q", "s", plain("q:abcd")) == plain("q:abcd")


def test_a_turn_takes_the_place_of_the_one_that_it_goes_on_from(
    kept: Provenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "TOKENS_MAX", 2 * len(ANSWER) + 3)
    other = [*plain("z:"), pair("ab")]
    kept.keep(b"r", "", other)
    kept.keep(b"r", "s", ANSWER)
    for more in range(1, 4):
        kept.keep(b"r", "s", [*ANSWER, *plain("x" * more)])
    assert kept.ids(b"r", "s", plain("q:abcdxxx")) == [*ANSWER, *plain("xxx")]
    assert kept.ids(b"r", "", plain("z:ab")) == other  # there was room all the while


@pytest.mark.parametrize(
    ("bound", "value"), [("SEQUENCES_MAX", 2), ("TOKENS_MAX", 8), ("BYTES_MAX", 12)]
)
def test_the_least_recently_used_leaves_first(
    kept: Provenance, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(provenance, bound, value)
    sequences = {name: [*plain(f"{name}:"), pair("ab"), pair("cd")] for name in "uvw"}
    kept.keep(b"r", "u", sequences["u"])
    kept.keep(b"r", "v", sequences["v"])
    assert kept.ids(b"r", "", plain("u:abcd")) == sequences["u"]
    kept.keep(b"r", "w", sequences["w"])
    found = {name: kept.ids(b"r", "", plain(f"{name}:abcd")) for name in "uvw"}
    assert found == {**sequences, "v": plain("v:abcd")}


def test_what_is_larger_than_all_room_is_not_kept(
    kept: Provenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "TOKENS_MAX", 5)
    kept.keep(b"r", "s", ANSWER)
    kept.keep(b"r", "s", [*ANSWER, 1, 2])
    assert kept.ids(b"r", "s", plain("q:abcd")) == ANSWER


def test_a_session_keeps_its_newest(kept: Provenance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "SESSION_SEQUENCES_MAX", 2)
    for name in "uvw":
        kept.keep(b"r", "s", [*plain(f"{name}:"), pair("ab")])
        kept.keep(b"r", "", [*plain(f"{name};"), pair("ab")])
    assert kept.ids(b"r", "s", plain("u:ab")) == plain("u:ab")
    assert kept.ids(b"r", "s", plain("v:ab")) == [*plain("v:"), pair("ab")]
    assert kept.ids(b"r", "", plain("u;ab")) == [*plain("u;"), pair("ab")]  # no session at all


def test_ids_that_would_read_differently_are_not_taken(kept: Provenance, letters: Letters) -> None:
    kept.keep(b"r", "s", ANSWER)
    letters.reads_badly = True
    prompt = plain("q:abcd")
    assert kept.ids(b"r", "s", prompt) is prompt
