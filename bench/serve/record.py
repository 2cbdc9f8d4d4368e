"""What a run of the serving benchmark leaves: one JSON file of raw facts, without any judgement.

All times ``*_s`` of requests and events are seconds on one clock, which starts with the run.
Unknown fields are refused: they are of another schema, or a slip of the pen.
"""

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from bramley.common.errors import InvalidRequest

SCHEMA = 1
Mode = Literal["measurement", "diagnostic"]
LEFT = "left"  # ``Request.finish`` of an answer that was not read on


class Event(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tokens that came together: how many, and when."""

    at_s: float
    tokens: int


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request and how it went. Two arms' requests are a pair if their ``sha256`` are equal.

    Attributes:
        phase: which asked it.
        attempt: of the phase; 2 where it was tried again, with other nonces.
        index: within phase and attempt, over all of an arm's turns.
        sha256: of what was asked, without the model's name and the server's dialect.
        turn: 0 or 1; which of the arm's two turns (A of ``A B B A``).
        text: of the answer.
        cached_tokens: of the prompt, by tier; a server that does not tell tiers has them as
            "any", and None is of one that tells nothing.
        counted_by: who counted the answer's tokens: the server's "ids" in each event, its
            "usage" at the end, or nobody: "events", one each.
        finish: the server's own word, or LEFT, or None if the answer did not end well.
        error: why it did not, in the server's words or the client's.
        retries: how often the same request was refused before this.
    """

    phase: str
    attempt: int
    index: int
    sha256: str
    turn: int = 0
    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: dict[str, int] | None = None
    counted_by: Literal["ids", "usage", "events"] = "events"
    finish: str | None = None
    sent_s: float
    events: list[Event] = []
    ended_s: float
    error: str | None = None
    retries: int = 0


class Sample(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One value of a metric, and the requests (places in ``Arm.requests``) that it rests on."""

    metric: str
    unit: str
    value: float
    turn: int = 0
    requests: list[int] = []


class Failure(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An attempt at a phase that failed; the requests it asked are kept."""

    phase: str
    attempt: int
    turn: int = 0
    error: str
    is_final: bool


class Arm(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One server under measurement.

    Attributes:
        kind: as on the command line, without an address.
        command: that started it; empty for one that ran already.
        versions: of what it runs on, by package.
        blas: which the server has, where that is known.
        settings: that differ from its defaults.
        not_applicable: phases that it cannot do and metrics that it does not tell, each with the
            reason.
        stability: how far its decode samples are apart, largest over smallest; None without any.
        others: share of the machine that other processes had in each turn, 0 to 1; none where its
            own processes are not known.
    """

    name: str
    kind: str
    command: list[str]
    versions: dict[str, str]
    blas: str = ""
    settings: dict[str, Any] = {}
    requests: list[Request] = []
    samples: list[Sample] = []
    failures: list[Failure] = []
    not_applicable: dict[str, str] = {}
    stability: float | None = None
    others: list[float] = []


class Check(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One condition of the machine before a measurement, and whether it was met."""

    name: str
    value: float | str | None
    limit: str
    is_met: bool


class Preflight(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the machine was like at the start."""

    checks: list[Check] = []

    @property
    def is_clear(self) -> bool:
        """Whether nothing stands against measuring."""
        return all(check.is_met for check in self.checks)


class Source(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The program that measured: hash of its sources at the start and at the end.

    Attributes:
        commit: of the repository; empty without one.
        is_clean: whether the sources are the commit's.
        end: empty until the run ends.
    """

    start: str
    end: str = ""
    commit: str = ""
    is_clean: bool = False

    @property
    def is_same(self) -> bool:
        """Whether nothing changed while the run went on."""
        return self.start == self.end


class Model(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was served; empty where only somebody else knows it."""

    name: str
    path: str = ""
    config_sha256: str = ""


class Run(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All of one run, of one seed.

    Attributes:
        schema: of this file.
        started: RFC 3339.
        mode: "diagnostic" where the machine was not fit for measuring, or nobody asked whether.
        command: that measured.
        machine: key to fact: cpu, cores, ram_bytes, os, python, and versions of packages.
        source: that measured.
        workload: its sizes.
        order: names of arms in the order of their turns.
        asked: what was asked of any arm, by its ``sha256``.
        shared_tokens: that two prompts of different beginnings have in common at most: so many
            may be cached of one that is new; None where that is not known.
        is_complete: whether it came to its end.
    """

    schema: int = SCHEMA
    id: str
    seed: int
    started: str
    command: list[str] = []
    mode: Mode
    preflight: Preflight
    machine: dict[str, Any]
    source: Source
    model: Model
    workload: dict[str, Any]
    order: list[str]
    arms: list[Arm] = []
    asked: dict[str, dict[str, Any]] = {}
    shared_tokens: int | None = None
    is_complete: bool = False


def save(run: Run, path: Path) -> None:
    """Write a run; a file that was there is replaced in one move."""
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    os.replace(draft, path)


def load(path: Path) -> Run:
    """Read a run.

    Returns:
        It.

    Raises:
        InvalidRequest: the file is no run, or one of another schema.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    try:
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema != SCHEMA:
            raise InvalidRequest(str(path), f"has schema {schema}, and not {SCHEMA}")
        run = msgspec.json.decode(content, type=Run)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(str(path), f"is no run of the benchmark: {error}") from error
    for arm in run.arms:
        places = range(len(arm.requests))
        for sample in arm.samples:
            if not all(place in places for place in sample.requests):
                problem = f"{arm.name}'s {sample.metric} rests on a request that is not there"
                raise InvalidRequest(str(path), problem)
    return run


class _Schema(msgspec.Struct):
    schema: int
