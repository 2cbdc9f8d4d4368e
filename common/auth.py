"""Bearer tokens: how they are made, what is kept of them, how a call carries one (pure)."""

import hashlib
import secrets
from collections.abc import Iterable

# Of a token's holder: neither empty nor with a "/", so that NAME/... is nobody else's.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_BYTES = 32
_KEY = "authorization"
_SCHEME = "bearer"


def new_token() -> str:
    """Draw a token that nobody can guess."""
    return secrets.token_urlsafe(_BYTES)


def digest_of(token: str) -> str:
    """Say what a server keeps of a token: its SHA-256, in hex."""
    # Nobody guesses 32 random bytes, so that no slower sum is needed.
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def metadata_of(token: str) -> tuple[tuple[str, str], ...]:
    """Say what a call with a token carries."""
    return ((_KEY, f"{_SCHEME.capitalize()} {token}"),)


def token_in(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Find the token that a call carries; None without one, or with more than one."""
    found = [value for key, value in metadata if key == _KEY]
    if len(found) != 1 or not isinstance(value := found[0], str):
        return None
    scheme, _, token = value.partition(" ")
    return token.strip() or None if scheme.lower() == _SCHEME else None
