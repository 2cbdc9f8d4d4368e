"""A worker whose engine hangs in the prefill of a prompt that has the token HANGS."""

import time
from collections.abc import Sequence

from bramley.common.main import leave
from bramley.worker.models.blas import load_blas

HANGS = 251  # a byte that no text has

_BLAS = load_blas()

from bramley.worker.app import main  # noqa: E402
from bramley.worker.engine.cohort import Cohort  # noqa: E402
from bramley.worker.engine.executor import Executor  # noqa: E402
from bramley.worker.request import Request  # noqa: E402

_prefill = Executor.prefill


def _hang(
    self: Executor, cohort: Cohort, requests: Sequence[Request], tokens: Sequence[int]
) -> None:
    if any(HANGS in request.prompt for request in requests):
        time.sleep(3600.0)
    _prefill(self, cohort, requests, tokens)


if __name__ == "__main__":
    Executor.prefill = _hang
    leave(main(_BLAS))
