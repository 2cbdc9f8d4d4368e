"""A missing MLX is one clear sentence, not a traceback."""

import subprocess
import sys


def test_a_worker_without_mlx_says_what_to_install() -> None:
    # The BLAS is loaded first, as load_blas refuses a process that knows of mlx already.
    code = (
        "import sys, runpy; from bramley.worker.models import blas; found = blas.load_blas();"
        "blas.load_blas = lambda: found; sys.modules['mlx.core'] = None;"
        "runpy.run_module('bramley.worker', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "bramley[cpu]" in done.stderr
    assert "Traceback" not in done.stderr
