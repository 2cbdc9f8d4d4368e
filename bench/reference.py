"""Greedy answers of a whole cluster beside another implementation's, whatever happens to it.

``python -m bramley.bench.reference --model FOLDER``: the folder holds a model and ``ref.json``,
``{"cases": [{"prompt": [ids], "greedy": [ids], "min_margin": least distance of the two best
scores}]}``. Answers must have the same ids cold, warm, after the worker was killed, after all was
stopped and started again, four at a time, and with other chunks. A conversation with second
thoughts must be answered as if nothing was cached. One line a check; 1 if any fails. Needs a quiet
machine: a store that is late is a miss.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import msgspec

from bramley.bench.asking import WORTH_STORING, Asking, Settings, asking, restart, serving
from bramley.bench.branching import WORTH_TOKENS, Branching
from bramley.bench.cluster import Cluster, Failed
from bramley.client.events import Completion
from bramley.common.status import RemoteError

BACK_WITHIN_S = 60.0
AT_A_TIME = 4
CHUNKS = (64, 512)


class Case(msgspec.Struct, frozen=True):
    """What another implementation says after a prompt."""

    prompt: list[int]
    greedy: list[int]
    min_margin: float | None = None


class Reference(msgspec.Struct, frozen=True):
    """``ref.json``; it may say more."""

    cases: list[Case]


class Checks:
    """Prints a line a check, and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = 0

    def add(self, what: str, faults: Sequence[str], said: str) -> None:
        """Print a check, which is met without faults."""
        self.failed += bool(faults)
        print(f"{'FAILED' if faults else 'ok':6}  {what}: {'; '.join([*faults, said])}", flush=True)


Cut = Callable[[Case], int]


def whole(_: Case) -> int:
    """Ask for all of an answer."""
    return 0


def half(case: Case) -> int:
    """Ask from the middle of an answer on."""
    return len(case.greedy) // 2


def last(case: Case) -> int:
    """Ask for the last token of an answer; what comes before it is prompt."""
    return len(case.greedy) - 1


class Comparing:
    """Asks for answers, or for the rest of each, and compares them.

    Args:
        asked: the cluster.
        cases: of the reference.
        checks: to add to.
        when: said before each.
    """

    def __init__(self, asked: Asking, cases: Sequence[Case], checks: Checks, when: str) -> None:
        self._asked = asked
        self._cases = cases
        self._checks = checks
        self._when = when

    def compare(
        self, what: str, cut: Cut = whole, *, anew: bool = False, together: bool = False
    ) -> None:
        """Compare answers from ``cut`` on.

        Args:
            what: is compared.
            cut: how many of an answer's tokens are part of the prompt.
            anew: without anything cached. Or else what is stored must be used, and that the
                first half of an answer is stored is taken as known, if it is worth it.
            together: several at a time.
        """
        cases = list(islice(cycle(self._cases), max(AT_A_TIME, len(self._cases))))
        cases = cases if together else list(self._cases)
        stored = [0 if anew else self._stored(_prompt(case, cut), cut) for case in cases]
        with ThreadPoolExecutor(AT_A_TIME if together else 1) as pool:
            answers = list(pool.map(partial(self._ask, cut=cut, anew=anew), cases))
        faults: list[str] = []
        for number, (case, answer, least) in enumerate(zip(cases, answers, stored, strict=True)):
            faults += [f"case {number}: {fault}" for fault in judge(case, cut, answer, least)]
        self._checks.add(
            f"{self._when}, {what}",
            faults,
            f"{len(cases)} answers, cached {' '.join(map(told, answers))}",
        )

    def fill(self) -> None:
        """Ask for the first half of each answer, so that the store has where to go on from."""
        for case in self._cases:
            first = case.greedy[: half(case)]
            tokens = max(len(first), 1)
            self._asked.ask(token_ids=case.prompt, max_tokens=tokens, ignore_eos=True)
            self._asked.settle([*case.prompt, *first])
        self._asked.flush()

    def _stored(self, prompt: list[int], cut: Cut) -> int:
        is_known = cut is half and len(prompt) > WORTH_STORING
        stored = len(prompt) - 1 if is_known else self._asked.stored(prompt)
        return stored if stored >= WORTH_TOKENS else 0

    def _ask(self, case: Case, *, cut: Cut, anew: bool) -> Completion:
        tokens = len(case.greedy) - cut(case)
        prompt = _prompt(case, cut)
        return self._asked.ask(anew=anew, token_ids=prompt, max_tokens=tokens, ignore_eos=True)


def _prompt(case: Case, cut: Cut) -> list[int]:
    return [*case.prompt, *case.greedy[: cut(case)]]


def judge(case: Case, cut: Cut, answer: Completion, stored: int) -> list[str]:
    """Say what is wrong with an answer from ``cut`` on."""
    expected, faults = case.greedy[cut(case) :], list[str]()
    if answer.token_ids != expected:
        pairs = zip(answer.token_ids, expected, strict=False)
        at = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), len(expected))
        margin = "no margin stated" if case.min_margin is None else f"margin {case.min_margin}"
        faults.append(f"other tokens from {cut(case) + at} on ({margin})")
    cached = sum(answer.usage.cached_tokens.values())
    if stored and not cached:
        faults.append(f"{stored} tokens are stored, and none was used")
    if cached >= answer.usage.prompt_tokens:
        faults.append("nothing was left to compute")
    return faults


def told(answer: Completion) -> str:
    """Say what of a prompt was cached."""
    cached = answer.usage.cached_tokens
    tiers = "+".join(f"{count} {tier}" for tier, count in cached.items() if count) or "0"
    return f"{tiers}/{answer.usage.prompt_tokens}"


class Scenes:
    """All that happens to one cluster, one thing after the other."""

    def __init__(self, cluster: Cluster, settings: Settings, cases: Sequence[Case]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._cases = cases
        self.checks = Checks()
        self._talk = Branching("default", self.checks.add)

    def run(self) -> None:
        """Go through all of them."""
        with asking(self._cluster) as asked:
            comparing = self._comparing(asked, "cold")
            comparing.compare("nothing cached", anew=True)
            comparing.compare("first time")
            comparing.compare("four at a time", anew=True, together=True)
            comparing.fill()
            self._warm(asked, "warm")
            self._talk.run(asked)
            asked.flush()
        self._kill_worker()
        with asking(self._cluster) as asked:
            self._warm(asked, "worker killed")
            self._talk.go_on(asked, "worker killed")
            asked.flush()
        restart(self._cluster)
        with asking(self._cluster) as asked:
            self._warm(asked, "all started again")
            self._talk.go_on(asked, "all started again")
        for tokens in CHUNKS:
            self._settings.write(prefill_chunk_tokens=tokens, parked_bytes=0)
            restart(self._cluster)
            with asking(self._cluster) as asked:
                self._chunks(asked, f"chunks of {tokens}")

    def _comparing(self, asked: Asking, when: str) -> Comparing:
        return Comparing(asked, self._cases, self.checks, when)

    def _warm(self, asked: Asking, when: str) -> None:
        comparing = self._comparing(asked, when)
        comparing.compare("again")
        comparing.compare("second halves", half)
        comparing.compare("second halves, four at a time", half, together=True)

    def _chunks(self, asked: Asking, when: str) -> None:
        comparing = self._comparing(asked, when)
        comparing.compare("nothing cached", anew=True)
        comparing.compare("last tokens, nothing cached", last, anew=True)
        comparing.compare("nothing cached, four at a time", anew=True, together=True)
        comparing.compare("second halves", half)
        Branching(when, self.checks.add).run(asked)

    def _kill_worker(self) -> None:
        process = self._cluster.process("worker")
        assert process is not None, "a model is ready without a worker"
        os.kill(process["pid"], signal.SIGKILL)
        self._cluster.until_replaced(process, BACK_WITHIN_S)


def main() -> int:
    """Compare and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder with a ref.json")
    model: Path = parser.parse_args().model
    reference = msgspec.json.decode((model / "ref.json").read_bytes(), type=Reference)
    try:
        with serving(model) as (cluster, settings):
            scenes = Scenes(cluster, settings, reference.cases)
            scenes.run()
    except (Failed, RemoteError) as error:
        print(f"reference: {error}", file=sys.stderr)
        return 1
    print(f"{scenes.checks.failed} checks failed")
    return int(scenes.checks.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
