"""What measured, and on which machine: facts for the record, and a hash of our own sources."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bramley.bench.serve.record import Model, Source

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "cachestore", "client", "common", "deploy", "protos", "router", "worker")
PACKAGES = (
    *("bramley", "mlx", "mlx-metal", "mlx-cpu", "mlx-cuda-13", "mlx-lm", "transformers"),
    *("grpcio", "mkl", "numpy", "tokenizers"),
)
ANSWER_S = 10.0


def facts() -> dict[str, Any]:
    """Tell what of this machine figures depend on."""
    return {
        "cpu": _cpu(),
        "accelerator": _said(
            "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
        ),
        "cores": psutil.cpu_count(logical=False) or 0,
        "threads": _threads(),
        "ram_bytes": psutil.virtual_memory().total,
        "os": platform.platform(),
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
    }


def _threads() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Tell the versions of those packages that are installed."""
    found: dict[str, str] = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def blas() -> str:
    """Tell which BLAS our workers find here."""
    program = "from bramley.worker.models.blas import load_blas; print(load_blas().name)"
    return _said(sys.executable, "-P", "-c", program)


def source() -> Source:
    """Hash all sources that run, and tell which commit they are."""
    commit = _said("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changed = _said("git", "-C", str(ROOT), "status", "--porcelain", "--", *FOLDERS)
    return Source(start=hash_of(ROOT), commit=commit, is_clean=bool(commit) and not changed)


def hash_of(root: Path) -> str:
    """Hash names and content of what is ours below a folder: Python and protos."""
    made = hashlib.sha256()
    files = (file for folder in FOLDERS for file in (root / folder).rglob("*"))
    for file in sorted(file for file in files if file.suffix in {".py", ".proto"}):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        made.update(f"{file.relative_to(root).as_posix()}\0{content}\n".encode())
    return made.hexdigest()


def model(name: str, folder: Path | None) -> Model:
    """Say which model is served; of one elsewhere the name alone is known."""
    if folder is None:
        return Model(name=name)
    config = (folder / "config.json").read_bytes()
    return Model(name=name, path=str(folder), config_sha256=hashlib.sha256(config).hexdigest())


def _cpu() -> str:
    if sys.platform == "darwin":
        return _said("sysctl", "-n", "machdep.cpu.brand_string")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _said(*command: str) -> str:
    """What a command prints; nothing of one that fails, or is not there."""
    try:
        ended = subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=ANSWER_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.strip()
