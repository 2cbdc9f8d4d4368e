"""What guards a router's addresses: its certificate and its tokens, as the settings name them."""

from pathlib import Path

import msgspec

from bramley.common.tls import Certificates, TlsSettings, check_reach
from bramley.router.access import AuthSettings
from bramley.router.door import TokenTables
from bramley.router.settings import RouterSettings


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings ask for, read and checked.

    Attributes:
        certificates: None where calls come in the clear, on loopback.
        tokens: None where nobody is asked for one.
    """

    certificates: Certificates | None
    tokens: TokenTables | None


def guards_of(settings: RouterSettings) -> Guards:
    """Read what guards a router.

    Returns:
        It.

    Raises:
        SettingsError: a file cannot be used, or an address would be open to the network.
    """
    tokens_file = settings.auth.tokens_file
    addresses = {"router.grpc": settings.grpc, "router.http": settings.http}
    check_reach(addresses, settings.tls, has_auth=bool(tokens_file))
    return Guards(
        certificates=Certificates(settings.tls) if settings.tls.certificate else None,
        tokens=TokenTables(tokens_file) if tokens_file else None,
    )


def guarded(settings: RouterSettings, folder: Path) -> RouterSettings:
    """Complete the settings of a cluster.toml in ``folder``, and look whether its files will do.

    Returns:
        Settings whose paths are absolute.

    Raises:
        SettingsError: as ``guards_of``.
    """

    def absolute(file: str) -> str:
        return str(folder / Path(file).expanduser()) if file else ""

    tls = TlsSettings(
        certificate=absolute(settings.tls.certificate),
        key=absolute(settings.tls.key),
        client_ca=absolute(settings.tls.client_ca),
    )
    auth = AuthSettings(tokens_file=absolute(settings.auth.tokens_file))
    completed = msgspec.structs.replace(settings, tls=tls, auth=auth)
    guards_of(completed)
    return completed
