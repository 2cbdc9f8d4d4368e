"""What the router says over HTTP: alive, ready or why not, and its metrics."""

import asyncio
import contextlib
import json
import ssl
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics import parser

from bramley.common.errors import CannotListen, SettingsError, Unauthenticated
from bramley.common.ids import ModelName
from bramley.common.tls import Certificates
from bramley.protos.v1 import router_pb2, types_pb2
from bramley.router import http
from bramley.router.access import Identity
from bramley.router.classes import Classes, DefaultRule
from bramley.router.policy import ModelPolicy
from bramley.router.process import Router
from bramley.router.readiness import readiness
from bramley.router.settings import RouterSettings
from support.certificates import Authority
from support.http import fetch
from support.routing import Bench, ask, collect, read_until, routed, until
from support.script import Script

HTTP = "127.0.0.1:0"
STALLED = {"fake.stall": "started"}


async def ready(bench: Bench) -> tuple[int, dict[str, Any]]:
    answer = await fetch(bench.router.addresses["http"], "/readyz")
    assert answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(answer.body)


async def connected(bench: Bench) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = bench.router.addresses["http"].rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_an_idle_router_is_alive_and_ready() -> None:
    async with routed(http=HTTP) as bench:
        answer = await fetch(bench.router.addresses["http"], "/healthz")
        assert (answer.status, answer.body) == (200, b"ok\n")
        status, told = await ready(bench)
        assert (status, told["ready"], told["status"]) == (200, True, "ready")
        (model,) = told["models"].values()
        assert model == {
            "state": "READY",
            "reason": "",
            "load": "start",
            "progress": 1.0,
            "running": 0,
            "waiting": 0,
            "full": False,
        }


async def test_a_loading_model_is_waited_for() -> None:
    async with routed(Script(load_s=-1), is_ready=False, http=HTTP) as bench:
        await bench.state(types_pb2.MODEL_STATE_LOADING)
        status, told = await ready(bench)
        assert (status, told["ready"], told["status"]) == (503, False, "loading")
        assert told["models"]["fake"]["state"] == "LOADING"
        assert (await fetch(bench.router.addresses["http"], "/healthz")).status == 200


async def test_a_model_on_demand_is_not_waited_for() -> None:
    policies = {"fake": ModelPolicy(load="demand")}
    async with routed(is_ready=False, http=HTTP, policies=policies) as bench:
        status, told = await ready(bench)
        assert (status, told["status"]) == (200, "ready")
        assert told["models"]["fake"]["load"] == "demand"


async def test_a_draining_router_is_not_ready_and_alive() -> None:
    async with routed(http=HTTP) as bench:
        call = bench.stub.Generate(ask(labels=STALLED))
        await read_until(call, "started")
        draining = asyncio.create_task(bench.router.drain())
        await bench.router.server.drain_begun.wait()
        status, told = await ready(bench)
        assert (status, told["status"]) == (503, "draining")
        assert told["models"]["fake"]["running"] == 1
        assert (await fetch(bench.router.addresses["http"], "/healthz")).status == 200
        call.cancel()
        await draining


async def test_full_queues_are_told_from_loading_and_end() -> None:
    rules = Classes(default=DefaultRule(queue_max=1))
    async with routed(Script(max_rows=1), http=HTTP, classes=rules) as bench:
        gate = bench.router.models.gates[ModelName("fake")]
        running = bench.stub.Generate(ask(labels=STALLED))
        await read_until(running, "started")
        waiting = bench.stub.Generate(ask())
        await until(lambda: gate.waiting_count == 1)
        status, told = await ready(bench)
        assert (status, told["status"]) == (503, "exhausted")
        assert told["models"]["fake"]["full"]
        running.cancel()
        await collect(waiting)
        status, told = await ready(bench)
        assert (status, told["status"]) == (200, "ready")


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-length": "2"}, b"{}"),
        ({"transfer-encoding": "chunked"}, b"2\r\n{}\r\n0\r\n\r\n"),
        ({"content-length": "1000000000"}, b""),
    ],
)
async def test_a_body_is_refused_unread(path: str, headers: dict[str, str], body: bytes) -> None:
    async with routed(is_ready=False, http=HTTP) as bench:
        answer = await fetch(bench.router.addresses["http"], path, headers=headers, body=body)
        assert answer.status == 413


async def test_other_methods_and_paths_are_refused() -> None:
    async with routed(is_ready=False, http=HTTP) as bench:
        address = bench.router.addresses["http"]
        assert (await fetch(address, "/healthz", method="DELETE")).status == 405
        assert (await fetch(address, "/metrics/secret")).status == 404
        assert (await fetch(address, "/healthz")).status == 200


async def test_a_header_without_an_end_is_refused_early() -> None:
    async with routed(is_ready=False, http=HTTP) as bench:
        reader, writer = await connected(bench)
        writer.write(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 20_000)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


def names_of(text: str) -> set[str]:
    """Read OpenMetrics, which is stricter than the older form."""
    families: list[Metric] = list(parser.text_string_to_metric_families(text))  # pyright: ignore[reportUnknownArgumentType]
    return {family.name for family in families}


async def test_metrics_are_openmetrics_for_who_asks_for_them() -> None:
    async with routed(is_ready=False, http=HTTP) as bench:
        address = bench.router.addresses["http"]
        plain = await fetch(address, "/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        modern = await fetch(address, "/metrics", headers=accept)
        assert modern.headers["content-type"].startswith("application/openmetrics-text")
        assert "bramley_router_queue_depth" in names_of(modern.body.decode())
        assert modern.body.endswith(b"# EOF\n")
        odd = {"accept": "application/openmetrics-text; version=x.y"}
        assert (await fetch(address, "/metrics", headers=odd)).status == 200


async def test_an_address_that_is_taken_or_none_is_an_error_at_the_start() -> None:
    async with routed(is_ready=False, http=HTTP) as bench:
        taken = bench.router.addresses["http"]
        for address, kind in ((taken, CannotListen), ("nowhere", SettingsError)):
            with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
                settings = RouterSettings(grpc=HTTP, http=address)
                router = Router(settings, f"unix:{folder}/router.sock", epoch=2)
                with pytest.raises(kind, match=address):
                    async with router.serve():
                        pass


async def test_it_stops_with_a_client_that_says_nothing() -> None:
    async with routed(is_ready=False, http=HTTP) as bench:
        reader, writer = await connected(bench)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost:")
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    "said", [b"", b"GET /healthz HT", b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n"]
)
async def test_who_is_slow_keeps_others_out_for_so_long_alone(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(http, "REQUEST_S", 0.5)
    async with routed(is_ready=False, http=HTTP) as bench:
        slow = [await connected(bench) for _ in range(3)]
        for _, writer in slow:
            writer.write(said)
        assert (await fetch(bench.router.addresses["http"], "/healthz")).status == 503
        for reader, writer in slow:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        assert (await fetch(bench.router.addresses["http"], "/healthz")).status == 200


async def test_each_request_of_a_connection_has_its_time_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 1.0)
    async with routed(is_ready=False, http=HTTP) as bench:
        reader, writer = await connected(bench)
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + 1.5:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_many_clients_at_once_are_answered() -> None:
    async with routed(http=HTTP) as bench:
        address = bench.router.addresses["http"]
        answers = await asyncio.gather(*[fetch(address, "/metrics") for _ in range(50)])
        assert {answer.status for answer in answers} == {200}


@pytest.mark.parametrize("path", ["/metrics", "/readyz"])
async def test_a_token_for_all_models_opens_what_tells_of_all_of_them(path: str) -> None:
    holders = {
        "for-ops": Identity(name="ops"),
        "for-team": Identity(name="team", models=frozenset({"fake"})),
    }

    def identify(token: str | None) -> Identity:
        if token not in holders:
            raise Unauthenticated("nobody is known by it")
        return holders[token]

    application = http.application(
        CollectorRegistry(), lambda: readiness({}, is_draining=False), identify
    )
    async with http.serving(HTTP, application) as address:
        for token, status in (("", 401), ("wrong", 401), ("for-team", 403), ("for-ops", 200)):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            answer = await fetch(address, path, headers=headers)
            assert answer.status == status
            assert b"for-" not in answer.body
            assert ("www-authenticate" in answer.headers) == (status == 401)
        assert (await fetch(address, "/healthz")).status == 200


async def test_it_speaks_tls_where_it_has_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = Certificates(authority.server()).context()
    application = http.application(CollectorRegistry(), lambda: readiness({}, is_draining=False))
    async with http.serving(HTTP, application, context) as address:
        trusting = ssl.create_default_context(cafile=authority.file)
        assert (await fetch(address, "/healthz", tls=trusting)).body == b"ok\n"
        with pytest.raises(ssl.SSLError):
            await fetch(address, "/healthz", tls=ssl.create_default_context())


async def test_a_worker_that_hangs_holds_up_no_answer() -> None:
    async with routed(http=HTTP, in_processes=True) as bench:
        call = bench.stub.Generate(ask(labels={"fake.block": "started"}))
        await read_until(call, "accepted")
        took: list[float] = []
        for _ in range(10):
            for path in ("/healthz", "/readyz", "/metrics"):
                start_s = time.perf_counter()
                await fetch(bench.router.addresses["http"], path)
                took.append(time.perf_counter() - start_s)
            start_s = time.perf_counter()
            await bench.stub.GetStatus(router_pb2.GetStatusRequest())
            took.append(time.perf_counter() - start_s)
        assert statistics.median(took) < 0.05
        call.cancel()
