"""The BLAS of the tests' process, loaded as a worker does, before anything imports mlx."""

from bramley.worker.models.blas import load_blas

BLAS = load_blas()  # strict: rows equal bit by bit in any batch
