"""A guarded cluster in processes of its own: it serves whom it should, and no secret is written."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import psutil
import pytest

from bramley.client import AsyncClient
from bramley.client.login import Login
from bramley.common.auth import new_token
from bramley.common.status import RemoteError
from support import fake_worker
from support.certificates import Authority
from support.cluster import Cluster
from support.http import fetch
from support.tokens import Tokens


class Guarded:
    """A cluster behind TLS and tokens, with a fake worker."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.tokens = Tokens(folder)
        self.tokens.add("alice", 'models = ["fake"]')
        self.tokens.add("root", "admin = true")
        tls = self.authority.server()
        worker = json.dumps([sys.executable, str(Path(fake_worker.__file__))])
        self.cluster = Cluster(
            folder,
            f"""
            [router.tls]
            certificate = {json.dumps(Path(tls.certificate).name)}
            key = {json.dumps(Path(tls.key).name)}
            [router.auth]
            tokens_file = "tokens.toml"
            [store]
            enabled = false
            [node]
            worker_command = {worker}
            [models.fake]
            path = "."
            """,
        )

    @property
    def target(self) -> str:
        """Where clients call."""
        return self.cluster.node.addresses["grpc"]

    def login(self, token: str) -> Login:
        """What a client shows that has a token."""
        return Login(ca=self.authority.file, token=token)

    async def metrics(self, token: str) -> int:
        """Scrape with a token: the status code."""
        context = ssl.create_default_context(cafile=self.authority.file)
        address = self.cluster.node.addresses["http"]
        headers = {"authorization": f"Bearer {token}"}
        return (await fetch(address, "/metrics", headers=headers, tls=context)).status

    def written(self) -> str:
        """All that the cluster has written, and what each of its processes was started with."""
        folder = self.cluster.folder
        files = [folder / "supervisor.log"]
        files += [path for path in (folder / "state").rglob("*") if path.is_file()]
        texts = [path.read_text(errors="replace") for path in files]
        pids = [*self.cluster.children().values(), self.cluster.supervisor.pid]
        return "\n".join([*texts, *(" ".join(psutil.Process(pid).cmdline()) for pid in pids)])


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncGenerator[Guarded]:
    made = Guarded(tmp_path)
    await made.cluster.up()
    await made.cluster.running("worker", "fake")
    yield made
    await made.cluster.close()


async def bramley(*arguments: str) -> str:
    """Run a command, and return all that it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bramley.client", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return out.decode()


async def refusals(client: AsyncClient) -> list[str]:
    """Call what goes wrong in many ways: the reasons."""
    reasons: list[str] = []
    for call in (
        client.complete("fake", "x", labels={"fake.bad_field": "prepare"}),
        client.complete("fake", "x", labels={"fake.die": "started"}, timeout_s=10),
        client.complete("other", "x"),
        client.complete("fake", "x", request_id="x" * 300),
        client.drain(),
    ):
        try:
            await call
        except RemoteError as error:
            reasons.append(error.reason)
    return reasons


async def test_no_token_is_ever_written_nor_told(guarded: Guarded) -> None:
    tokens = guarded.tokens
    wrong = new_token()
    secrets = {**tokens.of, "wrong": wrong}
    async with AsyncClient(guarded.target, **guarded.login(tokens.of["alice"])) as client:
        answer = await client.complete("fake", PROMPT, max_tokens=2, timeout_s=30)
        assert answer.text == "0 1 "
        reasons = await refusals(client)
        assert reasons.count("PERMISSION_DENIED") == 2
        assert len(reasons) == 5
    async with AsyncClient(guarded.target, **guarded.login(wrong)) as client:
        assert set(await refusals(client)) == {"UNAUTHENTICATED"}
    assert [await guarded.metrics(token) for token in (tokens.of["root"], wrong)] == [200, 401]
    tokens.write("broken")
    async with AsyncClient(guarded.target, **guarded.login(tokens.of["root"])) as client:
        assert (await client.status()).models
    state = str(guarded.cluster.state_dir)
    said = [await bramley("--state-dir", state, *command) for command in COMMANDS]
    everything = "\n".join([*said, guarded.written()])
    assert "refused at the door" in everything  # it looks where lines are
    assert "a changed file is not used" in everything
    assert [name for name, token in secrets.items() if token in everything] == []
    assert PROMPT not in everything


PROMPT = "what nobody else should read"
COMMANDS = (["status"], ["status", "--json"], ["models", "--json"])


async def test_the_node_s_own_user_needs_no_token(guarded: Guarded) -> None:
    said = await bramley("--state-dir", str(guarded.cluster.state_dir), "models", "--json")
    assert [model["name"] for model in json.loads(said)] == ["fake"]


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("router.grpc", ["--grpc", "0.0.0.0:0"]),
        ("router.http", ["--http", "0.0.0.0:0"]),
        ("store.http", ["--set", "store.http='0.0.0.0:0'"]),
    ],
)
async def test_up_refuses_to_be_open_to_the_network(
    tmp_path: Path, key: str, arguments: list[str]
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bramley.client", "--state-dir", str(tmp_path / "state"), "up"),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    (line,) = said.decode().splitlines()
    assert line.startswith(f"bramley: {key}: '0.0.0.0:0' is beyond loopback")
    assert not (tmp_path / "state").exists()
