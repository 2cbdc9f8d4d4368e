"""Which model `bramley inventory` and `bramley fit` mean, and sizes as people write them."""

from pathlib import Path

import pytest

from bramley.client.commands.fit import bytes_of
from bramley.client.commands.survey import Cluster, cluster_in, settings_of
from bramley.common.errors import InvalidRequest

CLUSTER = Cluster(models={"llama": {"path": "/models/llama", "max_rows": 4}})


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        ("0", 0),
        ("1000", 1000),
        ("7B", 7),
        ("2KiB", 2048),
        ("800MiB", 800 << 20),
        ("1.5 GiB", 3 << 29),
        (" 2TiB ", 2 << 40),
    ],
)
def test_a_size_is_bytes_or_has_a_unit(size: str, nbytes: int) -> None:
    assert bytes_of(size) == nbytes


@pytest.mark.parametrize("size", ["", "GiB", "-1", "1GB", "1 2", "1e9", "0x10", "1.GiB", "inf"])
def test_what_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(InvalidRequest, match="--budget"):
        bytes_of(size)


def test_a_path_that_is_there_goes_before_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings_of("llama", tmp_path, CLUSTER) == {"path": "/models/llama", "max_rows": 4}
    (tmp_path / "llama").mkdir()
    found = settings_of("llama", tmp_path, CLUSTER)
    assert found == {"path": str(tmp_path / "llama"), "import_dir": str(tmp_path / "models")}


def test_a_model_that_is_nowhere_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nor a model of the cluster"):
        settings_of("qwen", tmp_path, CLUSTER)
    assert cluster_in(tmp_path) is None
    with pytest.raises(InvalidRequest, match="no cluster runs"):
        settings_of("llama", tmp_path, None)
