"""Certificates for tests: an authority, a server's files, a client's."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme

from bramley.common.tls import TlsSettings


@dataclass
class Issued:
    """PEM files of one certificate."""

    certificate: str
    key: str

    def replace(self, *, certificate: str = "", key: str = "") -> None:
        """Move a file of it over another's."""
        if certificate:
            Path(self.certificate).replace(certificate)
        if key:
            Path(self.key).replace(key)


class Authority:
    """Signs certificates, and writes them to a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._ca = trustme.CA(organization_name=name)
        self.file = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *hosts: str) -> Issued:
        """Write a certificate of these hosts and its key, over older ones of that name."""
        leaf = self._ca.issue_cert(*(hosts or ("localhost", "127.0.0.1")))
        issued = Issued(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        Path(issued.certificate).write_bytes(
            b"".join(each.bytes() for each in leaf.cert_chain_pems)
        )
        Path(issued.key).write_bytes(leaf.private_key_pem.bytes())
        Path(issued.key).chmod(0o600)
        return issued

    def channel(self, client: Issued | None = None) -> grpc.ChannelCredentials:
        """Make what a client takes that trusts this authority, and is ``client``."""
        return grpc.ssl_channel_credentials(
            Path(self.file).read_bytes(),
            Path(client.key).read_bytes() if client else None,
            Path(client.certificate).read_bytes() if client else None,
        )

    def server(self, client_ca: str = "", *hosts: str) -> TlsSettings:
        """Write a server's certificate, and answer with the settings that name it."""
        issued = self.issue("server", *hosts)
        return TlsSettings(certificate=issued.certificate, key=issued.key, client_ca=client_ca)
