"""``bramley cache list|pin|unpin|evict|scrub|export|import``, against a real store."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from typing_extensions import override

from bramley.cachestore.process import StoreProcess
from bramley.client import cli
from bramley.client.commands import cached, connection
from bramley.common.rpc import new_server
from bramley.protos.v1 import node_pb2, node_pb2_grpc, worker_pb2, worker_pb2_grpc
from support.core import drop_copies
from support.fake_router import write_state
from support.store import PATIENCE_S, Worker, ids, local_store, settings, worker

Output = pytest.CaptureFixture[str]
Context = grpc.aio.ServicerContext[Any, Any]
MODEL = "smollm2"


class FakeCluster(node_pb2_grpc.NodeServiceServicer, worker_pb2_grpc.WorkerServiceServicer):
    """A node with a store and two workers of one identity, whose namespaces are ``roots``."""

    def __init__(self, store: str) -> None:
        self.address = ""
        self.roots: list[bytes] = []
        self._store = store

    @override
    async def Watch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, request: node_pb2.WatchRequest, context: Context
    ) -> Any:
        running = node_pb2.PROCESS_STATE_RUNNING
        yield node_pb2.WatchResponse(
            processes=[
                node_pb2.Process(role="store", name="store", state=running, address=self._store),
                node_pb2.Process(role="worker", name=MODEL, state=running, address=self.address),
                node_pb2.Process(role="worker", name="twin", state=running, address=self.address),
            ]
        )

    @override
    async def Info(
        self, request: worker_pb2.InfoRequest, context: Context
    ) -> worker_pb2.InfoResponse:
        return worker_pb2.InfoResponse(model=MODEL, cache_roots=self.roots)


class Shell:
    """Runs ``bramley cache`` in a thread of this process, beside the store."""

    def __init__(self, process: StoreProcess, one: Worker, state_dir: Path, out: Output) -> None:
        self.store = process.store
        self.target = process.addresses["socket"]
        self.worker = one
        self._state_dir = state_dir
        self._out = out

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command: its exit code, and what it printed."""
        return await asyncio.to_thread(self._run, *arguments)

    def _run(self, *arguments: str) -> tuple[int, str, str]:
        self._out.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                sys, "argv", ["bramley", "--state-dir", str(self._state_dir), "cache", *arguments]
            )
            for module in (connection, cached):
                patch.setattr(module, "ANSWER_S", PATIENCE_S)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        printed = self._out.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out, printed.err

    async def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """List objects."""
        code, out, _ = await self.run("list", "--json", *arguments)
        assert code == 0
        return json.loads(out)["objects"]


@asynccontextmanager
async def shell(folder: Path, out: Output, *, on_disk: bool = True) -> AsyncGenerator[Shell]:
    """A store with a prompt of a session in two objects, and another one of nobody."""
    chosen = settings(folder=str(folder / "disk") if on_disk else "")
    async with local_store(chosen) as (process, target), worker(target) as one:
        cluster = FakeCluster(target)  # pyright: ignore[reportAbstractUsage]
        server = new_server()
        node_pb2_grpc.add_NodeServiceServicer_to_server(cluster, server)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(cluster, server)
        cluster.address = f"{process.addresses['socket']}.node"
        server.add_insecure_port(cluster.address)
        cluster.roots = [one.root]
        await server.start()
        write_state(folder / "state", router=cluster.address, node=cluster.address)
        try:
            await one.put(ids(256), session_key="talk")
            await one.put(ids(600), first_block=1, session_key="talk")
            await one.put(ids(256, seed=7))
            await one.client.flush()
            yield Shell(process, one, folder / "state", out)
        finally:
            await server.stop(0)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_list_shows_each_object_with_what_it_is(tmp_path: Path, capsys: Output) -> None:
    async with shell(tmp_path, capsys) as sh:
        code, out, _ = await sh.run("list", "--session", "talk")
        assert code == 0
        header, *found = rows(out)
        assert header == [
            *("id", "model", "kind", "tokens", "size", "promise", "tiers", "session", "idle"),
            "pinned",
        ]
        told = [row[1:4] + row[6:9] for row in found]
        assert told == [
            [MODEL, "extent", "0..256", "spilled", "ram+ssd", "talk"],
            [MODEL, "extent", "256..512", "spilled", "ram+ssd", "talk"],
            [MODEL, "tail", "512..600", "spilled", "ram+ssd", "talk"],
        ]
        entries = sh.store.tiers.catalogue.entries
        for row in found:
            assert len(row[0]) >= 8
            assert sum(name.startswith(row[0]) for name in entries) == 1


async def test_a_session_s_name_cannot_command_the_terminal(tmp_path: Path, capsys: Output) -> None:
    async with shell(tmp_path, capsys) as sh:
        await sh.worker.put(ids(256, seed=8), session_key="[red]\x1b[2J\n")
        _, out, _ = await sh.run("list")
        assert "\x1b" not in out
        assert "[red]?[2J?" in out


async def test_list_json_is_one_object_that_pages_through_all(
    tmp_path: Path, capsys: Output
) -> None:
    async with shell(tmp_path, capsys) as sh:
        _, out, _ = await sh.run("list", "--json", "--limit", "3")
        told = json.loads(out)
        assert (len(told["objects"]), told["more"]) == (3, True)
        _, out, _ = await sh.run("list", "--json", "--limit", "4")
        told = json.loads(out)
        assert {one["id"] for one in told["objects"]} == set(sh.store.tiers.catalogue.entries)
        assert not told["more"]
        first = min(told["objects"], key=lambda one: (one["session"] != "talk", one["first_token"]))
        assert first == {
            "id": first["id"],
            "short_id": first["id"][:8],
            "namespace": sh.worker.root.hex(),
            "model": MODEL,
            "kind": "extent",
            "group": "kv",
            "first_token": 0,
            "end_token": 256,
            "bytes": 32768,
            "promise": "spilled",
            "tiers": ["ram", "ssd"],
            "session": "talk",
            "idle_s": first["idle_s"],
            "pinned_s": 0.0,
        }
        _, out, _ = await sh.run("list", "--limit", "2")
        assert out.endswith("... and more than 2: see --limit\n")


async def test_filters_narrow_the_list_and_a_model_s_namespaces_differ_in_salt(
    tmp_path: Path, capsys: Output
) -> None:
    async with shell(tmp_path, capsys) as sh:
        async with worker(sh.target, salt="tenant") as salted:
            await salted.put(ids(256))
        async with worker(sh.target, weights_digest="other") as other:
            await other.put(ids(256))
        assert len(await sh.objects()) == 6
        assert len(await sh.objects("--model", MODEL)) == 5
        assert len(await sh.objects("--model", "twin")) == 5
        assert len(await sh.objects("--session", "talk", "--model", MODEL)) == 3
        found = await sh.objects("--namespace", other.root.hex()[:12])
        assert [one["model"] for one in found] == [""]
        _, out, _ = await sh.run("list", "--namespace", other.root.hex())
        assert rows(out)[1][1] == f"({other.root.hex()[:8]})"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pin"], "ID: name objects"),
        (["pin", "ab", "--session", "talk"], "ID: give either"),
        (["pin", "xyz"], "ID: 'xyz' is no id"),
        (["pin", "0" * 20], "ID: the id of no object begins with"),
        (["pin", "--session", "nobody"], "--session: nothing is stored"),
        (["list", "--model", "nobody"], "--model: no worker of 'nobody' runs"),
        (["evict", "--namespace", "zz", "--yes"], "--namespace: no namespace begins with 'zz'"),
        (["pin", "--session", "talk", "--for", "soon"], "--for: 'soon' is no time"),
        (["pin", "--session", "talk", "--for", "0h"], "--for: '0h' is no time"),
        (["pin", "--session", "talk", "--for", "2d"], "ttl: a pin lasts 86400 s at most"),
        (["import", "/nowhere/file"], "path: No such file"),
        (["export", "/nowhere/file", "--session", "talk"], "path: No such file"),
    ],
)
async def test_bad_input_is_told_by_its_argument(
    tmp_path: Path, capsys: Output, arguments: list[str], words: str
) -> None:
    async with shell(tmp_path, capsys) as sh:
        code, out, err = await sh.run(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith(f"bramley: {words}")
        assert err.count("\n") == 1


async def test_an_ambiguous_id_is_refused(tmp_path: Path, capsys: Output) -> None:
    async with shell(tmp_path, capsys) as sh:
        for seed in range(20, 37):  # seventeen ids have sixteen first digits
            await sh.worker.put(ids(256, seed))
        digits = [one["id"][0] for one in await sh.objects()]
        twice = next(digit for digit in digits if digits.count(digit) > 1)
        code, _, err = await sh.run("pin", twice)
        assert code == 2
        assert "ID: the ids of several objects begin with" in err


async def test_what_is_pinned_stays_until_it_is_unpinned(tmp_path: Path, capsys: Output) -> None:
    async with shell(tmp_path, capsys) as sh:
        last = (await sh.objects("--session", "talk"))[-1]
        code, out, _ = await sh.run("pin", last["short_id"], "--for", "1h")
        assert code == 0
        assert out.startswith("1 object pinned for 1h; ")
        assert out.endswith(" of 16 MiB that may be\n")
        pinned = [one for one in await sh.objects() if one["pinned_s"]]
        assert [one["id"] for one in pinned] == [last["id"]]
        assert 3500 < pinned[0]["pinned_s"] <= 3600
        code, out, err = await sh.run("evict", last["short_id"], "--yes")
        assert (code, out) == (1, "0 objects evicted, 0 B\n")
        assert err == "bramley: 1 object kept: 1 pinned\n"
        code, out, _ = await sh.run("unpin", last["id"])
        assert (code, out) == (0, "1 object pinned no more\n")
        assert not [one for one in await sh.objects() if one["pinned_s"]]


async def test_pins_are_refused_beyond_a_quarter_of_ram(tmp_path: Path, capsys: Output) -> None:
    async with shell(tmp_path, capsys) as sh:
        await sh.worker.put(ids(512, seed=3), part_bytes=4 << 20, session_key="large")
        await sh.worker.put(ids(512, seed=4), part_bytes=4 << 20, session_key="large")
        code, _, _ = await sh.run("pin", "--session", "large")
        assert code == 0
        code, _, err = await sh.run("pin", "--session", "talk")
        assert code == 1
        assert "16777216 may be: 25% of the RAM tier [PINS_FULL]" in err
        assert all(not one["pinned_s"] for one in await sh.objects("--session", "talk"))


async def test_evict_says_what_went_and_why_the_rest_did_not(
    tmp_path: Path, capsys: Output
) -> None:
    async with shell(tmp_path, capsys) as sh:
        match = await sh.worker.match(ids(300))
        assert match is not None
        lease = await sh.worker.client.acquire(match)
        assert lease is not None
        with lease:  # the first two objects
            code, out, err = await sh.run("evict", "--session", "talk", "--yes")
        assert (code, out) == (1, "1 object evicted, 32 KiB\n")
        assert err == "bramley: 2 objects kept: 2 in use\n"
        await sh.worker.idle()
        ends = {one["end_token"]: one for one in await sh.objects("--session", "talk")}
        code, _, err = await sh.run("evict", ends[256]["id"], "--yes")
        assert err == "bramley: 1 object kept: 1 followed by others that stay\n"
        code, out, _ = await sh.run("evict", "--all", "--yes")
        assert (code, out) == (0, "3 objects evicted, 96 KiB\n")
        assert await sh.objects() == []


async def test_evict_asks_first(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, capsys) as sh:
        for answer, code in (("n\n", 1), ("y\n", 0)):
            monkeypatch.setattr("sys.stdin", io.StringIO(answer))
            ended, _, err = await sh.run("evict", "--all")
            assert ended == code
            assert "evict 4 objects, 128 KiB?" in err


async def test_scrub_proves_the_files_and_sets_damaged_ones_aside(
    tmp_path: Path, capsys: Output
) -> None:
    async with shell(tmp_path, capsys) as sh:
        code, out, _ = await sh.run("scrub")
        assert (code, out) == (0, "4 files are whole\n")
        file = sorted((tmp_path / "disk").rglob("*.kvx"))[0]
        content = bytearray(file.read_bytes())
        content[20_000] ^= 1
        file.write_bytes(content)
        code, _, err = await sh.run("scrub")
        assert code == 1
        assert err == "bramley: 1 of 4 files were damaged, and are set aside\n"
        await sh.worker.client.flush()  # from RAM, where it is whole
        assert (await sh.run("scrub"))[:2] == (0, "4 files are whole\n")
        drop_copies(sh.store)
        file.unlink()
        code, _, err = await sh.run("scrub")
        assert (code, err) == (1, "bramley: 1 of 4 files are not on the disk any more\n")
        assert len(await sh.objects()) == 3


@pytest.mark.parametrize("command", [("export", "-", "--all"), ("import", "-")])
async def test_no_archive_comes_or_goes_by_a_pipe(
    tmp_path: Path, capsys: Output, command: tuple[str, ...]
) -> None:
    async with shell(tmp_path, capsys) as sh:
        code, out, err = await sh.run(*command)
        assert (code, out) == (2, "")
        assert "FILE: is the name of a file" in err


async def test_without_a_disk_tier_everything_but_scrub_works_in_ram(
    tmp_path: Path, capsys: Output
) -> None:
    async with shell(tmp_path, capsys, on_disk=False) as sh:
        code, out, _ = await sh.run("scrub")
        assert (code, out) == (0, "there is no disk tier: nothing to scrub\n")
        assert {one["promise"] for one in await sh.objects()} == {"held"}
        code, out, _ = await sh.run("verify")
        assert (code, out) == (0, "4 objects are whole\n")
        file = tmp_path / "all.tar"
        code, out, _ = await sh.run("export", str(file), "--all")
        assert code == 0
        assert out.startswith(f"4 objects in {file}, ")
        assert (await sh.run("evict", "--all", "--yes"))[0] == 0
        code, out, _ = await sh.run("import", str(file))
        assert code == 0
        assert out.splitlines() == [
            "4 objects taken in, 128 KiB; 0 were there already",
            "4 objects of them in RAM alone: nothing is written now",
        ]
        assert await sh.worker.read(ids(601)) == 600


async def test_export_and_import_tell_what_they_did(tmp_path: Path, capsys: Output) -> None:
    async with shell(tmp_path, capsys) as sh:
        file = tmp_path / "talk.tar"
        code, out, _ = await sh.run("export", str(file), "--session", "talk")
        assert (code, out.split(",")[0]) == (0, f"3 objects in {file}")
        code, _, err = await sh.run("export", str(file), "--session", "talk")
        assert code == 1
        assert "is there already" in err
        code, out, _ = await sh.run("import", str(file))
        assert (code, out) == (0, "0 objects taken in, 0 B; 3 were there already\n")
        file.write_bytes(file.read_bytes()[:-1])
        code, out, err = await sh.run("import", str(file))
        assert (code, out) == (2, "")
        assert err.startswith("bramley: path: it is cut short")
        assert err.endswith("[ARTIFACT_DAMAGED]\n")
