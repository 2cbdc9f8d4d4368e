"""Rules of the house that no linter knows: sizes, one walk, no hidden inputs."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("common", "router", "worker", "cachestore", "client", "deploy", "bench")
LINES_MAX = 500

WALK = (
    "protos/v1/router.proto",
    "router/server.py",
    "router/admission.py",
    "router/routing.py",
    "router/relay.py",
    "worker/server.py",
    "worker/engine/engine.py",
    "worker/engine/steps.py",
    "worker/engine/scheduler.py",
    "worker/engine/executor.py",
)

# Deciders: values in, a plan out.
PURE = (
    "common/traces.py",
    "common/auth.py",
    "common/bounds.py",
    "router/access.py",
    "router/admission.py",
    "router/booking.py",
    "router/breaker.py",
    "router/classes.py",
    "router/clients.py",
    "router/exits.py",
    "router/fairness.py",
    "router/fleet.py",
    "router/lifecycle.py",
    "router/memory.py",
    "router/policy.py",
    "router/prefixes.py",
    "router/readiness.py",
    "router/retries.py",
    "router/routing.py",
    "router/totals.py",
    "worker/owed.py",
    "worker/pace.py",
    "worker/request.py",
    "worker/engine/costs.py",
    "worker/engine/faults.py",
    "worker/engine/grouping.py",
    "worker/engine/plan.py",
    "worker/engine/scheduler.py",
    "worker/engine/sharing.py",
    "worker/engine/slots.py",
    "worker/engine/stopping.py",
    "worker/cache/saved.py",
    "worker/sampling/params.py",
    "worker/sampling/rng.py",
    "worker/sampling/changes.py",
    "cachestore/artifacts.py",
    "cachestore/catalogue.py",
    "cachestore/closed.py",
    "cachestore/closure.py",
    "cachestore/eviction.py",
    "cachestore/leases.py",
    "cachestore/matching.py",
    "cachestore/policy.py",
    "cachestore/recall.py",
    "cachestore/wishes.py",
    "worker/text/stop_strings.py",
    "worker/deltas.py",
    "worker/grammar/constraint.py",
    "worker/grammar/guide.py",
    "worker/grammar/schema.py",
    "worker/grammar/shapes.py",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "worker/reading").rglob("*.py"))),
    "deploy/supervisor.py",
)
IMPURE = {"mlx", "grpc", "asyncio", "time", "socket", "os"}

# Where anything may be caught: the border of gRPC, and the top of the engine's thread.
CATCH_ALL = {"common/rpc.py", "worker/engine/containment.py", "worker/engine/engine.py"}


def modules() -> Iterator[Path]:
    for folder in (*FOLDERS, "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_no_module_is_over_the_ceiling() -> None:
    long = {name(path): len(path.read_text().splitlines()) for path in modules()}
    assert not {path: lines for path, lines in long.items() if lines > LINES_MAX}


def test_every_module_says_its_job_first() -> None:
    assert [name(path) for path in modules() if not ast.get_docstring(tree(path))] == []


@pytest.mark.parametrize(("here", "there"), list(pairwise(WALK)))
def test_each_file_of_the_walk_names_the_next(here: str, there: str) -> None:
    text = (ROOT / here).read_text()
    head = text if here.endswith(".proto") else ast.get_docstring(ast.parse(text)) or ""
    assert there in head
    assert (ROOT / there).exists()


def test_the_architecture_page_tells_the_walk_in_order() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    places = [page.find(f"`{file}`") for file in WALK]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("path", PURE)
def test_deciders_import_nothing_that_acts(path: str) -> None:
    imported: set[str] = set()
    for node in ast.walk(tree(ROOT / path)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert not imported & IMPURE


def test_no_environment_variable_is_read() -> None:
    reads = re.compile(r"\bos\.(environ|getenv)\b")
    product = [path for path in modules() if not name(path).startswith("tests/")]
    assert [name(path) for path in product if reads.search(path.read_text())] == []


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes anything at all and does not raise it again."""
    broad = handler.type is None or ast.unparse(handler.type) in {"Exception", "BaseException"}
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_anything_is_caught_in_two_places_only() -> None:
    product = [path for path in modules() if not name(path).startswith("tests/")]
    handlers = {
        name(path)
        for path in product
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    }
    assert handlers == CATCH_ALL


@pytest.mark.parametrize(
    "module", ["bramley.router.__main__", "bramley.deploy.__main__", "bramley.client.cli"]
)
def test_light_processes_import_nothing_heavy(module: str) -> None:
    code = (
        f"import importlib, sys; importlib.import_module({module!r});"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert not set(done.stdout.split()) & {"mlx", "mlx_lm", "torch", "transformers", "numpy"}
