"""Two systems that stream text of one model: our cluster, and ``mlx_lm.server``."""

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from bramley.bench.cluster import Cluster, Failed, running
from bramley.client import Client
from bramley.client.events import Delta

MODEL = "smollm2"
READY_WITHIN_S = 120.0
OUR_BLAS = ("bramley.bench.peer_server",)
AS_INSTALLED = ("mlx_lm", "server")
_POLL_S = 0.1


class System(Protocol):
    """A server of one model."""

    name: str

    def stream(self, prompt: str, max_tokens: int) -> Generator[int]:
        """Ask for a greedy answer: how many tokens came, whenever some come."""
        ...


class OurCluster:
    """Reached through the router, by our client.

    Attributes:
        pids: of its processes.
    """

    name = "bramley"

    def __init__(self, cluster: Cluster) -> None:
        self._target = cluster.status()["addresses"]["socket"]
        self.pids = cluster.pids()

    def stream(self, prompt: str, max_tokens: int) -> Generator[int]:
        """Stream one answer."""
        with Client(self._target) as client:
            events = client.generate(
                MODEL, prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True
            )
            with closing(events):
                for event in events:
                    if isinstance(event, Delta) and event.token_ids:
                        yield len(event.token_ids)


class PeerServer:
    """Reached over HTTP; each of its chunks is a token."""

    name = "mlx_lm.server"

    def __init__(self, port: int) -> None:
        self._port = port

    def stream(self, prompt: str, max_tokens: int) -> Generator[int]:
        """Stream one answer."""
        asked = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(asked), headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise Failed(f"{self.name} answered {response.status}")
            for line in response:
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("text"):
                    yield 1
        finally:
            connection.close()

    def is_up(self) -> bool:
        """Whether it answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def our_cluster(model: Path, folder: Path) -> Generator[OurCluster]:
    """Run a cluster for the length of the block.

    Args:
        model: its folder.
        folder: for the cluster's settings.

    Yields:
        The cluster, ready.
    """
    settings = folder / "cluster.toml"
    settings.write_text(f'[models.{MODEL}]\npath = "{model}"\n')
    with running([str(settings)]) as cluster:
        yield OurCluster(cluster)


@contextmanager
def peer_server(model: Path) -> Generator[PeerServer]:
    """Run ``mlx_lm.server`` for the length of the block.

    Yields:
        The server, ready.

    Raises:
        Failed: it does not come up.
    """
    process = subprocess.Popen(peer_command(model, port := free_port()), stderr=subprocess.DEVNULL)  # noqa: S603
    server = PeerServer(port)
    try:
        until_up(server, process)
        yield server
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Find a port that nobody listens on now."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return probe.getsockname()[1]


def peer_command(model: Path, port: int, module: Sequence[str] = OUR_BLAS) -> list[str]:
    """Say how ``mlx_lm.server`` is started: on the BLAS that ours has, or ``AS_INSTALLED``."""
    command = [sys.executable, "-P", "-m", *module, "--model", str(model)]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--log-level", "ERROR"]


def until_up(server: PeerServer, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a server answers.

    Raises:
        Failed: it does not come up.
    """
    give_up_s = time.monotonic() + READY_WITHIN_S
    while not server.is_up():
        if process.poll() is not None or time.monotonic() > give_up_s:
            raise Failed(f"{server.name} did not come up")
        time.sleep(_POLL_S)
