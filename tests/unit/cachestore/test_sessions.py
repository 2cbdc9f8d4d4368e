"""Open sessions protect their newest objects, within reason; what they said can be recalled."""

from typing import Any

import pytest

from bramley.cachestore import recall as recalling
from bramley.cachestore import sessions as module
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.matching import Group
from bramley.cachestore.namespaces import Namespace
from bramley.cachestore.recall import recall
from bramley.cachestore.sessions import IDLE_S, Rank, Sessions
from support.objects import ROOT, catalogue, entry
from support.store import KV, identity, ids

STATE = Group("state", required=True, sliceable=False)


def own(tokens: bytes, first_block: int = 0, **fields: Any) -> Entry:
    return entry(tokens, first_block, session_key="s", **fields)


def state(tokens: bytes, first_block: int) -> Entry:
    return own(tokens, first_block, kind="state", group="state")


def ranks(sessions: Sessions, *entries: Entry) -> list[Rank]:
    return [sessions.rank(one) for one in entries]


def test_the_newest_line_is_protected_whoever_stored_it() -> None:
    shared, first = entry(ids(256)), own(ids(512), 1)
    sessions = Sessions()
    assert ranks(sessions, shared, first) == [Rank.FREE, Rank.FREE]
    sessions.stored(first, [shared.id], 0.0)
    assert ranks(sessions, shared, first) == [Rank.NEWEST, Rank.NEWEST]
    branch = own(ids(512, seed=3), 1)
    sessions.stored(branch, [shared.id], 1.0)
    assert ranks(sessions, shared, first, branch) == [Rank.NEWEST, Rank.OF_SESSION, Rank.NEWEST]


def test_the_newest_states_are_protected_beside_the_line() -> None:
    line = own(ids(768))
    states = [state(ids(256 * (at + 1)), at + 1) for at in range(3)]
    sessions = Sessions()
    sessions.stored(line, [], 0.0)
    for one in states:
        sessions.stored(one, [line.id], 0.0)
    assert ranks(sessions, line, *states) == [
        Rank.NEWEST,
        Rank.OF_SESSION,
        Rank.NEWEST,
        Rank.NEWEST,
    ]


def test_what_two_sessions_share_is_protected_until_both_are_closed() -> None:
    shared, one = entry(ids(256)), own(ids(512), 1)
    other = entry(ids(512, seed=2), 1, session_key="t")
    sessions = Sessions()
    sessions.stored(one, [shared.id], 0.0)
    sessions.stored(other, [shared.id], 0.0)
    assert sessions.close(ROOT, "s")
    assert ranks(sessions, shared, one, other) == [Rank.NEWEST, Rank.FREE, Rank.NEWEST]
    assert not sessions.close(ROOT, "s")
    assert sessions.close(ROOT, "t")
    assert ranks(sessions, shared, one, other) == [Rank.FREE] * 3
    sessions.stored(one, [shared.id], 0.0)
    assert sessions.rank(one) is Rank.NEWEST  # its next turn opens it again


def test_a_session_is_of_one_namespace() -> None:
    one, other = own(ids(256)), own(ids(256), root=b"o" * 32)
    sessions = Sessions()
    sessions.stored(one, [], 0.0)
    assert sessions.rank(other) is Rank.FREE
    assert not sessions.close(b"o" * 32, "s")
    assert sessions.rank(one) is Rank.NEWEST


def test_a_session_that_nobody_used_for_an_hour_is_closed() -> None:
    one, other = own(ids(256)), entry(ids(256, seed=1), session_key="t")
    sessions = Sessions()
    sessions.stored(one, [], 0.0)
    sessions.stored(other, [], 0.0)
    sessions.used(one, 10.0)
    sessions.end_idle(IDLE_S - 1)
    assert len(sessions) == 2
    sessions.end_idle(IDLE_S)
    assert ranks(sessions, one, other) == [Rank.NEWEST, Rank.FREE]
    sessions.end_idle(IDLE_S + 10)
    assert ranks(sessions, one, other) == [Rank.FREE, Rank.FREE]


def test_reading_opens_no_session() -> None:
    one, nobody = own(ids(256)), entry(ids(256, seed=1))
    sessions = Sessions()
    sessions.used(one, 1.0)
    sessions.used(nobody, 1.0)
    sessions.stored(nobody, [], 1.0)
    assert len(sessions) == 0


def test_of_too_many_sessions_the_least_recently_used_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 2)
    a, b, c = (entry(ids(256, seed=at), session_key=f"{at}") for at in range(3))
    sessions = Sessions()
    sessions.stored(a, [], 0.0)
    sessions.stored(b, [], 1.0)
    sessions.used(a, 2.0)
    sessions.stored(c, [], 3.0)
    assert ranks(sessions, a, b, c) == [Rank.NEWEST, Rank.FREE, Rank.NEWEST]


def recalled(
    made: Catalogue, *groups: Group, session_key: str = "s", limit: int = 9
) -> list[tuple[int, bytes, bytes]]:
    namespace = Namespace(ROOT, identity(), groups or (KV,))
    found = recall(made, namespace, session_key, limit)
    return [(one.first_token, one.token_ids_le, one.header) for one in found]


def test_what_was_said_is_recalled_whole_and_the_newest_first() -> None:
    prompt, answer = ids(700), ids(900)
    made = catalogue(
        entry(prompt[: 512 * 4], created_s=1.0),  # another's, that it goes on from
        own(prompt, 2, kind="tail", created_s=2.0),
        own(answer[: 768 * 4], 2, created_s=3.0),
        own(answer, 3, kind="tail", created_s=3.5),
        own(ids(300, seed=4)[: 256 * 4], created_s=2.5),
        entry(ids(300, seed=5)[: 256 * 4], session_key="t", created_s=9.0),
    )
    assert [tokens for _, tokens, _ in recalled(made)] == [answer, ids(256, seed=4)]
    assert recalled(made, limit=1) == [(0, answer, b"")]
    assert recalled(made, session_key="") == [(0, prompt[: 512 * 4], b"")]
    assert recalled(made, session_key="nobody") == []


def test_a_line_goes_on_from_inside_an_object() -> None:
    trunk, branch = ids(768), [*ids(512), *ids(256, seed=6)]
    made = catalogue(own(trunk), own(bytes(branch), 2, created_s=1.0))
    assert [tokens for _, tokens, _ in recalled(made)] == [bytes(branch), trunk]


def test_without_blocks_the_header_is_all_there_is() -> None:
    made = catalogue(own(ids(600), 2, kind="state", group="state", header=b"h"))
    assert recalled(made, STATE) == [(512, ids(600)[512 * 4 :], b"h")]


def test_no_more_is_recalled_than_fits_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = catalogue(*(own(ids(256, seed=at), created_s=float(at)) for at in range(3)))
    monkeypatch.setattr(recalling, "BYTES_MAX", 2 * 256 * 4)
    assert [tokens for _, tokens, _ in recalled(made)] == [ids(256, seed=2), ids(256, seed=1)]


def test_a_line_of_many_objects_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 100
    made = catalogue(*(own(ids(256 * (at + 1)), at, created_s=float(at)) for at in range(count)))
    walked = 0
    line = Catalogue.line

    def walk(*arguments: Any) -> Any:
        nonlocal walked
        for place in line(*arguments):
            walked += 1
            yield place

    monkeypatch.setattr(Catalogue, "line", walk)
    assert [tokens for _, tokens, _ in recalled(made)] == [ids(256 * count)]
    assert walked == count - 1


def test_the_state_that_a_prompt_ended_with_is_protected_as_long_as_it_is_the_last() -> None:
    states = [state(ids(256 * (at + 1)), at + 1) for at in range(4)]
    sessions = Sessions()
    for at, one in enumerate(states):
        sessions.stored(one, [], 0.0, ends_prompt=at == 0)
    assert ranks(sessions, *states) == [
        Rank.NEWEST,
        Rank.OF_SESSION,
        Rank.NEWEST,
        Rank.NEWEST,
    ]
    sessions.stored(states[1], [], 0.0, ends_prompt=True)
    assert sessions.rank(states[0]) is Rank.OF_SESSION
