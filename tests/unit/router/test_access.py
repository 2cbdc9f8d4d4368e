"""Who may call what: every rule of a token, and what keeps one holder's things from another."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bramley.common import settings
from bramley.common.auth import digest_of, new_token
from bramley.common.errors import PermissionDenied, SettingsError, Unauthenticated
from bramley.protos.v1 import router_pb2
from bramley.router import access
from bramley.router.access import ADMINS, ANY_HOLDER, ANYBODY, Identity, Tokens, TokensFile
from bramley.router.classes import Priority
from bramley.router.clients import ClientLimits

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ALICE = Identity(name="alice", is_admin=False)
PRIVATE = Identity(name="carol", is_admin=False, shares_cache=False)


def tokens(**tables: dict[str, Any]) -> Tokens:
    return Tokens(settings.check({"tokens": tables}, TokensFile))


def test_a_token_tells_its_holder_and_what_the_table_allows() -> None:
    token = new_token()
    known = tokens(
        alice={"sha256": digest_of(token), "models": ["a"], "classes": ["bulk"], "requests_max": 3},
        bob={"sha256": digest_of("other"), "admin": True, "shared_cache": True},
    )
    alice, bob = known.identify(token, NOW), known.identify("other", NOW)
    assert (alice.name, alice.models, alice.classes) == ("alice", {"a"}, {"bulk"})
    assert (alice.is_admin, alice.shares_cache) == (False, False)
    assert (bob.name, bob.models, bob.classes, bob.is_admin) == ("bob", None, None, True)
    usual = ClientLimits(requests_per_minute=7, requests_max=9)
    assert alice.limits(usual) == ClientLimits(requests_per_minute=7, requests_max=3)
    assert bob.limits(usual) == usual


@pytest.mark.parametrize("shown", [None, "", "wrong", digest_of("right"), "right ", "RIGHT"])
def test_what_is_not_the_token_is_refused_and_not_repeated(shown: str | None) -> None:
    with pytest.raises(Unauthenticated) as refused:
        tokens(alice={"sha256": digest_of("right")}).identify(shown, NOW)
    assert not shown or shown not in refused.value.message
    assert not refused.value.facts


def test_without_any_entry_nobody_is_known() -> None:
    with pytest.raises(Unauthenticated):
        tokens().identify("x", NOW)


def test_a_token_ends_when_it_expires() -> None:
    known = tokens(alice={"sha256": digest_of("t"), "expires": NOW})
    assert known.identify("t", NOW - timedelta(seconds=1)).name == "alice"
    with pytest.raises(Unauthenticated) as refused:
        known.identify("t", NOW)
    assert refused.value.reason == "TOKEN_EXPIRED"


@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("tokens.a.sha256", {}),
        ("tokens.a.sha256", {"sha256": "AB" * 32}),
        ("tokens.a.sha256", {"sha256": "ab" * 31}),
        ("tokens.a.classes[0]", {"sha256": "ab" * 32, "classes": ["urgent"]}),
        ("tokens.a.expires", {"sha256": "ab" * 32, "expires": datetime(2026, 1, 1)}),
        ("tokens.a.token", {"sha256": "ab" * 32, "token": "x"}),
    ],
)
def test_a_table_that_is_not_right_is_refused_by_its_key(key: str, table: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as refused:
        tokens(a=table)
    assert refused.value.key == key


@pytest.mark.parametrize("name", ["a/b", "", "/a", "a b", "x" * 65, "-a", "\u00e4"])
def test_a_name_that_could_be_taken_for_another_is_refused(name: str) -> None:
    with pytest.raises(SettingsError):
        tokens(**{name: {"sha256": "ab" * 32}})


def test_one_token_has_one_name() -> None:
    with pytest.raises(SettingsError) as refused:
        tokens(a={"sha256": "ab" * 32}, b={"sha256": "ab" * 32})
    assert refused.value.key == "tokens.b.sha256"


def test_every_call_of_the_service_is_somebodys() -> None:
    service = router_pb2.DESCRIPTOR.services_by_name["RouterService"]
    assert {method.name for method in service.methods} <= ANY_HOLDER | ADMINS
    assert not ANY_HOLDER & ADMINS


@pytest.mark.parametrize("call", [*sorted(ADMINS), "ACallOfTomorrow"])
def test_what_changes_the_cluster_takes_an_admins_token(call: str) -> None:
    access.check_call(Identity(name="root", is_admin=True), call)
    with pytest.raises(PermissionDenied) as refused:
        access.check_call(ALICE, call)
    assert call in refused.value.message


@pytest.mark.parametrize("call", sorted(ANY_HOLDER))
def test_what_only_asks_takes_any_token(call: str) -> None:
    access.check_call(ALICE, call)


def test_a_model_that_is_not_the_holders_is_refused_whether_it_is_there_or_not() -> None:
    one = Identity(name="one", models=frozenset({"a"}), is_admin=False)
    access.check_use(one, "a")
    access.check_use(one, "")  # no model is named: the call itself was checked
    for model in ("b", "never-heard-of", "A"):
        with pytest.raises(PermissionDenied) as refused:
            access.check_use(one, model)
        assert repr(model) in refused.value.message


def test_a_class_that_is_not_the_holders_is_refused_by_name() -> None:
    bulk = Identity(name="one", classes=frozenset({"bulk"}), is_admin=False)
    access.check_use(bulk, "a", Priority.BULK)
    for priority in (Priority.DEFAULT, Priority.INTERACTIVE, Priority.SYSTEM):
        with pytest.raises(PermissionDenied) as refused:
            access.check_use(bulk, "a", priority)
        assert priority.name.lower() in refused.value.message


def test_an_empty_list_allows_none() -> None:
    nothing = tokens(a={"sha256": digest_of("t"), "models": [], "classes": []}).identify("t", NOW)
    assert not access.may_use(nothing, "a")
    with pytest.raises(PermissionDenied):
        access.check_use(nothing, "", Priority.DEFAULT)


def test_only_who_began_a_request_or_an_admin_ends_it() -> None:
    assert access.may_end(ALICE, "alice")
    assert not access.may_end(ALICE, "bob")
    assert not access.may_end(ALICE, "")
    assert access.may_end(Identity(name="root", is_admin=True), "alice")
    assert access.may_end(ANYBODY, "alice")


NAMES = ["", "alice", "bob", "a"]
ASKED = ["", "x", "/", "/x", "alice/", "alice/x", "bob/x", "a/x", "lice/x"]


def test_no_holder_can_name_a_salt_of_another() -> None:
    holders = [
        Identity(name=name, is_admin=False, shares_cache=shares)
        for name in NAMES[1:]
        for shares in (False, True)
    ]
    salts = {
        (one.name, one.shares_cache): {access.salt(one, asked) for asked in ASKED}
        for one in holders
    }
    for one, other in itertools.combinations(salts, 2):
        if one[1] and other[1]:
            assert salts[one] == salts[other]  # those that share do share
        else:
            assert not salts[one] & salts[other]


def test_different_salts_of_one_holder_stay_different() -> None:
    for one in (ALICE, PRIVATE, ANYBODY):
        assert len({access.salt(one, asked) for asked in ASKED}) == len(ASKED)


def test_who_needs_no_token_keeps_its_salt_as_asked() -> None:
    assert [access.salt(ANYBODY, asked) for asked in ASKED] == ASKED
