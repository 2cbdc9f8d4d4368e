"""Builds runs of the serving benchmark, as the record keeps them, without running anything."""

from collections.abc import Callable, Sequence
from typing import Any

from bramley.bench.serve.record import (
    Arm,
    Check,
    Event,
    Failure,
    Model,
    Preflight,
    Request,
    Run,
    Sample,
    Source,
)

OURS, PEER = "bramley", "mlx_lm.server"


def request(phase: str, index: int, **told: Any) -> Request:
    """One that went well: ten tokens in answer, one each 20 ms, a second after it was sent."""
    sent_s = told.pop("sent_s", float(index))
    step_s = told.pop("step_s", 0.02)
    fields: dict[str, Any] = {
        "attempt": 1,
        "sha256": f"{phase}-{index}".encode().hex().ljust(64, "0"),
        "text": f"The answer to {phase} {index}.",
        "prompt_tokens": 600,
        "completion_tokens": 10,
        "cached_tokens": {"any": 0},
        "counted_by": "ids",
        "finish": "length",
        "events": [Event(at_s=sent_s + 1.0 + step_s * at, tokens=1) for at in range(10)],
        "ended_s": sent_s + 2.0,
    }
    return Request(phase=phase, index=index, sent_s=sent_s, **(fields | told))


class ArmBuilder:
    """Gathers samples, each with a request of its own."""

    def __init__(self, name: str = OURS, kind: str = "", **facts: Any) -> None:
        fields: dict[str, Any] = {
            "command": ["serve", name],
            "versions": {name: "1.0"},
            "blas": "mkl",
        }
        self.arm = Arm(name=name, kind=kind or name, **(fields | facts))

    def add(self, phase: str, metric: str, unit: str, *values: float, **told: Any) -> "ArmBuilder":
        """Add a phase of one request and one sample for each value."""
        turn = told.get("turn", 0)
        first = sum(each.phase == phase for each in self.arm.requests)
        for index, value in enumerate(values, first):
            self.arm.requests.append(request(phase, index, **told))
            place = len(self.arm.requests) - 1
            self.arm.samples.append(
                Sample(metric=metric, unit=unit, value=value, turn=turn, requests=[place])
            )
        return self

    def also(
        self, metric: str, unit: str, *values: float, rests: Sequence[int] = ()
    ) -> "ArmBuilder":
        """Add samples of requests that are there, or of none."""
        for value in values:
            self.arm.samples.append(
                Sample(metric=metric, unit=unit, value=value, requests=list(rests))
            )
        return self

    def fail(self, phase: str, error: str, *, is_final: bool = True) -> "ArmBuilder":
        """Add a phase that failed."""
        self.arm.failures.append(Failure(phase=phase, attempt=1, error=error, is_final=is_final))
        return self


def run(*arms: ArmBuilder, seed: int = 1, **facts: Any) -> Run:
    """One whole run."""
    fields: dict[str, Any] = {
        "id": f"run-{seed}",
        "started": f"2026-09-{seed:02}T12:00:00Z",
        "mode": "measurement",
        "preflight": Preflight(
            checks=[Check(name="load", value=0.5, limit="<= 8", is_met=True)],
        ),
        "machine": {
            "cpu": "Example 9000",
            "cores": 2,
            "threads": 4,
            "ram_bytes": 1 << 34,
            "os": "Linux",
            "packages": {"mlx": "1.0", "mlx-cpu": "1.0"},
        },
        "source": Source(start="5" * 64, end="5" * 64, commit="c" * 40, is_clean=True),
        "model": Model(name="tiny", path="/home/someone/models/tiny", config_sha256="f" * 64),
        "workload": {"decode_tokens": 192},
        "order": [each.arm.name for each in arms],
        "arms": [each.arm for each in arms],
        "is_complete": True,
    }
    return Run(seed=seed, **(fields | facts))


def changed(change: Callable[[Request], None], made: Run, arm: str = PEER) -> Run:
    """Alter every request of an arm."""
    for each in made.arms:
        if each.name == arm:
            for one in each.requests:
                change(one)
    return made
