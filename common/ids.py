"""Names for the kinds of id, so that one is never passed for another."""

from typing import NewType

RequestId = NewType("RequestId", str)
ModelName = NewType("ModelName", str)
WorkerName = NewType("WorkerName", str)


def worker_name(model: ModelName, number: int) -> WorkerName:
    """Name one of a model's workers, counted from 1: the first has the model's own name."""
    return WorkerName(model if number == 1 else f"{model}@{number}")


def model_of(worker: str) -> ModelName:
    """Tell which model a worker of that name serves; no model's name has an ``@``."""
    return ModelName(worker.partition("@")[0])
