"""What browsers are sent, what the page is told, and whom of them the HTTP side answers."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from bramley.protos.v1 import cachestore_pb2, node_pb2
from bramley.router import pages
from support.fake_store import storing
from support.gateway import HELLO, Site, error_of, site
from support.http import Answer, fetch, parsed, scrape, series
from support.routing import ask, until
from support.tokens import Tokens

CHAT = "/v1/chat/completions"
FILES = sorted(file.name for file in pages.FOLDER.iterdir())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncGenerator[Site]:
    async with site() as one:
        yield one


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": HELLO, "max_tokens": 2, **fields}


async def told(one: Site, **headers: str) -> Any:
    answer = await fetch(one.address, "/status.json", headers=headers)
    assert answer.status == 200, answer
    return json.loads(answer.body)


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
async def test_files_are_served_under_a_policy_that_lets_nothing_in(
    served: Site, path: str
) -> None:
    answer = await fetch(served.address, path)
    assert answer.status == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


async def test_nothing_else_is_served_of_the_folder(served: Site) -> None:
    for name in ("", "nothing.js", "../pages.py", "..%2fpages.py", "%2e%2e/pages.py", "page.css/x"):
        assert (await fetch(served.address, f"/page/{name}")).status == 404
    assert (await fetch(served.address, "/", method="POST")).status == 405


def test_files_name_only_files_that_there_are_and_no_other_place() -> None:
    for name in FILES:
        text = (pages.FOLDER / name).read_text()
        named = re.findall(r"""(?:src|href)="/page/([^"]+)"|from "\./([^"]+)\"""", text)
        assert {a or b for a, b in named} <= set(FILES), name
        # The policy would keep all of these from working.
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\bstyle=|\son\w+=|<script>", text)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


async def test_the_page_is_told_how_models_are_and_what_they_did(served: Site) -> None:
    before = (await told(served))["models"][0]
    await served.post(CHAT, chat(max_tokens=5))
    status = await told(served)
    (model,) = status["models"]
    assert (model["name"], model["state"], model["running"]) == ("fake", "READY", 0)
    assert model["context_tokens"] == 4096
    assert model["generated_tokens"] - before["generated_tokens"] == 5
    assert model["cached_tokens"] == {"parked": 0, "ram": 0, "ssd": 0}
    assert (status["running"], status["waiting"], status["draining"]) == (0, 0, False)
    assert status["memory"]["reserved_bytes"] > 0
    assert status["store"] is None


async def test_tokens_are_told_of_while_an_answer_runs(served: Site) -> None:
    worker = served.bench.node.workers["fake"]
    view = served.bench.router.models
    before = view.written("fake")
    call = served.bench.stub.Generate(ask(labels={"fake.stall": "delta"}))
    await until(lambda: worker.running == 1 and view.written("fake") > before)
    (model,) = (await told(served))["models"]
    assert model["running"] == 1
    assert model["worker_tokens"] > before
    call.cancel()


async def test_with_tokens_the_page_loads_and_its_figures_take_a_key(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    mine, theirs = dict(tokens.add("ops")), dict(tokens.add("team", 'models = ["other"]'))
    async with site(auth=tokens.settings) as one:
        assert (await fetch(one.address, "/")).status == 200
        assert (await fetch(one.address, "/page/main.js")).status == 200
        refused = await fetch(one.address, "/status.json")
        assert (refused.status, error_of(refused)["code"]) == (401, "invalid_api_key")
        assert [model["name"] for model in (await told(one, **mine))["models"]] == ["fake"]
        limited = await told(one, **theirs)
        assert (limited["models"], limited["store"]) == ([], None)
        assert limited["memory"]["reserved_bytes"] == 0


async def test_the_store_s_figures_are_told_and_are_not_waited_for_when_it_is_gone() -> None:
    gauges = {"ram_bytes": 5, "ram_budget_bytes": 10, "ssd_is_on": 1, "ssd_bytes": 7}
    with storing() as (store, address):
        store.stats = cachestore_pb2.StatsResponse(
            gauges=gauges, counters={"matches": 4, "match_hits": 3}
        )
        async with site() as one:
            running = node_pb2.PROCESS_STATE_RUNNING
            process = node_pb2.Process(
                role="store", name="store", state=running, epoch=1, address=address
            )
            one.bench.node.tell(process)
            await until(lambda: bool(one.bench.router.watch.store))
            assert (await told(one))["store"] == {
                "ram_bytes": 5,
                "ram_budget_bytes": 10,
                "has_ssd": True,
                "ssd_bytes": 7,
                "ssd_budget_bytes": 0,
                "lookups": 4,
                "hits": 3,
            }
            one.bench.node.tell(
                node_pb2.Process(
                    role="store", name="store", state=running, epoch=2, address="unix:/nowhere"
                )
            )
            await until(lambda: one.bench.router.watch.store == "unix:/nowhere")
            assert (await told(one))["store"] is None


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/healthz", CHAT])
async def test_a_name_that_a_page_pointed_at_loopback_is_not_served(
    served: Site, path: str
) -> None:
    answer = await ask_as(served, path, host="evil.example:7411")
    assert (answer.status, answer.headers["connection"]) == (421, "close")
    assert b"router.http_hosts" in answer.body
    if path.startswith("/v1/"):
        assert error_of(answer)["code"] == "wrong_host"


async def test_a_page_from_elsewhere_may_not_use_a_cluster_without_keys(served: Site) -> None:
    prepared = served.bench.node.workers["fake"].prepared
    before = len(prepared)
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        answer = await served.post(CHAT, chat(), origin=origin)
        assert (answer.status, error_of(answer)["code"]) == (403, "foreign_origin")
        asked = {"origin": origin, "access-control-request-method": "POST"}
        answer = await fetch(served.address, CHAT, method="OPTIONS", headers=asked)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert len(prepared) == before
    own = await served.post(CHAT, chat(), origin=f"http://{served.address}")
    assert own.status == 200


async def test_hosts_of_the_settings_are_served_and_may_change() -> None:
    async with site(http_hosts=["models.example"]) as one:
        assert (await ask_as(one, "/healthz", host="Models.example")).status == 200
        assert (await one.post(CHAT, chat(), origin="https://models.example")).status == 200
        settings = msgspec.structs.replace(one.bench.router._settings, http_hosts=[])  # pyright: ignore[reportPrivateUsage]
        one.bench.node.reload(settings)
        await until(lambda: one.bench.router._settings == settings)  # pyright: ignore[reportPrivateUsage]
        assert (await ask_as(one, "/healthz", host="models.example")).status == 421


async def ask_as(one: Site, path: str, *, host: str) -> Answer:
    """Ask for a path by another name than the router's own."""
    name, _, port = one.address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    told = parsed(await reader.read())
    writer.close()
    return told


async def test_requests_are_counted_by_route_and_class_of_status() -> None:
    async with site() as one:
        await one.post(CHAT, chat())
        await one.post(CHAT, {})
        await fetch(one.address, "/v1/models/fake")
        for path in ("/nowhere", "/v1/nowhere", "/page/nothing", "/elsewhere"):
            await fetch(one.address, path)
        _, writer = await asyncio.open_connection(*one.address.split(":"))
        found = await scrape(one.address)
        writer.close()
        for path, status, count in (
            (CHAT, "2xx", 1),
            (CHAT, "4xx", 1),
            ("/v1/models/{model}", "2xx", 1),
            ("/page/{name}", "4xx", 1),
            ("other", "4xx", 3),
        ):
            assert found[series("http_requests_total", path=path, status=status)] == count, path
        assert found[series("http_first_byte_seconds_count", path=CHAT)] == 2
        assert found[series("http_body_bytes")] == 0
        assert found[series("http_connections")] == 2


async def test_a_client_that_left_before_its_answer_is_counted_as_none() -> None:
    async with site() as one:
        worker = one.bench.node.workers["fake"]
        leaving = asyncio.create_task(one.post(CHAT, chat(metadata={"fake.stall": "started"})))
        await until(lambda: worker.running == 1)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await until(lambda: worker.running == 0)
        counted = series("http_requests_total", path=CHAT, status="none")
        async with asyncio.timeout(10):
            while (await scrape(one.address)).get(counted) != 1:
                pass
