"""The worker process: ``python -m bramley.worker --child JSON --settings FILE.json``."""

import sys

from bramley.common.main import leave
from bramley.worker.models.backend import missing_backend
from bramley.worker.models.blas import load_blas

_BLAS = load_blas()  # before anything imports mlx

if problem := missing_backend():
    sys.exit(problem)

from bramley.worker.app import main  # noqa: E402

leave(main(_BLAS))
