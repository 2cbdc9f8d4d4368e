"""Who may call what: tokens and their holders, models, classes, calls; and whose a request is.

Pure: router/door.py reads the file and stands at the door. Nothing here keeps, tells or logs a
token: only its SHA-256 is known.
"""

import hmac
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from bramley.common import settings
from bramley.common.auth import NAME, digest_of
from bramley.common.errors import PermissionDenied, SettingsError, Unauthenticated
from bramley.router.classes import Priority
from bramley.router.clients import ClientLimits, Count

Name = Annotated[str, msgspec.Meta(pattern=NAME)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Class = Annotated[str, msgspec.Meta(pattern="^(bulk|default|interactive|system)$")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]

ANY_HOLDER: Final = frozenset(
    {
        "Generate",
        "Embed",
        "Tokenize",
        "Detokenize",
        "ListModels",
        "GetModel",
        "Abort",
        "ExplainCache",
        "CloseSession",
        "GetStatus",
        "ServerReflectionInfo",
    }
)
ADMINS: Final = frozenset(
    {
        "LoadModel",
        "UnloadModel",
        "PinModel",
        "LoadAdapter",
        "UnloadAdapter",
        "FlushCache",
        "Drain",
    }
)


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may call.

    Attributes:
        tokens_file: TOML of the tokens that calls over TCP need, of mode 0600, read again when it
            changes; a relative path starts at cluster.toml's folder; empty asks for no token.
    """

    tokens_file: str = ""


class TokenTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[tokens.NAME]``: what the holder of a token may do.

    Attributes:
        sha256: of the token, as `bramley token` prints it.
        models: that it may use; all, if absent.
        classes: of priority that it may ask for; all, if absent.
        admin: whether it may load, unload, pin and drain, flush the cache, and abort the
            requests of others.
        requests_per_minute: instead of ``[router.clients]``' figure.
        requests_max: instead of ``[router.clients]``' figure.
        expires: from when on it is refused.
        shared_cache: whether its prompts share the cache with those of others that say the same.
    """

    sha256: Sha256
    models: list[str] | None = None
    classes: list[Class] | None = None
    admin: bool = False
    requests_per_minute: Count | None = None
    requests_max: Count | None = None
    expires: Moment | None = None
    shared_cache: bool = False


class TokensFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tables of a tokens file; each is checked by itself, so that faults name it."""

    tokens: dict[Name, dict[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who calls.

    Attributes:
        name: of the token; empty for who needs none.
        models: that may be used; None for all.
        classes: that may be asked for; None for all.
        requests_per_minute: None for the settings' own figure, as the next.
    """

    name: str = ""
    models: frozenset[str] | None = None
    classes: frozenset[str] | None = None
    is_admin: bool = True
    shares_cache: bool = True
    requests_per_minute: int | None = None
    requests_max: int | None = None

    def limits(self, usual: ClientLimits) -> ClientLimits:
        """Choose its limits: its own, or else the settings'."""
        per_minute, most = self.requests_per_minute, self.requests_max
        return ClientLimits(
            requests_per_minute=usual.requests_per_minute if per_minute is None else per_minute,
            requests_max=usual.requests_max if most is None else most,
        )


# Who may reach the router's socket, or a router on loopback that asks for no tokens.
ANYBODY: Final = Identity()
caller: ContextVar[Identity] = ContextVar("caller", default=ANYBODY)


@dataclass(frozen=True, slots=True)
class _Entry:
    sha256: bytes
    identity: Identity
    expires: datetime | None


class Tokens:
    """The tokens that are known.

    Args:
        file: where they are told.

    Raises:
        SettingsError: a table is not right, or two names have one token.
    """

    def __init__(self, file: TokensFile) -> None:
        tables = {
            name: settings.check(table, TokenTable, at=f"tokens.{name}")
            for name, table in file.tokens.items()
        }
        owners: dict[str, str] = {}
        for name, table in tables.items():
            other = owners.setdefault(table.sha256, name)
            if other != name:
                raise SettingsError(f"tokens.{name}.sha256", f"is that of tokens.{other}")
        self._entries = [_entry(name, table) for name, table in tables.items()]

    def identify(self, token: str | None, now: datetime) -> Identity:
        """Tell who holds a token.

        Every entry is compared, each in the same time whatever it holds.

        Returns:
            The holder.

        Raises:
            Unauthenticated: nobody, or not any more.
        """
        if token is None:
            raise Unauthenticated("this call needs a token: `authorization: Bearer TOKEN`")
        digest = digest_of(token).encode()
        found: _Entry | None = None
        for entry in self._entries:
            if hmac.compare_digest(entry.sha256, digest):
                found = entry
        if found is None:
            raise Unauthenticated("the token is not known")
        if found.expires is not None and now >= found.expires:
            raise Unauthenticated("the token has expired", reason="TOKEN_EXPIRED")
        return found.identity


def _entry(name: str, table: TokenTable) -> _Entry:
    identity = Identity(
        name=name,
        models=None if table.models is None else frozenset(table.models),
        classes=None if table.classes is None else frozenset(table.classes),
        is_admin=table.admin,
        shares_cache=table.shared_cache,
        requests_per_minute=table.requests_per_minute,
        requests_max=table.requests_max,
    )
    return _Entry(table.sha256.encode(), identity, table.expires)


def check_call(identity: Identity, call: str) -> None:
    """Look whether somebody may make a call at all; one that is not known here is an admin's.

    Raises:
        PermissionDenied: names the call.
    """
    if call not in ANY_HOLDER and not identity.is_admin:
        raise PermissionDenied(
            f"the token {identity.name!r} does not allow {call}, which takes an admin's",
            facts={"token": identity.name, "call": call},
        )


def check_use(identity: Identity, model: str, priority: Priority | None = None) -> None:
    """Look whether somebody may use a model, and ask for a class.

    The answer is the same for a model that there is and for one that there is not.

    Raises:
        PermissionDenied: names the model or the class.
    """
    if model and not may_use(identity, model):
        raise PermissionDenied(
            f"the token {identity.name!r} does not allow the model {model!r}",
            facts={"token": identity.name, "model": model},
        )
    if priority is None or identity.classes is None:
        return
    if (asked := priority.name.lower()) not in identity.classes:
        raise PermissionDenied(
            f"the token {identity.name!r} does not allow the class {asked}",
            facts={"token": identity.name, "class": asked},
        )


def may_use(identity: Identity, model: str) -> bool:
    """Whether somebody may use a model, and so be told of it."""
    return identity.models is None or model in identity.models


def may_end(identity: Identity, owner: str) -> bool:
    """Whether somebody may end a request of ``owner``, a name."""
    return identity.is_admin or identity.name == owner


def salt(identity: Identity, asked: str) -> str:
    """Say under which salt a request of somebody is cached."""
    # A holder's is NAME/..., whatever was asked: to be told by its speed that others have sent
    # the same prompt would be to read it. Those that share have the cache in common with the
    # node's own users where they name no salt, and else /..., which is no holder's.
    if not identity.name or (identity.shares_cache and not asked):
        return asked
    return f"/{asked}" if identity.shares_cache else f"{identity.name}/{asked}"
