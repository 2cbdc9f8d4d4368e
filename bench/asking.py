"""A cluster of one model, asked by message, by id, and past the cache; what its store holds."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import grpc

from bramley.bench.cluster import Cluster, Failed, running
from bramley.client import Client, replies
from bramley.client.commands.answer import wait_for
from bramley.client.events import Completion, Gathering
from bramley.client.requests import Message, Options, generate_request
from bramley.client.store import Store
from bramley.common.rpc import CHANNEL_OPTIONS
from bramley.common.wire import unpack_ids
from bramley.protos.v1 import worker_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from bramley.protos.v1.worker_pb2_grpc import WorkerServiceStub

MODEL = "asked"
READY_WITHIN_S = 60.0
STORED_WITHIN_S = 2.0
ANSWER_S = 10.0
# Of fewer new tokens the store is given nothing at an answer's end: they are computed again.
WORTH_STORING = 32
# And at a prompt's end.
WORTH_STORING_OF_PROMPT = 256
_POLL_S = 0.02


class Asking:
    """What can be asked of a cluster until one of its processes is another: then make it anew."""

    def __init__(self, cluster: Cluster) -> None:
        status = cluster.status()
        targets = {process["role"]: process["address"] for process in status["processes"]}
        router: str = status["addresses"]["socket"]
        self._store: str = targets["store"]
        self.client = Client(router)
        self._router = grpc.insecure_channel(router, options=CHANNEL_OPTIONS)
        self._worker = grpc.insecure_channel(targets["worker"], options=CHANNEL_OPTIONS)
        wait_for(self.client, MODEL, READY_WITHIN_S)

    def close(self) -> None:
        """Close all connections."""
        self.client.close()
        self._router.close()
        self._worker.close()

    def ask(self, *, anew: bool = False, **options: Unpack[Options]) -> Completion:
        """Ask for a greedy answer.

        Args:
            anew: take nothing from any cache, and leave nothing there.
            options: of ``Client.complete``.

        Returns:
            It.
        """
        greedy: Options = {**options, "temperature": 0.0}
        request = generate_request(MODEL, None, greedy)
        request.cache.skip_lookup = request.cache.skip_store = anew
        gathering = Gathering()
        with replies.remote_errors():
            for response in RouterServiceStub(self._router).Generate(request):
                if (event := replies.event(response)) is not None:
                    gathering.add(event)
        return gathering.completion()

    def ids(self, messages: Sequence[Message], session_key: str, salt: str = "") -> list[int]:
        """Tell the ids that ``ask`` would use now for a conversation."""
        options: Options = {"messages": messages, "session_key": session_key, "salt": salt}
        request = generate_request(MODEL, None, options)
        asked = worker_pb2.PrepareRequest(request=request)
        with replies.remote_errors():
            told = WorkerServiceStub(self._worker).Prepare(asked, timeout=ANSWER_S)
        return list(unpack_ids(told.token_ids_le))

    def stored(self, ids: Sequence[int], salt: str = "") -> int:
        """Tell how many leading tokens of a prompt the store has, short of the last."""
        told = self.client.explain_cache(MODEL, token_ids=ids, salt=salt, timeout_s=ANSWER_S)
        return sum(told.cached_tokens.values())

    def settle(self, ids: Sequence[int], salt: str = "") -> int:
        """Wait until the store has all of a prompt and its answer, or as much as it is given.

        Workers publish in the background; a client who thinks a moment gives them the time.

        Returns:
            How many tokens are stored.
        """
        give_up_s = time.monotonic() + STORED_WITHIN_S
        while (found := self.stored(ids, salt)) < len(ids) - 1 and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        return found

    def flush(self) -> None:
        """Have all that is stored on the disk.

        Raises:
            Failed: something could not be written.
        """
        if not (told := self.client.flush_cache(timeout_s=ANSWER_S)).ok:
            raise Failed(f"not all that is stored is on the disk: {told}")

    def written_bytes(self) -> int:
        """Tell what the store has written to the disk since it was started."""
        with Store(self._store) as store:
            return store.stats(ANSWER_S).counters.get("written_bytes", 0)


@contextmanager
def asking(cluster: Cluster) -> Generator[Asking]:
    """Connect while the block runs.

    Yields:
        The connections.
    """
    made = Asking(cluster)
    try:
        yield made
    finally:
        made.close()


@dataclass(frozen=True, slots=True)
class Settings:
    """The file of a cluster's settings; what is written is in force after its next start."""

    file: Path
    model: Path

    def write(self, **model: int) -> None:
        """Serve the model with some settings of its own."""
        lines = [f"[models.{MODEL}]", f'path = "{self.model}"']
        lines += [f"{name} = {value}" for name, value in model.items()]
        self.file.write_text("\n".join([*lines, ""]))


@contextmanager
def serving(model: Path, **settings: int) -> Generator[tuple[Cluster, Settings]]:
    """Run a cluster of one model while the block runs.

    Args:
        model: its folder.
        settings: of the model.

    Yields:
        The cluster, ready, and its settings.
    """
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        written = Settings(Path(folder) / "cluster.toml", model.resolve())
        written.write(**settings)
        with running([str(written.file)]) as cluster:
            yield cluster, written


def restart(cluster: Cluster) -> None:
    """Stop a whole cluster, and start it again in the same state folder.

    Raises:
        Failed: something was left.
    """
    if left := cluster.down():
        raise Failed(f"left over: {', '.join(left)}")
    cluster.up()


@contextmanager
def model_folder(given: Path | None) -> Generator[Path]:
    """Tell the folder of a model: the given one, or else SmolLM2, written for the while.

    Yields:
        The folder.
    """
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="bramley-") as made:
        write = [sys.executable, "-P", "-m", "bramley.bench.models", made]
        subprocess.run(write, check=True)  # noqa: S603  needs MLX, which this process does not
        yield Path(made) / "smollm2"


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two sequences have in common from their start."""
    pairs = zip(a, b, strict=False)
    return next((at for at, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
