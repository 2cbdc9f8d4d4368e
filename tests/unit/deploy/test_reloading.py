"""What a reload says has changed, and what it refuses."""

from pathlib import Path

import pytest

from bramley.common.errors import SettingsError
from bramley.deploy.reloading import changed_keys, refuse_fixed
from bramley.deploy.settings import ClusterSettings, load

TOML = '[models.a]\npath = "a"\n[models.b]\npath = "b"\n'


def _load(folder: Path, toml: str) -> ClusterSettings:
    file = folder / "cluster.toml"
    file.write_text(toml)
    return load(file, [], folder / "state")


@pytest.mark.parametrize(
    ("toml", "changed"),
    [
        (TOML, []),
        ("# a word\n" + TOML, []),
        (
            TOML.replace('"b"', '"b"\nmax_rows = 3\npinned = true'),
            "models.b.max_rows models.b.pinned",
        ),
        (TOML.replace("models.b", "models.c"), "models.b models.c"),
        (TOML + "replicas = 2\nload = 'demand'", "models.b.load models.b.replicas"),
        (TOML + "[router.classes.bulk]\nqueue_max = 7", "router.classes.bulk.queue_max"),
        (TOML + "[router.running_max]\na = 7", "router.running_max.a"),
        (
            TOML + "[router]\nmemory_bytes = 5\nhang_timeout_s = 5",
            "router.hang_timeout_s router.memory_bytes",
        ),
        (TOML + "[node]\nstop_timeout_s = 5", "node.stop_timeout_s"),
    ],
)
def test_what_differs_is_named_and_taken(
    tmp_path: Path, toml: str, changed: str | list[str]
) -> None:
    keys = changed_keys(_load(tmp_path, TOML), _load(tmp_path, toml))
    assert keys == (changed.split() if isinstance(changed, str) else changed)
    refuse_fixed(keys)


def test_what_only_a_restart_can_change_is_refused_with_all_its_keys(tmp_path: Path) -> None:
    new = TOML + (
        '[router]\ngrpc = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nbacklog_bytes = 9\n'
        "vllm_metrics = true\n[router.traces]\nsample = 0.5\n"
        '[node]\nworker_command = ["w"]\nrouter_command = ["r"]\nstore_command = ["s"]\n'
        "[store]\nenabled = false\nram_bytes = 7\n"
    )
    with pytest.raises(SettingsError) as raised:
        refuse_fixed(changed_keys(_load(tmp_path, TOML), _load(tmp_path, new)))
    assert raised.value.key.split(", ") == [
        *("node.router_command", "node.store_command", "node.worker_command"),
        *("router.grpc", "router.http", "router.traces.sample", "router.vllm_metrics"),
        *("store.enabled", "store.ram_bytes"),
    ]
