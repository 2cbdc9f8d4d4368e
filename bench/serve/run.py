"""Goes through a whole run: arms in turns (``A B B A``), every phase in each, saved as it goes."""

import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bramley.bench.cluster import Failed
from bramley.bench.serve import arithmetic, arms, dialects, head, machine, phases
from bramley.bench.serve.arms import Server
from bramley.bench.serve.memory import MemoryWatch, Used
from bramley.bench.serve.record import Arm, Check, Failure, Mode, Preflight, Run, save
from bramley.bench.serve.turn import Turn
from bramley.bench.serve.workload import Count, Sizes, Workload
from bramley.common.errors import BramleyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, and how much.

    Attributes:
        name: of the model.
        model: its folder; None where all servers are somebody else's.
        kinds: of the servers.
        phases: by name.
        counted_by: how prompts' tokens are counted, in words.
        timeout_s: of an answer.
        command: that is obeyed.
    """

    name: str
    model: Path | None
    kinds: Sequence[str]
    phases: Sequence[str]
    sizes: Sizes
    count: Count
    counted_by: str
    timeout_s: float
    command: Sequence[str] = ()


class Progress:
    """Lines on stderr that say where a run is."""

    def __init__(self, turns: int) -> None:
        self._turns, self._turn, self._name = turns, 0, ""

    def turn(self, name: str) -> None:
        """Begin an arm's turn."""
        self._turn += 1
        self._name = name

    def phase(self, name: str, took_s: float, told: str) -> None:
        """Tell that a phase is over."""
        where = f"{self._turn}/{self._turns} {self._name}"
        print(f"{where}: {name} {took_s:.1f} s {told}".rstrip(), file=sys.stderr, flush=True)


def order(kinds: Sequence[str]) -> list[int]:
    """Order arms so that each has an early turn and a late one: ``A B B A``."""
    places = list(range(len(kinds)))
    return [*places, *reversed(places)]


def measure(plan: Plan, seed: int, checks: list[Check], out: Path, *, diagnostic: bool) -> Run:
    """Measure everything of one seed; the file is written after each turn.

    Returns:
        The record.
    """
    servers = [arms.make(kind, plan.model, plan.timeout_s) for kind in plan.kinds]
    arms.name_apart(servers)
    run = _begin(plan, seed, checks, servers, diagnostic=diagnostic)
    run.arms = [_arm(server) for server in servers]
    workload = Workload(seed, plan.sizes, plan.count)
    now, places = dialects.clock(), order(plan.kinds)
    run.order = [servers[place].name for place in places]
    progress, had = Progress(len(places)), [0] * len(servers)
    for place in places:
        turn = Turn(servers[place], run.arms[place], workload, now, had[place])
        had[place] += 1
        progress.turn(turn.arm.name)
        try:
            _take(turn, plan.phases, progress)
        finally:  # an interruption leaves what there is
            run.asked = _asked(run, workload)
            save(run, out)
    if plan.model is not None:
        run.shared_tokens = head.shared_tokens(plan.model, run.asked.values())
    run.source.end = machine.hash_of(machine.ROOT)
    run.is_complete = True
    save(run, out)
    return run


def _begin(
    plan: Plan, seed: int, checks: list[Check], servers: Sequence[Server], *, diagnostic: bool
) -> Run:
    mode: Mode = "diagnostic" if diagnostic else "measurement"
    return Run(
        id=secrets.token_hex(8),
        seed=seed,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(plan.command),
        mode=mode,
        preflight=Preflight(checks=checks),
        machine=machine.facts(),
        source=machine.source(),
        model=machine.model(plan.name, plan.model if any(s.is_ours for s in servers) else None),
        workload={
            **msgspec.to_builtins(plan.sizes),
            "phases": list(plan.phases),
            "counted_by": plan.counted_by,
            "timeout_s": plan.timeout_s,
        },
        order=[],
    )


def _asked(run: Run, workload: Workload) -> dict[str, dict[str, Any]]:
    hashes = {request.sha256 for arm in run.arms for request in arm.requests}
    return {sha256: told for sha256, told in list(workload.made.items()) if sha256 in hashes}


def _arm(server: Server) -> Arm:
    blas = ""
    if server.is_ours:
        blas = "as installed" if server.kind == arms.PEER_AS_INSTALLED else machine.blas()
    return Arm(
        name=server.name,
        kind=server.kind,
        command=[],
        versions=machine.versions(server.packages),
        blas=blas,
        settings=server.settings,
    )


def _take(turn: Turn, names: Sequence[str], progress: Progress) -> None:
    """Start a server, go through all phases, and stop it, whatever happens."""
    arm, server = turn.arm, turn.server
    started_s, busy = turn.now(), Busy()
    try:
        try:
            server.start()
        finally:
            arm.command, arm.settings = server.command, server.settings
        turn.ready_s = turn.now() - started_s if server.is_ours else None
        watch = MemoryWatch(server.memory)
        try:
            _note_idle(turn, watch.mark())
            for name in names:
                _phase(turn, name, watch, progress)
        finally:
            most = watch.end()
        _note_peak(turn, most, busy)
    except (Failed, BramleyError, OSError) as error:
        arm.failures.append(_lost("start", turn, error))
        progress.phase("start", turn.now() - started_s, f"FAILED: {error}")
    finally:
        _stop(turn)
    rates = [sample.value for sample in arm.samples if sample.metric == "decode_rate"]
    arm.stability = arithmetic.stability(rates)


def _stop(turn: Turn) -> None:
    try:
        turn.server.stop()
    except (Failed, BramleyError, OSError) as error:
        turn.arm.failures.append(_lost("stop", turn, error))


def _lost(phase: str, turn: Turn, error: Exception) -> Failure:
    return Failure(phase=phase, attempt=1, turn=turn.turn, error=str(error), is_final=True)


def _phase(turn: Turn, name: str, watch: MemoryWatch, progress: Progress) -> None:
    start_s, had = turn.now(), len(turn.arm.failures)
    if phases.go_through(turn, name):
        told = f"({turn.arm.not_applicable[name]})" if name in turn.arm.not_applicable else ""
    else:
        told = f"FAILED: {turn.arm.failures[-1].error}"
    if len(turn.arm.failures) > had and not told:
        told = f"at the second attempt, after: {turn.arm.failures[-1].error}"
    most = watch.mark()
    if turn.server.is_ours:
        turn.sample(f"memory_phase_rss@{name}", most.rss)
        turn.settle(well=True)
    progress.phase(name, turn.now() - start_s, told)


def _note_idle(turn: Turn, used: Used) -> None:
    if not turn.server.is_ours:
        turn.arm.not_applicable["memory"] = "the server's processes are not known"
        return
    turn.sample("memory_idle_rss", used.rss)
    if used.pss is not None:
        turn.sample("memory_idle_pss", used.pss)
    turn.settle(well=True)


def _note_peak(turn: Turn, most: Used, busy: "Busy") -> None:
    if not turn.server.is_ours:
        return
    turn.sample("memory_peak_rss", most.rss)
    if most.pss is not None:
        turn.sample("memory_peak_pss", most.pss)
    if most.model is not None:
        turn.sample("memory_model", most.model)
    turn.settle(well=True)
    turn.arm.others.append(busy.others(most))


class Busy:
    """How much of the machine others have while a server is measured."""

    def __init__(self) -> None:
        self._at_s, self._all_s, self._own_s = time.monotonic(), _all_s(), _own_s()

    def others(self, server: Used) -> float:
        """Share of all cores since the beginning, without ours and the server's; 0 to 1."""
        passed_s = (time.monotonic() - self._at_s) * (psutil.cpu_count() or 1)
        ours_s = _own_s() - self._own_s + sum(server.cpu_s.values())
        return min(max((_all_s() - self._all_s - ours_s) / max(passed_s, 1e-9), 0.0), 1.0)


def _all_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


def _own_s() -> float:
    # Without ended children: the server is counted by itself.
    times = os.times()
    return times.user + times.system
