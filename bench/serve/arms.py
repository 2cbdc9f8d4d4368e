"""Servers under measurement: how each is started, flushed, killed, stopped, and asked."""

import http.client
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

import msgspec

from bramley.bench import asking, systems
from bramley.bench.cluster import Cluster, Failed
from bramley.bench.serve import dialects, memory
from bramley.bench.serve.dialects import Chat, Clock, Dialect, GoOn, Grpc, to_the_end
from bramley.bench.serve.record import Request
from bramley.bench.serve.workload import Asked
from bramley.client import Client
from bramley.client.commands.answer import wait_for
from bramley.common.errors import InvalidRequest
from bramley.common.status import RemoteError

STOP_S = 30.0
FLUSH_S = 120.0
ANSWER_S = 10.0
LOG_CHARACTERS = 400
OURS, OVER_HTTP, SERIAL = "bramley", "bramley-http", "bramley-serial"
PEER, PEER_AS_INSTALLED = "mlx_lm.server", "mlx_lm.server-as-installed"
KINDS = (OURS, OVER_HTTP, SERIAL, PEER, PEER_AS_INSTALLED)
URL = "url"


class NotApplicable(Exception):
    """The server has no way to do what a phase needs; says why."""


class Server(Protocol):
    """A server of one model.

    Attributes:
        name: in the record and on the screen.
        kind: of server.
        command: that starts it; empty until it was started, and of one that ran before.
        settings: that differ from its defaults.
        packages: whose versions matter to it.
        is_ours: whether we start and end it.
    """

    name: str
    kind: str
    command: list[str]
    settings: dict[str, Any]
    packages: Sequence[str]
    is_ours: bool

    def start(self) -> None:
        """Start it with nothing in its caches, and return once it serves."""
        ...

    def restart(self) -> float:
        """Stop it with care for what it has stored, and start it again.

        Returns:
            Seconds that the start took.

        Raises:
            NotApplicable: it is not ours.
        """
        ...

    def kill(self) -> None:
        """Send SIGKILL to what computes; what nobody else starts again is started again here.

        Raises:
            NotApplicable: it is not ours.
        """
        ...

    def revive(self) -> None:
        """Start it again if it has died; what revives by itself is left alone."""
        ...

    def stop(self) -> None:
        """End it; nothing is left. Of one that does not run, nothing happens."""
        ...

    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        """Ask, and record what came of it."""
        ...

    def memory(self, shared: bool) -> memory.Used:
        """Look what its processes use now, on request with what they share; nothing if unknown."""
        ...


class Bramley:
    """Our cluster, asked through its router.

    Args:
        model: its folder.
        timeout_s: of an answer.
        kind: OURS; OVER_HTTP, asked through the router's gateway; or SERIAL, one request at a time.
    """

    packages: Sequence[str] = ("bramley", "mlx", "mlx-lm", "grpcio", "transformers", "mkl")
    is_ours = True

    def __init__(self, model: Path, timeout_s: float, kind: str = OURS) -> None:
        self.name = self.kind = kind
        self.command: list[str] = []
        self.settings: dict[str, Any] = {"max_rows": 1} if kind == SERIAL else {}
        self._model, self._timeout_s = model, timeout_s
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._cluster: Cluster | None = None
        self._target = ""
        self._dialect: Dialect | None = None
        self._pids: list[int] = []
        self._worker = 0
        self._watching: Client | None = None

    def start(self) -> None:
        """See ``Server``."""
        self._folder = tempfile.TemporaryDirectory(prefix="bramley-")
        folder = Path(self._folder.name)
        settings = asking.Settings(folder / "cluster.toml", self._model)
        settings.write(**self.settings)
        self.command = ["bramley", "up", "--detach", "cluster.toml"]
        self._cluster = Cluster(folder / "state", [str(settings.file)])
        self._cluster.up()
        self._find()

    def _running(self) -> Cluster:
        assert self._cluster is not None, "not started"
        return self._cluster

    def _find(self) -> None:
        status = self._running().status()
        self._target = status["addresses"]["socket"]
        if self.kind == OVER_HTTP:
            url = f"http://{status['addresses']['http']}"
            self._dialect = Chat(url, asking.MODEL, self._timeout_s, "prompt_cache_key")
        else:
            self._dialect = Grpc(self._target, asking.MODEL, self._timeout_s)
        self._unwatch()
        self._watching = Client(self._target)
        pids = {each["role"]: each["pid"] for each in status["processes"] if each["pid"]}
        self._pids, self._worker = [*pids.values()], pids.get("worker", 0)

    def _unwatch(self) -> None:
        client, self._watching = self._watching, None
        if client is not None:
            client.close()

    def restart(self) -> float:
        """See ``Server``."""
        with Client(self._target) as client:
            if not (told := client.flush_cache(timeout_s=FLUSH_S)).ok:
                raise Failed(f"not all that is stored is on the disk: {told}")
        if left := self._running().down():
            raise Failed(f"left over: {', '.join(left)}")
        start_s = time.monotonic()
        self._running().up()
        took_s = time.monotonic() - start_s
        self._find()
        return took_s

    def kill(self) -> None:
        """See ``Server``."""
        if not self._worker:
            raise Failed("no worker runs that could be killed")
        os.kill(self._worker, signal.SIGKILL)
        self._worker = 0

    def revive(self) -> None:
        """See ``Server``."""
        with Client(self._target) as client:
            wait_for(client, asking.MODEL, asking.READY_WITHIN_S)
        self._find()

    def stop(self) -> None:
        """See ``Server``."""
        cluster, folder = self._cluster, self._folder
        self._cluster = self._folder = None
        self._unwatch()
        try:
            if cluster is not None and (left := cluster.down()):
                raise Failed(f"left over: {', '.join(left)}")
        finally:
            if folder is not None:
                folder.cleanup()

    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        """See ``Server``."""
        assert self._dialect is not None, "not started"
        return self._dialect.ask(asked, now, go_on)

    def memory(self, shared: bool) -> memory.Used:
        """See ``Server``."""
        now = memory.used(self._pids, shared=shared)
        client = self._watching
        try:
            told = client.status(timeout_s=ANSWER_S).models if client else []
        except (RemoteError, ValueError):  # between two lives; gRPC's own word of a closed channel
            return now
        return replace(now, model=sum(each.memory_bytes for each in told))


class Peer:
    """``mlx_lm.server``; whoever kills it starts it again at once.

    Args:
        model: its folder.
        timeout_s: of an answer.
        as_installed: on MLX's own BLAS instead of ours.
    """

    packages: Sequence[str] = ("mlx-lm", "mlx", "transformers", "mkl")
    is_ours = True

    def __init__(self, model: Path, timeout_s: float, *, as_installed: bool = False) -> None:
        self.name = self.kind = PEER_AS_INSTALLED if as_installed else PEER
        self.command: list[str] = []
        self.settings: dict[str, Any] = {}
        self._module = systems.AS_INSTALLED if as_installed else systems.OUR_BLAS
        self._model, self._timeout_s = model, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._dialect: Dialect | None = None

    def start(self) -> None:
        """See ``Server``."""
        port = systems.free_port()
        self.command = systems.peer_command(self._model, port, self._module)
        self._dialect = Chat(f"http://127.0.0.1:{port}", "default_model", self._timeout_s)
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(  # noqa: S603
                self.command, stdout=subprocess.DEVNULL, stderr=log
            )
            try:
                systems.until_up(systems.PeerServer(port), self._process)
            except Failed as error:
                self.stop()
                log.seek(0)
                told = log.read().decode(errors="replace")[-LOG_CHARACTERS:].strip()
                raise Failed(f"{error}: {told}") from error

    def restart(self) -> float:
        """See ``Server``."""
        self.stop()
        start_s = time.monotonic()
        self.start()
        return time.monotonic() - start_s

    def kill(self) -> None:
        """See ``Server``."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait()
        self.start()

    def revive(self) -> None:
        """See ``Server``."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def stop(self) -> None:
        """See ``Server``."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        """See ``Server``."""
        assert self._dialect is not None, "not started"
        return self._dialect.ask(asked, now, go_on)

    def memory(self, shared: bool) -> memory.Used:
        """See ``Server``."""
        process = self._process
        return memory.Used() if process is None else memory.used([process.pid], shared=shared)


class Elsewhere:
    """A server that somebody else runs, at an address.

    Args:
        url: of it; the name of the model may follow behind ``#``.
        timeout_s: of an answer.
    """

    packages: Sequence[str] = ()
    is_ours = False

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = _address(url)
        self.kind = URL
        self.command: list[str] = []
        self.settings: dict[str, Any] = {}
        self._url, self._timeout_s = parts._replace(fragment="").geturl(), timeout_s
        self._model = parts.fragment
        self.name = self._url

    def start(self) -> None:
        """See ``Server``; it runs, so that only its model's name is asked for."""
        self._model = self._model or first_model(self._url)
        self.settings = {"model": self._model}

    def restart(self) -> float:
        """See ``Server``."""
        raise NotApplicable("the server is run by somebody else")

    def kill(self) -> None:
        """See ``Server``."""
        raise NotApplicable("the server is run by somebody else")

    def revive(self) -> None:
        """See ``Server``."""

    def stop(self) -> None:
        """See ``Server``."""

    def ask(self, asked: Asked, now: Clock, go_on: GoOn = to_the_end) -> Request:
        """See ``Server``."""
        return Chat(self._url, self._model, self._timeout_s).ask(asked, now, go_on)

    def memory(self, shared: bool) -> memory.Used:
        """See ``Server``."""
        return memory.Used()


def _address(url: str) -> SplitResult:
    with suppress(ValueError):  # a port that is no number
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return parts
    raise InvalidRequest("--arms", f"{url!r} is no address of an HTTP server")


class _Named(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Named]


def first_model(url: str) -> str:
    """Ask a server for the first of its models.

    Returns:
        Its name.

    Raises:
        Failed: it tells none.
    """
    opened = dialects.connection(url, ANSWER_S)
    try:
        opened.request("GET", dialects.path_of(url, "/models"))
        told = msgspec.json.decode(opened.getresponse().read(), type=_Models)
        return told.data[0].id
    except (OSError, http.client.HTTPException, msgspec.DecodeError, IndexError) as error:
        raise Failed(f"{url} tells no model: {error}") from error
    finally:
        opened.close()


def check(kind: str) -> None:
    """See that the command line names a server that can be.

    Raises:
        InvalidRequest: there is no such kind, or no such address.
    """
    if kind.startswith("url="):
        Elsewhere(kind.removeprefix("url="), ANSWER_S)
    elif kind not in KINDS:
        raise InvalidRequest("--arms", f"{kind!r} is none that is known")


def make(kind: str, model: Path | None, timeout_s: float) -> Server:
    """Make a server from what the command line calls it; nothing is started.

    Args:
        kind: one of ``KINDS``, or ``url=http://...``.
        model: its folder; None where there is no need of one.
        timeout_s: of an answer.

    Returns:
        The server.

    Raises:
        InvalidRequest: it cannot be, or needs a model.
    """
    check(kind)
    if kind.startswith("url="):
        return Elsewhere(kind.removeprefix("url="), timeout_s)
    if model is None:
        raise InvalidRequest("--model", f"is needed for {kind}")
    if kind in {OURS, OVER_HTTP, SERIAL}:
        return Bramley(model, timeout_s, kind)
    return Peer(model, timeout_s, as_installed=kind == PEER_AS_INSTALLED)


def name_apart(servers: Sequence[Server]) -> None:
    """Number those that have a name in common, from the second on."""
    had: Counter[str] = Counter()
    for server in servers:
        had[server.name] += 1
        if had[server.name] > 1:
            server.name = f"{server.name} {had[server.name]}"
