"""Runs ``mlx_lm.server`` on the BLAS that our workers have; its arguments are its own."""

from bramley.worker.models.blas import load_blas

load_blas()  # before anything imports mlx

from mlx_lm.server import main  # noqa: E402

main()
