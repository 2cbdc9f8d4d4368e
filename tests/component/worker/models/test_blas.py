"""The BLAS under MLX, each time in a process of its own."""

import json
import subprocess
import sys

import pytest

from support.blas import BLAS

PROBE = """
import json, sys, time
from bramley.worker.models.blas import load_blas
blas = load_blas() if sys.argv[1] == "ours" else None
import mlx.core as mx
import numpy as np
a = mx.random.normal((512, 576))
unequal = []
for outputs in (192, 1536, 4096) if sys.argv[2] == "rows" else ():
    b = mx.random.normal((outputs, 576))
    rows = {n: np.array(mx.contiguous(a[:n]) @ b.T) for n in (1, 2, 3, 4, 8, 64, 512)}
    unequal += [(outputs, n) for n, some in rows.items() if not (some == rows[512][:n]).all()]
times = []
if sys.argv[2] == "time":
    b = mx.random.normal((1536, 576))
    mx.eval(a, b, a @ b.T)
    for _ in range(3):
        start = time.perf_counter()
        mx.eval(a @ b.T)
        times.append(time.perf_counter() - start)
print(json.dumps({
    "name": blas.name if blas else "", "warning": blas.warning if blas else "",
    "invariant": blas.batch_invariant if blas else True,
    "unequal": unequal, "product_s": min(times, default=0.0),
}))
"""


def probe(which: str, what: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, which, what], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems have their own")
strict_only = pytest.mark.skipif(
    "strict" not in BLAS.name, reason="this processor has no strict mode in MKL"
)


@strict_only
@linux_only
def test_rows_of_a_product_are_the_same_bits_in_batches_of_any_size() -> None:
    found = probe("ours", "rows")
    assert found["invariant"], found["name"]
    assert found["unequal"] == []


@strict_only
@linux_only
def test_products_become_several_times_faster() -> None:
    ours, reference = probe("ours", "time"), probe("reference", "time")
    assert ours["warning"] == ""
    assert float(str(ours["product_s"])) * 5 < float(str(reference["product_s"]))


def test_loading_it_after_mlx_is_refused() -> None:
    code = "import mlx.core\nfrom bramley.worker.models.blas import load_blas\nload_blas()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "before mlx is imported" in done.stderr
