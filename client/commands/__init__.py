"""The commands of ``bramley``, one group a file; client/cli.py composes them."""
