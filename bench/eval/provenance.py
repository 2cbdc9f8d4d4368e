"""Where an evaluation's figures come from: programs, machine, models, files and settings."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import msgspec

from bramley.bench.eval.lines import file_sha256

_PACKAGES = ("bramley", "mlx", "mlx-lm", "transformers", "numpy")


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model; the fields that somebody else alone knows are empty.

    Attributes:
        weights: name and size of each weight file.
    """

    name: str = ""
    path: str = ""
    revision: str = ""
    config_sha256: str = ""
    weights: dict[str, int] = {}

    @classmethod
    def of(cls, path: Path | None, name: str = "", revision: str = "") -> Self:
        """Look at a model's folder, or its GGUF file, where that is known."""
        if path is None:
            return cls(name=name, revision=revision)
        config = path / "config.json"
        weights = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        return cls(
            name=name,
            path=str(path.resolve()),
            revision=revision,
            config_sha256=file_sha256(config) if config.is_file() else "",
            weights={file.name: file.stat().st_size for file in weights if file.is_file()},
        )


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        started: RFC 3339.
        machine: key to fact.
        files: SHA-256 of each file of data, by what it is.
    """

    started: str
    versions: dict[str, str]
    machine: dict[str, str]
    models: dict[str, Model]
    files: dict[str, str]
    settings: dict[str, Any]


def describe(
    models: Mapping[str, Model], files: Mapping[str, Path], settings: Mapping[str, Any]
) -> Provenance:
    """Look around, now."""
    return Provenance(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: version for name in _PACKAGES if (version := _version(name))},
        machine={
            "os": platform.platform(),
            "processor": platform.machine(),
            "cores": str(os.cpu_count()),
            "python": platform.python_version(),
        },
        models=dict(models),
        files={name: file_sha256(file) for name, file in files.items()},
        settings=dict(settings),
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
