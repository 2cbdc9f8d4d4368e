"""The kill matrix: which process, what befalls it, what it is doing; and what must come of it.

A cell puts requests into a phase, lets a fault befall one process, and looks at what every
request came to, at how long it took until a new one was served, and at what is left.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal, get_args

from bramley.client.client import AsyncClient
from bramley.client.events import Accepted, Delta, Event, Finished, Gathering, Progress
from bramley.common.status import RemoteError
from support.served import Served, serving

Victim = Literal["worker", "router", "store", "supervisor"]
Fault = Literal["killed", "terminated", "stopped", "blocked"]
Phase = Literal["idle", "loading", "queued", "prefill", "decode"]
VICTIMS: tuple[Victim, ...] = get_args(Victim)
FAULTS: tuple[Fault, ...] = get_args(Fault)
PHASES: tuple[Phase, ...] = get_args(Phase)

MODEL, NEIGHBOUR = "tiny", "other"
CANARY = "Once upon a time"
HANG_S = 4.0  # router.hang_timeout_s: a worker that does not turn is killed after it
PAUSE_S = 6.0  # then whom nobody replaces goes on; longer than HANG_S, and than a lease
PATIENT_S = 3.0  # of clients: after 5 s they may give up a router that does not even answer pings
BACK_S = 20.0  # a model's load included, on a machine that has other things to do
ALL_BACK_S = 30.0  # where everything starts anew
CALL_S = 40.0  # that any call takes at most
FAULTY = Path(__file__).with_name("faulty.py")
BEGIN: dict[Fault, signal.Signals] = {
    "killed": signal.SIGKILL,
    "terminated": signal.SIGTERM,
    "stopped": signal.SIGSTOP,
    "blocked": signal.SIGUSR1,  # see faulty.py
}
END: dict[Fault, signal.Signals] = {"stopped": signal.SIGCONT, "blocked": signal.SIGUSR2}

OK = "OK"
LOST = "UNAVAILABLE WORKER_LOST"
BROKEN = "UNAVAILABLE"  # the connection itself, of which the router can say no more
# What a request may be told that comes while nobody can take it. The last is gRPC's own: a call
# that arrives in the moment in which a server stops.
REFUSALS = {"UNAVAILABLE", "UNAVAILABLE DRAINING", "CANCELLED"}
_numbers = count()


@dataclass(frozen=True)
class Cell:
    """One case of the matrix."""

    victim: Victim
    fault: Fault
    phase: Phase

    def __str__(self) -> str:
        return f"{self.victim}-{self.fault}-{self.phase}"

    @property
    def is_paused(self) -> bool:
        """Whether it goes on as the one that it was."""
        return self.fault in END and self.victim != "worker"

    @property
    def pause_s(self) -> float:
        """For how long it stands still."""
        if not self.is_paused:
            return 0.0
        return PATIENT_S if (self.victim, self.fault) == ("router", "stopped") else PAUSE_S

    @property
    def back_s(self) -> float:
        """By when a new request is served again."""
        if self.victim == "worker" and self.fault in END:
            return HANG_S + BACK_S
        if (self.victim, self.fault) == ("supervisor", "terminated"):
            return ALL_BACK_S
        return self.pause_s + BACK_S

    def status_of(self, role: str) -> str:
        """What a request ends with.

        Args:
            role: "subject" for the one in the phase, "runs" for one with a token or more that
                the same worker answers, "beside" for one that another worker does.

        Returns:
            Its ``Asked.status``.
        """
        if self.victim == "router" and self.fault == "killed":
            return BROKEN
        has_token = role == "runs" or (role == "subject" and self.phase == "decode")
        if self.victim == "worker" and self.fault != "terminated" and has_token:
            return LOST
        return OK


@dataclass(eq=False)
class Asked:
    """A request on its way, and what it came to.

    Attributes:
        status: of its end: OK, or the code and the reason of the error.
        seconds: that it took.
    """

    role: str
    model: str
    prompt: str
    max_tokens: int
    events: list[Event] = field(default_factory=list[Event])
    status: str = ""
    seconds: float = 0.0

    async def run(self, client: AsyncClient) -> None:
        """Ask, and read to the end."""
        began_s = time.monotonic()
        call = client.generate(
            self.model,
            self.prompt,
            temperature=0.0,
            ignore_eos=True,
            max_tokens=self.max_tokens,
            progress=True,
            timeout_s=CALL_S,
        )
        try:
            async with aclosing(call) as events:
                async for event in events:
                    self.events.append(event)
            self.status = OK
        except RemoteError as error:
            plain = error.reason == error.code
            self.status = error.code if plain else f"{error.code} {error.reason}"
        self.seconds = time.monotonic() - began_s

    @property
    def tokens(self) -> int:
        """Of the answer so far."""
        return max(
            (one.completion_tokens for one in self.events if isinstance(one, Delta)), default=0
        )

    def has(self, kind: type[Event]) -> bool:
        """Whether it was told such an event."""
        return any(isinstance(one, kind) for one in self.events)

    def check_ended_once(self) -> None:
        """Check that it was told its end in one way, and no token twice."""
        ends = [place for place, one in enumerate(self.events) if isinstance(one, Finished)]
        assert ends == ([len(self.events) - 1] if self.status == OK else []), self
        counted = 0
        for one in self.events:
            if isinstance(one, Delta):
                counted += len(one.token_ids)
                assert one.completion_tokens == counted, self
        assert sum(isinstance(one, Accepted) for one in self.events) <= 1, self

    async def check_right(self, client: AsyncClient) -> None:
        """Check that an answer is the plain greedy one, which nothing disturbs or shortens."""
        plain = await client.complete(
            self.model,
            self.prompt,
            temperature=0.0,
            ignore_eos=True,
            max_tokens=self.max_tokens,
            skip_lookup=True,
            skip_store=True,
            timeout_s=CALL_S,
        )
        assert Gathering.of(self.events).completion().token_ids == plain.token_ids, self
        assert len(plain.token_ids) == self.max_tokens


class Scene:
    """Requests in a phase, and what was running then."""

    def __init__(self, served: Served, faults: Path) -> None:
        self.served = served
        self.faults = faults
        self.asked: list[Asked] = []
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self, role: str, model: str, prompt: str, max_tokens: int) -> Asked:
        """Begin with a request that nobody has asked before."""
        # Two workers that die under one and the same prompt would make it a suspect.
        one = Asked(role, model, f"{next(_numbers)} {prompt}", max_tokens)
        self.asked.append(one)
        self._tasks.append(asyncio.create_task(one.run(self.served.client)))
        return one

    async def reach(self, phase: Phase) -> None:
        """Put a request into its phase, and another model's beside it into its answer."""
        (self.faults / "slow").touch()
        match phase:
            case "idle":
                pass
            case "loading":
                await self._load()
            case "queued":
                first = self.ask("runs", MODEL, "runs", 150)
                await self._until(lambda: first.tokens >= 3)
                waiting = self.ask("subject", MODEL, "waits", 8)
                await self._until(lambda: waiting.has(Accepted))
            case "prefill":
                reading = self.ask("subject", MODEL, "reads " + "y" * 1500, 8)
                await self._until(lambda: reading.has(Progress))
            case "decode":
                writing = self.ask("subject", MODEL, "writes", 150)
                await self._until(lambda: writing.tokens >= 3)
        if phase != "idle":
            beside = self.ask("beside", NEIGHBOUR, "beside it", 150)
            await self._until(lambda: beside.tokens >= 3)

    async def _load(self) -> None:
        (self.faults / "hold-load").touch()
        await self.served.cluster.kill("worker", MODEL)
        self.ask("subject", MODEL, "waits for the model", 8)

        async def is_loading() -> None:
            while True:
                model = await self.served.client.get_model(MODEL)
                if model.state == "loading" and model.requests_waiting == 1:
                    return
                await asyncio.sleep(0.02)

        await self.served.cluster.within(is_loading())

    async def _until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():  # noqa: ASYNC110 of what streams tell
                await asyncio.sleep(0.005)

        await self.served.cluster.within(wait(), lambda: f"seen: {self.asked}")

    def calm(self) -> None:
        """Slow and hold nothing any more."""
        for name in ("slow", "hold-load"):
            (self.faults / name).unlink(missing_ok=True)

    async def newcomer(self, has_come: Callable[[], bool]) -> tuple[list[str], float]:
        """Ask again and again, until one is answered that came after ``has_come`` held.

        Returns:
            What came of each, and after how many seconds the last one had its answer.
        """
        began_s = time.monotonic()
        tries: list[str] = []
        is_late = False
        while not is_late or tries[-1] != OK:
            is_late = has_come()
            one = Asked("newcomer", MODEL, f"{next(_numbers)} new", 8)
            await one.run(self.served.client)
            one.check_ended_once()
            tries.append(one.status)
            if one.status != OK:
                await asyncio.sleep(0.02)
        return tries, time.monotonic() - began_s

    async def ended(self) -> None:
        """Wait until each request has ended; no call takes longer than CALL_S."""
        await self.served.cluster.within(
            asyncio.gather(*self._tasks), lambda: f"seen: {self.asked}", CALL_S + 5.0
        )


class Arena:
    """One cluster for many cells, and another one after a cell that failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._served: Served | None = None
        self._count = 0

    async def scene(self) -> Scene:
        """Make a scene of a cluster that serves."""
        if self._served is None:
            self._count += 1
            folder = self._folder / str(self._count)
            self.faults = folder / "faults"
            self.faults.mkdir(parents=True)
            made = serving(
                folder, self._settings, ("-P", str(FAULTY), str(self.faults), "bramley.deploy")
            )
            self._served = await self._stack.enter_async_context(made)
        return Scene(self._served, self.faults)

    def _settings(self, models: Path) -> str:
        def command(module: str) -> str:
            return json.dumps([sys.executable, "-P", str(FAULTY), str(self.faults), module])

        return f"""
[router]
hang_timeout_s = {HANG_S}
[models.{MODEL}]
path = "{models}/tiny"
max_rows = 1
prefill_chunk_tokens = 16
[models.{NEIGHBOUR}]
path = "{models}/tiny"
max_rows = 4
[store]
ram_bytes = 200000000
disk_bytes = 400000000
[node]
settled_s = 0.1  # one cell's kills are no crash loop of the next one
crash_loop_starts = 100
worker_command = {command("bramley.worker")}
router_command = {command("bramley.router")}
store_command = {command("bramley.cachestore")}
"""

    async def discard(self) -> None:
        """Kill a cluster of which nobody knows any more how it is."""
        if self._served is not None:
            await self._served.cluster.kill_supervisor()
            self._served = None
            await self._stack.aclose()

    async def close(self) -> None:
        """Stop in good order, and check that nothing is left."""
        self._served = None
        await self._stack.aclose()
