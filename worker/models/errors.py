"""The one error of this folder."""


class ModelError(Exception):
    """A model folder or file cannot be served; says in one sentence which and why."""
