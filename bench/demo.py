"""``make demo``: the embedded model on this machine, one stream, four, and one crash, in figures.

Arguments go to ``bramley up``. The exit code is 0 only if the answer after the crash is the
answer before it, the lost request was told so, and nothing is left at the end.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bramley.client import Client
from bramley.client.commands.down import is_alive
from bramley.client.commands.screen import print_table
from bramley.client.events import Completion, Delta, Event, Gathering
from bramley.common.status import RemoteError

if TYPE_CHECKING:
    from bramley.client.requests import Message

PROMPTS = (
    "Tell me about the life of a lighthouse keeper.",
    "Explain how rain is made, step by step.",
    "Describe a walk through an old market.",
    "Write a letter to a friend who lives at sea.",
)
MAX_TOKENS = 32
TOKENS_BEFORE_KILL = 8
BACK_WITHIN_S = 60.0


class Failed(Exception):
    """The demo did not show what it should."""


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


class Cluster:
    """A cluster in a state folder of its own, driven by the command line."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._pids: set[int] = set()
        self._run_dirs: set[Path] = set()

    def command(self, *arguments: str, check: bool = True) -> str:
        """Run ``bramley`` on the state folder, and return what it printed."""
        command = [sys.executable, "-P", "-m", "bramley.client"]
        command += ["--state-dir", str(self._state_dir), *arguments]
        ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S603
        if check and ended.returncode:
            raise Failed(f"`bramley {arguments[0]}` ended with exit code {ended.returncode}")
        return ended.stdout

    def status(self) -> dict[str, Any]:
        """Ask what runs; its processes and folders are remembered for ``down``."""
        status = json.loads(self.command("status", "--json"))
        self._pids |= {process["pid"] for process in status["processes"] if process["pid"]}
        if (node := status["addresses"]["node"]) is not None:
            self._run_dirs.add(Path(node.removeprefix("unix:")).parent)
        return status

    def worker_pid(self, model: str) -> int:
        """Find the process that has ``model``."""
        processes = self.status()["processes"]
        of_model = ("worker", model)
        return next(each["pid"] for each in processes if (each["role"], each["name"]) == of_model)

    def down(self) -> list[str]:
        """End everything, whatever state it is in.

        Returns:
            What was left over by ``bramley down``.
        """
        if self.status()["state"] == "running":
            self.command("down", check=False)
        left = [f"process {pid}" for pid in sorted(self._pids) if is_alive(pid)]
        left += [f"folder {folder}" for folder in self._run_dirs if folder.exists()]
        return left


@contextmanager
def running(arguments: Sequence[str]) -> Generator[Cluster]:
    """Run a cluster while the block runs.

    Yields:
        The cluster, ready.

    Raises:
        Failed: something of it is left.
    """
    with tempfile.TemporaryDirectory(prefix="bramley-demo-") as folder:
        cluster = Cluster(Path(folder) / "state")
        try:
            anywhere = "127.0.0.1:0"
            cluster.command("up", "--detach", "--grpc", anywhere, "--http", anywhere, *arguments)
            yield cluster
        finally:
            left = cluster.down()
        if left:
            raise Failed(f"left over: {', '.join(left)}")


def ask(client: Client, model: str, prompt: str, *, show: bool = False) -> Answer:
    """Take one greedy answer as it streams, and print it if ``show``."""
    gathering, first_s, start_s = Gathering(), 0.0, time.perf_counter()
    with closing(stream(client, model, prompt)) as events:
        for event in events:
            gathering.add(event)
            if isinstance(event, Delta):
                first_s = first_s or time.perf_counter() - start_s
                if show:
                    print(event.text, end="", flush=True)
    return Answer(gathering.completion(), first_s, time.perf_counter() - start_s)


def stream(client: Client, model: str, prompt: str) -> Generator[Event]:
    """Ask for a greedy answer."""
    turn: Message = {"role": "user", "content": prompt}
    return client.generate(model, messages=[turn], max_tokens=MAX_TOKENS, temperature=0.0)


def ask_all(client: Client, model: str) -> tuple[list[Answer], float]:
    """Ask every prompt at once; return the answers and the seconds until the last has ended."""
    start_s = time.perf_counter()
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(partial(ask, client, model), PROMPTS))
    return answers, time.perf_counter() - start_s


def lose_worker(client: Client, model: str, pid: int) -> RemoteError:
    """Kill the worker ``pid`` in the middle of an answer.

    Returns:
        What the client was told.

    Raises:
        Failed: the answer ended as if nothing had happened.
    """
    tokens = 0
    try:
        with closing(stream(client, model, PROMPTS[0])) as events:
            for event in events:
                if isinstance(event, Delta) and tokens < TOKENS_BEFORE_KILL:
                    tokens = event.completion_tokens
                    if tokens >= TOKENS_BEFORE_KILL:
                        os.kill(pid, signal.SIGKILL)
    except RemoteError as error:
        return error
    raise Failed("the answer of a killed worker ended well")


def ask_until_answered(client: Client, model: str) -> tuple[Answer, float]:
    """Ask the first prompt until it is answered.

    Returns:
        The answer, and the seconds until its first token.

    Raises:
        RemoteError: refused for another reason than that no worker serves, or for too long.
    """
    start_s = time.perf_counter()
    while True:
        asked_s = time.perf_counter() - start_s
        try:
            answer = ask(client, model, PROMPTS[0])
        except RemoteError as error:
            if error.status_code.name != "UNAVAILABLE" or asked_s > BACK_WITHIN_S:
                raise
            time.sleep(0.05)
        else:
            return answer, asked_s + answer.ttft_s


def show(cluster: Cluster, ready_s: float) -> None:
    """Show everything there is to show, and print the figures.

    Raises:
        Failed: the answer after the crash is another one.
    """
    status = cluster.status()
    model: str = status["models"][0]["name"]
    with Client(status["addresses"]["grpc"]) as client:
        print(f"> {PROMPTS[0]}")
        alone = ask(client, model, PROMPTS[0], show=True)
        print("\n")
        together, together_s = ask_all(client, model)
        told = lose_worker(client, model, cluster.worker_pid(model))
        print("one worker killed with SIGKILL in the middle of an answer; its client was told:")
        print(f"  {told.status_code.name} {told.reason} {told.facts}: {told.message}\n")
        after, back_s = ask_until_answered(client, model)
    total_rate = sum(answer.tokens for answer in together) / together_s
    ratio = total_rate / (alone.tokens / alone.total_s)
    same = after.completion.token_ids == alone.completion.token_ids
    same_together = together[0].completion.token_ids == alone.completion.token_ids
    print_table(
        ("what", "figure"),
        [
            ("model", model),
            ("start to ready", f"{ready_s:.2f} s"),
            ("one stream: time to first token", f"{alone.ttft_s * 1e3:.0f} ms"),
            ("one stream: then", f"{alone.decode_rate:.1f} tokens/s"),
            (f"{len(together)} streams: together", f"{total_rate:.1f} tokens/s"),
            (f"{len(together)} streams: against one, whole answers", f"{ratio:.2f} x"),
            (f"{len(together)} streams: first answer equals the one alone", yes(same_together)),
            ("worker killed: until the next first token", f"{back_s:.2f} s"),
            ("worker killed: answer equals the one before", yes(same)),
        ],
    )
    if not same:
        raise Failed("the answer after the crash is another one")


def yes(claim: bool) -> str:
    """Word a claim."""
    return "yes" if claim else "NO"


def main() -> int:
    """Run the demo, and return the exit code."""
    start_s = time.perf_counter()
    try:
        with running(sys.argv[1:]) as cluster:
            show(cluster, time.perf_counter() - start_s)
    except (Failed, RemoteError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(f"\nall ended, nothing left, after {time.perf_counter() - start_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
