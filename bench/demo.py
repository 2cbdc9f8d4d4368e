"""``make demo``: one prompt cold, warm, and after everything has died once, in figures.

Arguments go to ``bramley up``. The exit code is 0 only if every greedy answer to the prompt
is the first one's, a request whose worker was killed was told so, and nothing is left.
"""

import os
import secrets
import signal
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bramley.bench.cluster import Cluster, Failed, running
from bramley.client import Client
from bramley.client.commands.answer import wait_for
from bramley.client.commands.screen import print_table
from bramley.client.events import Completion, Delta, Event, Gathering
from bramley.common.status import RemoteError

if TYPE_CHECKING:
    from bramley.client.requests import Message

PROMPT_TOKENS = 600
MAX_TOKENS = 32
TOKENS_BEFORE_KILL = 8
BACK_WITHIN_S = 60.0
KEPT_WITHIN_S = 5.0
STORY = (
    "Every evening the keeper climbed the stairs of the lighthouse and lit the lamp. ",
    "Ships passed far out, and on clear nights he could count their lights. ",
    "In winter the waves reached the door, and salt covered the windows. ",
    "Once a month a boat brought letters, oil, bread and news from the town. ",
    "He wrote the weather into a book, and what he thought about it as well. ",
)
QUESTIONS = (
    "What does the keeper do in the evening?",
    "What does the boat bring?",
    "What is winter like there?",
    "What does he write into his book?",
)


@dataclass(frozen=True)
class Answer:
    """One answer, and when it came, in seconds from its request."""

    completion: Completion
    ttft_s: float
    total_s: float

    @property
    def tokens(self) -> int:
        """How many were generated."""
        return self.completion.usage.completion_tokens

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return (self.tokens - 1) / max(self.total_s - self.ttft_s, 1e-9)


@dataclass(frozen=True)
class Phase:
    """A row of the table."""

    name: str
    cached: dict[str, int]
    ttft_s: float
    rate: float


class Demo:
    """Asks the model of a cluster, phase by phase, about a story of some ``tokens`` tokens."""

    def __init__(self, cluster: Cluster, tokens: int = PROMPT_TOKENS) -> None:
        self._cluster = cluster
        status = cluster.status()
        self._model: str = status["models"][0]["name"]
        with self._client() as client:
            self._story = story(client, self._model, tokens)
        self._first: Completion | None = None
        self.phases: list[Phase] = []

    def ask_once(self, name: str) -> None:
        """Ask the first question and add a row.

        Raises:
            Failed: the answer is another one than at first.
        """
        with self._client() as client:
            wait_for(client, self._model, BACK_WITHIN_S)
            answer = self._ask(client, QUESTIONS[0])
        self._compare(name, answer.completion)
        cached = answer.completion.usage.cached_tokens
        self.phases.append(Phase(name, cached, answer.ttft_s, answer.decode_rate))

    def ask_all(self, name: str) -> None:
        """Ask all questions at once and add one row for them together.

        Raises:
            Failed: the answer to the first question is another one than at first.
        """
        start_s = time.perf_counter()
        with self._client() as client, ThreadPoolExecutor(len(QUESTIONS)) as pool:
            answers = list(pool.map(partial(self._ask, client), QUESTIONS))
        took_s = time.perf_counter() - start_s
        self._compare(name, answers[0].completion)
        usages = [answer.completion.usage.cached_tokens for answer in answers]
        cached = {tier: sum(usage[tier] for usage in usages) for tier in usages[0]}
        ttft_s = sum(answer.ttft_s for answer in answers) / len(answers)
        rate = sum(answer.tokens for answer in answers) / took_s
        self.phases.append(Phase(name, cached, ttft_s, rate))

    def keep(self) -> None:
        """Wait until what was computed is on the disk, where there is a store."""
        give_up_s = time.monotonic() + KEPT_WITHIN_S
        with self._client() as client:
            while time.monotonic() < give_up_s:
                try:
                    if client.flush_cache().longest_prefix_tokens:
                        return
                except RemoteError as error:
                    if error.reason == "NO_STORE":
                        return
                    raise
                time.sleep(0.1)

    def kill_store(self) -> bool:
        """Kill the store and wait until its next incarnation runs; False if there is none."""
        if (process := self._cluster.process("store")) is None:
            return False
        os.kill(process["pid"], signal.SIGKILL)
        self._cluster.until_replaced(process, BACK_WITHIN_S)
        return True

    def kill_worker(self) -> RemoteError:
        """Kill the worker in the middle of an answer, and wait until the next one runs.

        Returns:
            What the client was told.

        Raises:
            Failed: the answer ended as if nothing had happened.
        """
        process = self._cluster.process("worker")
        assert process is not None, "a model is ready without a worker"
        tokens = 0
        try:
            with self._client() as client, closing(self._stream(client, QUESTIONS[1])) as events:
                for event in events:
                    if isinstance(event, Delta) and tokens < TOKENS_BEFORE_KILL:
                        tokens = event.completion_tokens
                        if tokens >= TOKENS_BEFORE_KILL:
                            os.kill(process["pid"], signal.SIGKILL)
        except RemoteError as error:
            self._cluster.until_replaced(process, BACK_WITHIN_S)
            return error
        raise Failed("the answer of a killed worker ended well")

    def restart(self) -> None:
        """Stop everything, and start it again.

        Raises:
            Failed: something was left.
        """
        if left := self._cluster.down():
            raise Failed(f"left over: {', '.join(left)}")
        self._cluster.up()

    def _ask(self, client: Client, question: str) -> Answer:
        gathering, first_s, start_s = Gathering(), 0.0, time.perf_counter()
        with closing(self._stream(client, question)) as events:
            for event in events:
                gathering.add(event)
                if isinstance(event, Delta):
                    first_s = first_s or time.perf_counter() - start_s
        return Answer(gathering.completion(), first_s, time.perf_counter() - start_s)

    def _stream(self, client: Client, question: str) -> Generator[Event]:
        turn: Message = {"role": "user", "content": self._story + question}
        return client.generate(self._model, messages=[turn], max_tokens=MAX_TOKENS, temperature=0.0)

    def _compare(self, phase: str, completion: Completion) -> None:
        if self._first is None:
            self._first = completion
            tokens = completion.usage.prompt_tokens
            print(f"> (a story, {tokens} tokens) {QUESTIONS[0]}\n{completion.text.strip()} …\n")
        if completion.token_ids != self._first.token_ids:
            raise Failed(f"{phase}: the answer is another one than at first")

    @contextmanager
    def _client(self) -> Generator[Client]:
        with Client(self._cluster.status()["addresses"]["socket"]) as client:
            yield client


def story(client: Client, model: str, tokens: int) -> str:
    """Write a prompt that nobody has asked before, of some ``tokens`` tokens."""
    text = f"Story number {secrets.token_hex(8)}. "
    sentences = 0
    while len(client.tokenize(model, text)) < tokens:
        text += STORY[sentences % len(STORY)]
        sentences += 1
    return text


def show(cluster: Cluster) -> None:
    """Go through the phases and print the table."""
    demo = Demo(cluster)
    demo.ask_once("cold")
    demo.ask_once("warm")
    demo.keep()
    told = demo.kill_worker()
    demo.ask_once("worker killed")
    if demo.kill_store():
        demo.ask_once("store killed")
    demo.restart()
    demo.ask_once("all stopped, started again")
    demo.ask_all("four at once, together")
    print_phases(demo.phases)
    print(f"\nthe killed worker's client was told: {told.code} {told.reason} {told.facts}")


def print_phases(phases: list[Phase]) -> None:
    """Print a row a phase; times to the first token also as what the first one's is of them."""
    header = ("phase", "cached tokens", "first token", "tokens/s", "against cold")
    cold_s = phases[0].ttft_s
    rows = [
        (
            phase.name,
            ", ".join(f"{count} {tier}" for tier, count in phase.cached.items() if count) or "0",
            f"{phase.ttft_s * 1e3:.0f} ms",
            f"{phase.rate:.1f}",
            f"{cold_s / max(phase.ttft_s, 1e-9):.1f} x",
        )
        for phase in phases
    ]
    print_table(header, rows)


def main() -> int:
    """Run the demo, and return the exit code."""
    start_s = time.perf_counter()
    try:
        with running(sys.argv[1:]) as cluster:
            show(cluster)
    except (Failed, RemoteError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    took_s = time.perf_counter() - start_s
    print(f"every answer to one prompt is the same; nothing is left, after {took_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
