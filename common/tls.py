"""Which addresses need TLS, and the certificates of a server: read, checked, renewed on the fly.

Unix sockets and loopback need nothing. A server that others can reach shows a certificate, and
asks its clients for one where there is an authority for them. The files are looked at when
somebody connects: a new certificate needs no restart, and a broken one changes nothing.
"""

import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path

import grpc
import msgspec

from bramley.common.errors import SettingsError
from bramley.common.reload import Reloaded

_OTHERS = 0o077


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of a server's certificate, in PEM; a relative path starts at cluster.toml's folder.

    Attributes:
        certificate: the server's, followed by those it was signed with, the authority's left out;
            empty for no TLS.
        key: of the certificate, without a password; for its owner alone (mode 0600).
        client_ca: of the authority that signs clients' certificates: each client shows one;
            empty asks for none.
    """

    certificate: str = ""
    key: str = ""
    client_ca: str = ""


def is_local(address: str) -> bool:
    """Whether only this machine can call ``address``: ``unix:path`` or ``host:port``."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_loopback(key: str, address: str) -> None:
    """Refuse an address beyond loopback, where nothing guards it.

    Raises:
        SettingsError: names the key.
    """
    if address and not is_local(address):
        raise SettingsError(key, f"{address!r} is beyond loopback, where nothing guards it")


def check_reach(addresses: Mapping[str, str], tls: TlsSettings, *, has_auth: bool) -> None:
    """Refuse what would be open to the network.

    Args:
        addresses: where servers listen, by the key of the setting; empty for nowhere.
        tls: of these servers.
        has_auth: whether they ask for a token.

    Raises:
        SettingsError: names the key.
    """
    _check_whole(tls)
    for key, address in addresses.items():
        if not address or is_local(address):
            continue
        if not tls.certificate:
            problem = f"{address!r} is beyond loopback, which needs router.tls.certificate and .key"
            raise SettingsError(key, problem)
        if not (has_auth or tls.client_ca):
            problem = (
                f"{address!r} is beyond loopback and open to everybody: "
                "set router.auth.tokens_file or router.tls.client_ca"
            )
            raise SettingsError(key, problem)


def _check_whole(tls: TlsSettings) -> None:
    for name in ("certificate", "key"):
        if not getattr(tls, name) and any(msgspec.structs.astuple(tls)):
            raise SettingsError(f"router.tls.{name}", "is missing")


class Loaded(msgspec.Struct, frozen=True):
    """What the files hold, after it was checked."""

    configuration: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext


class Certificates:
    """The certificates of a server, as they are now.

    Raises:
        SettingsError: a file cannot be used; names the key.
    """

    def __init__(self, settings: TlsSettings) -> None:
        _check_whole(settings)
        self._asks = bool(settings.client_ca)
        files = [file for file in msgspec.structs.astuple(settings) if file]
        self._loaded = Reloaded(files, lambda: read(settings))

    def credentials(self) -> grpc.ServerCredentials:
        """Make what a gRPC server's secure port takes."""

        def configuration() -> grpc.ServerCertificateConfiguration:
            return self._loaded.now().configuration

        return grpc.dynamic_ssl_server_credentials(configuration(), configuration, self._asks)

    def context(self) -> ssl.SSLContext:
        """Make what an HTTP server takes; each handshake uses the certificates of its time."""

        def renew(handshake: ssl.SSLObject, _name: str | None, _of: ssl.SSLContext) -> None:
            handshake.context = self._loaded.now().context

        first = self._loaded.now().context
        first.sni_callback = renew
        return first


def read(settings: TlsSettings) -> Loaded:
    """Read and check the files.

    Returns:
        What servers take.

    Raises:
        SettingsError: one is missing, not PEM, not of the other's pair, or others may read the
            key.
    """
    certificate, key, client_ca = (
        _read(name, getattr(settings, name)) for name in TlsSettings.__struct_fields__
    )
    if Path(settings.key).stat().st_mode & _OTHERS:
        raise SettingsError("router.tls.key", f"{settings.key} is open to others: chmod 600")
    return Loaded(
        grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca or None),
        _context(settings),
    )


def _read(name: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes() if file else b""
    except OSError as error:
        raise SettingsError(f"router.tls.{name}", f"{file}: {error.strerror}") from error


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.certificate, settings.key, password="")
    except (OSError, ValueError) as error:
        problem = f"{settings.certificate} and {settings.key} are no certificate with its key"
        raise SettingsError("router.tls.certificate", f"{problem} ({_why(error)})") from error
    if settings.client_ca:
        try:
            context.load_verify_locations(settings.client_ca)
        except (OSError, ValueError) as error:
            problem = f"{settings.client_ca} holds no certificate ({_why(error)})"
            raise SettingsError("router.tls.client_ca", problem) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _why(error: Exception) -> str:
    reason: object = getattr(error, "reason", None)  # of an SSLError: in short
    return str(reason or error).lower()
