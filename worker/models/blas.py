"""Puts a real BLAS under MLX's CPU backend; to be called before mlx is imported.

MLX's Linux wheel carries a reference BLAS. A library with the same symbols that is already
loaded for all to see takes its place: the linker finds it first. MKL is asked for products
whose rows do not depend on how many rows there are ("strict"), as batches must equal singles.
"""

import ctypes
import ctypes.util
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# MKL's own numbers. Strict exists for AVX2 and AVX-512 only: with an older branch MKL takes
# the flag without an error, and rows differ all the same.
_CBWR_STRICT = 0x10000
# With each, how many terms it adds up in one run (measured): sums of more terms are cut into such
# runs, but sums of up to two of them into halves, so that their bits depend on their length.
_STRICT_BRANCHES = (("avx512", 12 | _CBWR_STRICT, 384), ("avx2", 10 | _CBWR_STRICT, 192))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blas:
    """What multiplies matrices on the CPU.

    Attributes:
        name: for logs and Info; part of what makes results comparable bit by bit.
        batch_invariant: whether a row of a product is the same bits in a batch of any size.
        warning: what the operator should know, or empty.
        sum_panel: a sum of n terms and zeros behind them is the same bits however many the zeros,
            if it has up to so many terms in all, or at least twice as many; 0 if it always is.
    """

    name: str
    batch_invariant: bool
    sum_panel: int = 0
    warning: str = ""


def load_blas(*, strict: bool = True) -> Blas:
    """Load the best BLAS of this machine for the whole process.

    Args:
        strict: ask MKL for batch-invariant products; about half as fast for a single row.

    Returns:
        What was found, and how far it can be relied on.

    Raises:
        RuntimeError: mlx was imported before; nothing could replace its BLAS any more.
    """
    if "mlx.core" in sys.modules:
        raise RuntimeError("load_blas must run before mlx is imported")
    if sys.platform != "linux":
        return Blas(name="the platform's own", batch_invariant=False)
    return _load_mkl(strict) or _load_openblas() or REFERENCE


def forget_blas() -> None:
    """Remove what the BLAS's threads left for other processes to see; last act of a process."""
    left = Path(f"/dev/shm/__KMP_REGISTERED_LIB_{os.getpid()}_{os.getuid()}")  # noqa: S108
    left.unlink(missing_ok=True)


REFERENCE = Blas(
    name="mlx reference BLAS",
    batch_invariant=True,
    warning="no fast BLAS was found, so the CPU computes 10 to 35 times slower: "
    "install the mkl package or OpenBLAS",
)


def _load_mkl(strict: bool) -> Blas | None:
    path = _mkl_path()
    library = _open(path) if path else None
    if library is None:
        return None
    name = f"mkl {metadata.version('mkl')}"
    if not strict:
        return Blas(name=name, batch_invariant=False)
    for branch, number, panel in _STRICT_BRANCHES:
        if library.MKL_CBWR_Set(number) == 0:  # it refuses what the processor lacks
            return Blas(name=f"{name} strict {branch}", batch_invariant=True, sum_panel=panel)
    return Blas(
        name=name,
        batch_invariant=False,
        warning="this processor has no strict mode in MKL: "
        "a request's last bits depend on what else is in its batch",
    )


def _mkl_path() -> str | None:
    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        return None
    paths = [file.locate() for file in files if file.name.startswith("libmkl_rt.so")]
    return str(Path(str(paths[0])).resolve()) if paths else None


def _load_openblas() -> Blas | None:
    path = ctypes.util.find_library("openblas")
    if path is None or _open(path) is None:
        return None
    return Blas(name="openblas", batch_invariant=False)


def _open(path: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    except OSError:
        return None
