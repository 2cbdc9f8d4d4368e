"""Mixed traffic on a cluster, for any time: answers, cancels, deadlines, slow readers, sessions.

Every prompt is new, so that no prompt is blamed for the kills. One answer in ten is asked for
again without any cache, and has to be the same.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Unpack

import psutil

from bramley.client.events import Event, Gathering
from bramley.client.requests import Options
from bramley.common.status import RemoteError
from support.served import Served

AT_ONCE = 8
CANCELS = 0.01
DEADLINES = 0.02
SLOW_READERS = 0.03
SESSIONS = 0.1
KILLS = 0.001
CHECKS = 0.1
CALL_S = 60.0
POLL_S = 0.1
LETTERS = dict.fromkeys(range(97, 123), 100.0)  # so that texts are told back as they were


@dataclass
class Figures:
    """What the processes of a cluster take, by role and name."""

    resident: dict[str, int] = field(default_factory=dict[str, int])
    descriptors: dict[str, int] = field(default_factory=dict[str, int])
    threads: dict[str, int] = field(default_factory=dict[str, int])
    children: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, served: Served) -> "Figures":
        """Measure."""
        found = cls()
        pids = served.cluster.children() | {("supervisor", ""): served.cluster.supervisor.pid}
        for (role, name), pid in pids.items():
            process, key = psutil.Process(pid), f"{role} {name}".strip()
            with process.oneshot():
                found.resident[key] = process.memory_info().rss
                found.descriptors[key] = process.num_fds()
                found.threads[key] = process.num_threads()
            found.children[key] = len(process.children())
        return found


class Traffic:
    """Requests of a seed, as long as they are wanted.

    Attributes:
        ends: how many ended how.
        kills: of workers.
        checked: answers that were asked for twice.
    """

    def __init__(self, served: Served, models: Sequence[str], seed: int) -> None:
        self._served = served
        self._models = models
        self._dice = random.Random(seed)  # noqa: S311
        self._numbers = count()
        self._killed_s: list[float] = []
        self.ends: Counter[str] = Counter()
        self.checked = 0

    @property
    def kills(self) -> int:
        """Of workers, so far."""
        return len(self._killed_s)

    async def run(self, seconds: float, *, kills: bool = False) -> None:
        """Ask for so long, and wait for what is under way then; kill a worker in the middle."""
        until_s = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until_s:
                await self._one()

        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(client())
            if kills:
                await asyncio.sleep(seconds / 2)
                await self.kill()

    async def kill(self) -> None:
        """Kill one of the models' workers."""
        number = len(self._killed_s)
        self._killed_s.append(inf)  # until it is over, any request may know of it
        await self._served.cluster.kill("worker", self._dice.choice(self._models))
        self._killed_s[number] = time.monotonic()

    async def _one(self) -> None:
        dice = self._dice
        if dice.random() < KILLS:
            await self.kill()
        model = dice.choice(self._models)
        options: Options = {"temperature": 0.0, "max_tokens": dice.randrange(1, 40)}
        if dice.random() < SESSIONS:
            await self._converse(model, options)
            return
        prompt = f"{next(self._numbers)} " * dice.randrange(1, 60)
        is_checked = dice.random() < CHECKS
        events = await self._ask(model, prompt, **options)
        if events and is_checked:
            self.checked += 1
            plain: Options = {**options, "skip_lookup": True, "skip_store": True}
            again = await self._ask(model, prompt, **plain)
            if again:
                assert _ids(again) == _ids(events), prompt

    async def _converse(self, model: str, options: Options) -> None:
        number = next(self._numbers)
        key = f"talk {number}"
        text = f"{number} is a number, and "
        for _ in range(3):
            asked: Options = {**options, "logit_bias": LETTERS, "session_key": key}
            events = await self._ask(model, text, **asked)
            if not events:
                return
            text += Gathering.of(events).completion().text + " and then "
        if self._dice.random() < 0.5:
            await self._close(model, key)

    async def _close(self, model: str, session_key: str) -> None:
        """Close a session, and try again while its worker is between two lives."""
        async with asyncio.timeout(CALL_S):
            while True:
                try:
                    await self._served.client.close_session(model, session_key)
                except RemoteError as error:
                    if error.code != "UNAVAILABLE":
                        raise
                    await asyncio.sleep(POLL_S)
                else:
                    return

    async def _ask(self, model: str, prompt: str, **options: Unpack[Options]) -> list[Event]:
        """Ask once, in one of the ways: the events of an answer that is whole, or none."""
        dice, chance = self._dice, self._dice.random()
        pause_s = dice.uniform(0.01, 0.1) if dice.random() < SLOW_READERS else 0.0
        has_deadline = CANCELS <= chance < CANCELS + DEADLINES
        timeout_s = dice.uniform(0.001, 0.2) if has_deadline else CALL_S
        task = asyncio.create_task(self._read(model, prompt, timeout_s, pause_s, options))
        began_s = time.monotonic()
        if chance < CANCELS:
            await asyncio.wait([task], timeout=dice.uniform(0, 0.2))
            task.cancel()
        try:
            events = await task
        except asyncio.CancelledError:
            self.ends["cancelled"] += 1
            return []
        except RemoteError as error:
            self._refused(error, began_s, has_deadline=has_deadline)
            return []
        self.ends["answered"] += 1
        return events

    def _refused(self, error: RemoteError, began_s: float, *, has_deadline: bool) -> None:
        if error.code == "DEADLINE_EXCEEDED":
            assert has_deadline, error
            self.ends["too late"] += 1
            return
        # Only what ran when a worker was killed may know of it; what ran when two were in a row is
        # given to no third for a while.
        if error.reason != "POISON_REQUEST":
            assert error.reason == "WORKER_LOST", error
            assert any(began_s <= at_s for at_s in self._killed_s), error
        self.ends["lost"] += 1

    async def _read(
        self, model: str, prompt: str, timeout_s: float, pause_s: float, options: Options
    ) -> list[Event]:
        read: list[Event] = []
        call = self._served.client.generate(model, prompt, timeout_s=timeout_s, **options)
        async with aclosing(call) as events:
            async for event in events:
                read.append(event)
                if pause_s:
                    await asyncio.sleep(pause_s)
        return read


def _ids(events: Sequence[Event]) -> list[int]:
    return Gathering.of(events).completion().token_ids
