"""Whether MLX can run here at all; to be asked before anything else imports it."""

import importlib

_ADVICE = (
    "MLX cannot be loaded ({problem}): on Linux install bramley[cpu] or bramley[cuda], on a Mac "
    "a Python for arm64"
)


def missing_backend() -> str:
    """Return what to do about a missing MLX in one sentence; empty if it is there."""
    try:
        importlib.import_module("mlx.core")
    except ImportError as error:
        return _ADVICE.format(problem=" ".join(str(error).split())[:200])
    return ""
