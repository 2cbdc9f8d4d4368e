"""``bramley up`` refuses at once what would be open to the network, and files that will not do."""

from pathlib import Path

import pytest

from bramley.common.errors import SettingsError
from bramley.deploy.settings import ClusterSettings, load
from support.certificates import Authority

TLS = "certificate='server.pem'\nkey='server.key'"
AUTH = "[router.auth]\ntokens_file='tokens.toml'"


def guards(folder: Path) -> None:
    """Write what TLS and AUTH name."""
    Authority(folder).server()
    (folder / "tokens.toml").write_text("")
    (folder / "tokens.toml").chmod(0o600)


def load_text(folder: Path, toml: str) -> ClusterSettings:
    file = folder / "cluster.toml"
    file.write_text(toml)
    return load(file, (), folder / "state")


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("router.grpc", ["[router]", "grpc='0.0.0.0:1'"]),
        ("router.http", ["[router]", "http='0.0.0.0:1'"]),
        ("router.grpc", ["[router]", "grpc='0.0.0.0:1'", "[router.tls]", "{tls}"]),
        ("store.http", ["[store]", "http='0.0.0.0:1'", "[router.tls]", "{tls}", "{auth}"]),
        ("router.tls.certificate", ["[router.tls]", "certificate='x.pem'", "key='x.key'"]),
        ("router.auth.tokens_file", ["[router.auth]", "tokens_file='none.toml'"]),
    ],
)
def test_an_endpoint_that_is_open_to_the_network_is_refused_at_once(
    tmp_path: Path, key: str, lines: list[str]
) -> None:
    guards(tmp_path)
    known = {"tls": TLS, "auth": AUTH}
    text = "\n".join(line.format(**known) for line in [*lines, "[models.a]", "path='m'"])
    with pytest.raises(SettingsError) as refused:
        load_text(tmp_path, text)
    assert refused.value.key == key


def test_files_of_certificates_and_tokens_start_at_the_folder_of_cluster_toml(
    tmp_path: Path,
) -> None:
    guards(tmp_path)
    text = f"[router]\ngrpc='0.0.0.0:1'\nhttp='[::]:2'\n[router.tls]\n{TLS}\n{AUTH}\n"
    router = load_text(tmp_path, f"{text}[models.a]\npath='m'\n").router
    assert router.tls.certificate == str(tmp_path / "server.pem")
    assert router.tls.key == str(tmp_path / "server.key")
    assert router.tls.client_ca == ""
    assert router.auth.tokens_file == str(tmp_path / "tokens.toml")
