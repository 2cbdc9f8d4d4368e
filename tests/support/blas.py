"""The BLAS of the tests' process: loaded as a worker does, before anything imports mlx."""

import subprocess
import sys

from bramley.worker.models.blas import REFERENCE, load_blas

_ASK = "from bramley.worker.models.blas import load_blas; print(load_blas().batch_invariant)"


def _has_strict_mode() -> bool:
    """Ask elsewhere: a BLAS that is loaded cannot be unloaded."""
    asked = subprocess.run([sys.executable, "-P", "-c", _ASK], check=True, stdout=subprocess.PIPE)
    return asked.stdout.split()[-1] == b"True"


# Rows equal bit by bit in any batch; on an AMD processor by MLX's own BLAS alone, which is slow.
BLAS = load_blas() if sys.platform != "linux" or _has_strict_mode() else REFERENCE
