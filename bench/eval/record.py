"""What a run of tasks leaves: one JSON file with every item's answer and verdict."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from bramley.bench.eval.provenance import Provenance
from bramley.common.errors import InvalidRequest

SCHEMA = 1


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item and how it went. Two runs' records are a pair if all their hashes are equal.

    Attributes:
        prompt_sha256: of all that the model was asked.
        item_sha256: of the item, with what counts as right.
        verdict: "error" where there is no answer to judge.
        found: what was read out of the answer.
        why: the verdict's reason, or the error.
        share: of the item's parts that are right, where it has several.
    """

    task: str
    id: str
    prompt_sha256: str
    item_sha256: str
    verdict: Literal["right", "wrong", "error"]
    why: str
    answer: str = ""
    found: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    share: float | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of one run, or of its tasks so far.

    Attributes:
        is_complete: whether every task was asked that was to be.
    """

    schema: int = SCHEMA
    provenance: Provenance
    records: list[Record]
    is_complete: bool = True

    def of(self, task: str) -> list[Record]:
        """The records of a task, in the order of its items."""
        return [record for record in self.records if record.task == task]

    @property
    def tasks(self) -> list[str]:
        """The tasks, in the order in which they were asked for."""
        return list(dict.fromkeys(record.task for record in self.records))


def digest(value: object) -> str:
    """Hash a value by its JSON, with sorted keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()


def accuracy(records: Iterable[Record]) -> float | None:
    """Share of the judged records that are right; None without any."""
    judged = [record.verdict == "right" for record in records if record.verdict != "error"]
    return sum(judged) / len(judged) if judged else None


def save(run: Run, file: Path) -> None:
    """Write a run; a file that was there is replaced in one move."""
    draft = file.with_name(file.name + ".part")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    os.replace(draft, file)


def load(file: Path) -> Run:
    """Read a run.

    Returns:
        It.

    Raises:
        InvalidRequest: there is none, it is no such file, or of another schema.
    """
    try:
        run = msgspec.json.decode(file.read_bytes(), type=Run)
    except OSError as error:
        raise InvalidRequest(str(file), str(error.strerror)) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(str(file), f"is no run of tasks: {error}") from error
    if run.schema != SCHEMA:
        raise InvalidRequest(str(file), f"is of schema {run.schema} instead of {SCHEMA}")
    return run
