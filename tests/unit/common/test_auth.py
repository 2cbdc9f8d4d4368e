"""Tokens: made of 32 random bytes, kept as a sum, found in a call's metadata or not at all."""

import base64

import pytest

from bramley.common import auth


def test_a_new_token_has_32_random_bytes_and_fits_a_header() -> None:
    tokens = {auth.new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(base64.urlsafe_b64decode(f"{token}=")) for token in tokens} == {32}


def test_what_is_kept_is_its_sha256() -> None:
    kept = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert auth.digest_of("abc") == kept


def test_what_a_client_sends_is_what_a_server_finds() -> None:
    assert auth.token_in((("user-agent", "x"), *auth.metadata_of("T"))) == "T"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", ""),),
        (("authorization", "T"),),
        (("authorization", "Bearer"),),
        (("authorization", "Bearer "),),
        (("authorization", "Basic T"),),
        (("authorization-bin", b"Bearer T"),),
        (("authorization", b"Bearer T"),),
        (*auth.metadata_of("T"), *auth.metadata_of("U")),
    ],
)
def test_anything_else_is_no_token(metadata: tuple[tuple[str, str | bytes], ...]) -> None:
    assert auth.token_in(metadata) is None


def test_the_scheme_is_read_in_any_case() -> None:
    assert auth.token_in((("authorization", "bearer  T "),)) == "T"
