"""The models of this router: what each is at; loads, drains and stops as lifecycle decides.

One task looks, asks ``plan`` and does the one thing, so that a request never races an unload:
both are news to the same task. What takes long, the end of a model's processes, has a task of
its own, and the model is STOPPING meanwhile.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from math import inf
from time import monotonic

from bramley.common.errors import (
    BramleyError,
    NeverFits,
    NoMemory,
    NotLoaded,
    UnknownResource,
)
from bramley.common.ids import ModelName
from bramley.common.logs import facts
from bramley.router import lifecycle
from bramley.router.fleet import WorkerView
from bramley.router.gate import Gate
from bramley.router.lifecycle import Drain, Keep, Load, Memory, Phase, Room, Stop, Wait, Why
from bramley.router.memory import MemoryLedger
from bramley.router.metrics import Metrics
from bramley.router.model import Model
from bramley.router.policy import ModelPolicy
from bramley.router.settings import RouterSettings
from bramley.router.watch import Watch

log = logging.getLogger(__name__)


class Models:
    """All of them, and the one ledger of their memory.

    Args:
        settings: of the router.
        watch: the way to the node and to the workers.
        metrics: of the process.
        changed: called when what ``describe`` and health tell of a model may have changed.

    Attributes:
        settings: in force.
        by_name: each of them.
        ledger: of the memory.
    """

    def __init__(
        self,
        settings: RouterSettings,
        watch: Watch,
        metrics: Metrics,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self._watch = watch
        self._metrics = metrics
        self._changed = changed
        self._news = asyncio.Event()
        self._turn = asyncio.Event()  # set, and made anew, after each change
        self.by_name: dict[ModelName, Model] = {}
        self.ledger = MemoryLedger(settings.memory_bytes, settings.store_bytes)
        for name in settings.models:
            self._add(ModelName(name))

    @property
    def gates(self) -> dict[ModelName, Gate]:
        """The line of each model."""
        return {name: model.gate for name, model in self.by_name.items()}

    def get(self, name: str) -> Model:
        """Find a model.

        Returns:
            The one of that name.

        Raises:
            UnknownResource: the settings have none of that name.
        """
        model = self.by_name.get(ModelName(name))
        if model is None or model.why is Why.REMOVED:
            raise UnknownResource("model", name)
        return model

    def worker_changed(self, view: WorkerView, before: WorkerView) -> None:
        """Take in what is now known of a model's worker."""
        model = self.by_name.get(view.model)
        if model is None:  # it has just been removed
            return
        model.gate.update(view)
        model.metrics.worker_changed(view, before, monotonic())
        if model.phase is not Phase.UNLOADED:
            self.ledger.measure(model.name, model.measure())
        if view.is_ready:
            model.ready_s = min(model.ready_s, monotonic())
        if _told(view) != _told(before):
            self._tell()

    # The task

    async def run(self) -> None:
        """Act until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            await self._watch.connected.wait()
            await self._adopt()
            self._begin()
            while True:
                self._news.clear()
                now_s = monotonic()
                action = lifecycle.plan(self._all_facts(), self._memory(), now_s)
                if isinstance(action, Wait):
                    with suppress(TimeoutError):
                        until_s = action.until_s
                        async with asyncio.timeout(until_s - now_s if until_s < inf else None):
                            await self._news.wait()
                else:
                    await self._do(action, now_s)
                    self._tell()

    async def _adopt(self) -> None:
        """Go on with the workers that an earlier router has left."""
        for model in list(self.by_name.values()):  # of which new settings may take some away
            if pinned := self._watch.found(model.name):
                self.ledger.reserve(model.name, model.needed)
                model.is_pinned |= any(pinned)
                await self._start(model)
        self._tell()

    def _begin(self) -> None:
        """Ask for the models that are to be loaded at the start, as long as there is room."""
        free = self.ledger.free
        for model in self.by_name.values():
            if not model.is_asked:
                continue
            if model.needed <= free:
                free -= model.needed
            else:
                model.asked_s = inf
                log.warning(
                    "no room for it at the start: its first request loads it",
                    extra=facts(model=model.name, bytes=model.needed, free=free),
                )
        self._tell()

    async def _do(self, action: Load | Drain | Keep | Stop, now_s: float) -> None:
        model = self.by_name[action.model]
        match action:
            case Load():
                self.ledger.reserve(model.name, model.needed)
                log.info("loading", extra=facts(model=model.name, bytes=model.needed))
                await self._start(model)
            case Drain(_, why):
                self._drain(model, why)
            case Keep():
                self._loaded(model)
            case Stop():
                model.phase = Phase.STOPPING
                self._tasks.create_task(self._stop(model))

    async def _start(self, model: Model) -> None:
        model.asked_s = inf
        model.loaded_s, model.ready_s = monotonic(), inf
        self._loaded(model)
        is_other = await self._watch.start(model.name, pinned=model.is_pinned)
        # Than the one that an earlier router has started; it may be leaving for a reason already.
        if is_other and model.phase is Phase.LOADED:
            self._drain(model, Why.CHANGED)

    def _loaded(self, model: Model) -> None:
        model.phase, model.why, model.drain_until_s = Phase.LOADED, None, inf
        model.gate.hold(is_held=False)

    def _drain(self, model: Model, why: Why, patience_s: float = inf) -> None:
        log.info("draining", extra=facts(model=model.name, why=why.value))
        model.phase, model.why = Phase.DRAINING, why
        model.drain_until_s = monotonic() + patience_s
        model.gate.hold(is_held=True)

    async def _stop(self, model: Model) -> None:
        """End a model's processes; each stores what the cache store lacks of its rows."""
        await self._watch.stop(model.name)
        why, model.why, model.drain_until_s = model.why or Why.ASKED, None, inf
        model.metrics.unloads[why.value].inc()
        log.info("unloaded", extra=facts(model=model.name, why=why.value))
        self.ledger.release(model.name)
        model.phase = Phase.UNLOADED
        model.gate.hold(is_held=False)
        if why is Why.REMOVED:
            self._drop(model)
        else:
            self._define(model)
            if why is Why.CHANGED:
                model.ask(monotonic())
        self._tell()

    def _all_facts(self) -> list[lifecycle.Model]:
        return [model.facts for model in self.by_name.values()]

    def _memory(self) -> Memory:
        return Memory(free=self.ledger.free, most=self.ledger.most)

    def _tell(self) -> None:
        """Let everybody look again: the task, who follows a load, health and metrics."""
        self._news.set()
        passed, self._turn = self._turn, asyncio.Event()
        passed.set()
        for model in self.by_name.values():
            model.metrics.set_state(model.state)
        held = {name: self.ledger.held(name) for name in self.by_name}
        self._metrics.set_memory(self.ledger.budget, self.ledger.store, held)
        self._changed()

    # What operators ask for

    async def load(self, name: str, *, pin: bool) -> AsyncGenerator[Model]:
        """Load a model, unless it is; leaving the stream does not stop the load.

        Yields:
            The model at each change, until it serves or has failed.

        Raises:
            UnknownResource: the settings have none of that name.
            NeverFits: it takes more than there is.
            NoMemory: it fits once models have left that are in use or pinned.
            NotLoaded: somebody has unloaded it meanwhile.
        """
        model = self.get(name)
        if model.phase is Phase.UNLOADED:
            self._refuse_without_room(model)
            model.ask(monotonic())
        elif model.phase is Phase.LOADED and model.gate.replicas.some_failed:
            await self._watch.start(model.name, pinned=model.is_pinned, now=True)
        elif model.phase is not Phase.LOADED:
            model.ask(monotonic())  # again, once its processes are gone
        if pin:
            await self.pin(name, pinned=True)
        self._tell()
        while True:
            turn, model = self._turn, self.get(name)
            yield model
            if model.is_settled:
                return
            if model.phase is Phase.UNLOADED and not model.is_asked:
                raise NotLoaded(f"model {name!r} was unloaded while it was loaded")
            await turn.wait()

    async def unload(self, name: str, patience_s: float) -> None:
        """Unload a model, which may finish what it runs within ``patience_s``.

        Raises:
            UnknownResource: the settings have none of that name.
            NotLoaded: it is pinned.
        """
        model = self.get(name)
        if model.is_pinned:
            raise NotLoaded(f"model {name!r} is pinned: unpin it first", reason="MODEL_PINNED")
        model.asked_s = inf
        if model.phase in {Phase.LOADED, Phase.DRAINING}:
            self._drain(model, Why.ASKED, patience_s)
        elif model.phase is Phase.STOPPING:
            model.why = Why.ASKED
        self._tell()
        while model.phase in {Phase.DRAINING, Phase.STOPPING}:
            await self._turn.wait()

    async def pin(self, name: str, *, pinned: bool) -> Model:
        """Keep a model loaded once it is, or no longer.

        Returns:
            The model.

        Raises:
            UnknownResource: the settings have none of that name.
        """
        model = self.get(name)
        model.is_pinned = pinned
        if model.phase is Phase.LOADED:
            await self._watch.start(model.name, pinned=pinned)
        self._tell()
        return model

    def _refuse_without_room(self, model: Model) -> None:
        memory = self._memory()
        match lifecycle.room(model.facts, self._all_facts(), memory):
            case Room.NEVER:
                raise NeverFits(model.name, needed=model.needed, budget=memory.most)
            case Room.LATER:
                raise NoMemory(model.name, needed=model.needed, free=memory.free)
            case Room.NOW | Room.SOON:
                pass

    def _refusal(self, name: ModelName) -> BramleyError | None:
        """Say why a request for a model that is not loaded cannot be served, if it cannot."""
        model = self.by_name.get(name)
        if model is None or model.why is Why.REMOVED:
            return UnknownResource("model", name)
        if model.phase is Phase.LOADED:
            return None
        if model.policy.load == "manual" and not model.is_asked and model.why is not Why.CHANGED:
            return NotLoaded(f"model {name!r} is loaded by an operator alone, and is not now")
        if model.never_fits:
            return NeverFits(name, needed=model.needed, budget=self.ledger.most)
        return None

    def _timeout(self, name: ModelName) -> BramleyError | None:
        """Say what a request has waited for in vain, if that was memory."""
        model = self.by_name[name]
        if model.phase is Phase.UNLOADED:
            return NoMemory(name, needed=model.needed, free=self.ledger.free)
        return None

    # Settings

    def written(self, name: str) -> int:
        """Count the tokens that a model's workers have generated since each began."""
        model = self.by_name.get(ModelName(name))
        views = model.gate.replicas.views if model else ()
        return sum(view.load.completion_tokens for view in views if view.load)

    def apply(self, settings: RouterSettings) -> None:
        """Take new settings: models that differ are drained and loaded again, streams go on."""
        before, self.settings = self.settings, settings
        self.ledger.budget, self.ledger.store = settings.memory_bytes, settings.store_bytes
        for name in map(ModelName, settings.models):
            model = self.by_name.get(name)
            if model is None:
                self._add(name)
                continue
            self._set_policy(model, settings.policies.get(name, ModelPolicy()))
            model.gate.set_rules(settings.classes, settings.running_max.get(name))
            if model.why is Why.REMOVED or _spec(before, name) != _spec(settings, name):
                self._respecify(model)
        for name, model in list(self.by_name.items()):
            if name not in settings.models:
                self._remove(model)
        self._tell()

    def _set_policy(self, model: Model, policy: ModelPolicy) -> None:
        before, model.policy = model.policy, policy
        if policy.pinned == before.pinned:  # what an operator has pinned stays so
            return
        model.is_pinned = policy.pinned
        if model.phase is Phase.LOADED:
            self._tasks.create_task(self._watch.start(model.name, pinned=policy.pinned))

    def _respecify(self, model: Model) -> None:
        model.weights = model.workspace = 0
        if model.phase is Phase.UNLOADED:
            self._define(model)
        elif model.phase is Phase.LOADED:
            self._drain(model, Why.CHANGED)
        elif model.why is Why.REMOVED:
            model.why = Why.CHANGED
        elif model.phase is Phase.DRAINING and model.why in {Why.IDLE, Why.ROOM}:
            model.why = Why.ASKED  # it runs by the old ones: it is not to be kept

    def _remove(self, model: Model) -> None:
        if model.phase is Phase.UNLOADED:
            self._drop(model)
        elif model.phase is Phase.LOADED:
            self._drain(model, Why.REMOVED)
        else:
            model.why = Why.REMOVED
        model.gate.wake()

    def _add(self, name: ModelName) -> None:
        settings = self.settings
        metrics = self._metrics.add_model(name)
        running_max = settings.running_max.get(name)
        gate = Gate(name, settings.classes, running_max, metrics, self._watch.prefixes)
        gate.refusal = lambda: self._refusal(name)
        gate.timeout = lambda: self._timeout(name)
        gate.changed = self._news.set
        policy = settings.policies.get(name, ModelPolicy())
        model = Model(gate, metrics, policy, settings.replicas.get(name, 1), self.ledger)
        self.by_name[name] = model
        self._define(model)
        if policy.load == "start":
            model.ask(monotonic())
        model.metrics.set_state(model.state)

    def _define(self, model: Model) -> None:
        """Have the next load be by the present settings."""
        name = model.name
        model.replicas = self.settings.replicas.get(name, 1)
        model.gate.replicas.clear()
        model.metrics.drop_workers()
        model.metrics.state_bytes = model.policy.state_bytes
        self._watch.define(name, self.settings.models[name], model.replicas)

    def _drop(self, model: Model) -> None:
        del self.by_name[model.name]
        self._watch.forget(model.name)
        self._metrics.drop_model(model.name)
        model.gate.wake()


def _told(view: WorkerView) -> tuple[int, bool, float]:
    """What those who follow a load, and health, hear of a worker."""
    return view.state, view.is_ready, view.load.load_progress if view.load else 0.0


def _spec(settings: RouterSettings, name: ModelName) -> tuple[object, int]:
    return settings.models.get(name), settings.replicas.get(name, 1)
