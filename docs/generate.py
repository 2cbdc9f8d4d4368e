"""Writes the generated pages of this folder from what they describe."""

import collections
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from bramley.bench.serve import markdown, summary
from bramley.cachestore import metrics as store_metrics
from bramley.common.logs import LogSettings
from bramley.deploy.settings import ClusterSettings, ModelTable, NodeSettings, StoreTable
from bramley.router import families, vllm_names
from bramley.router.settings import RouterSettings

HERE = Path(__file__).parent
LANES = HERE.parent / "tests" / "golden" / "lanes.json"
MARK = "<!-- Written by docs/generate.py: change the code, then `make docs`. -->\n"
_ATTRIBUTE = re.compile(r"^ {8}(\w+): (.*(?:\n {12,}.*)*)", re.MULTILINE)

# Filled in by the supervisor, or for tests; not for a cluster.toml.
_INTERNAL = {
    "router.node",
    "router.models",
    "router.replicas",
    "router.policies",
    "router.store_bytes",
    "store.die_at",
}


def settings_page() -> str:
    """Describe every key of ``cluster.toml``."""
    parts = [
        "# Settings\n",
        MARK,
        "One `cluster.toml` describes a cluster. An unknown key, a wrong type or a value out of",
        "range ends `bramley up` with exit code 2 and the key's path. `--set key=value` overrides",
        "one key. No environment variable is read.\n",
        f"Tables: {', '.join(f'`[{name}]`' for name in ClusterSettings.__struct_fields__)}.\n",
    ]
    for table, kind in (
        ("models.NAME", ModelTable),
        ("router", RouterSettings),
        ("store", StoreTable),
        ("node", NodeSettings),
        ("logs", LogSettings),
    ):
        for name, inner in _tables(table, kind):
            if rows := _rows(name, inner):
                parts += [f"## `[{name}]`\n", *rows, ""]
    return "\n".join(parts)


def _tables(name: str, kind: type[msgspec.Struct]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Find a table, and the tables within it."""
    yield name, kind
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _tables(f"{name}.{field.name}", field.type)


def _rows(table: str, kind: type[msgspec.Struct]) -> list[str]:
    meanings = {
        name: " ".join(text.split())
        for base in reversed(kind.__mro__)
        if issubclass(base, msgspec.Struct)
        for name, text in _ATTRIBUTE.findall(base.__doc__ or "")
    }
    rows = [
        f"| `{field.name}` | {_default(field)} | {meanings[field.name]} |"
        for field in msgspec.structs.fields(kind)
        if f"{table}.{field.name}" not in _INTERNAL
        and not isinstance(field.default, msgspec.Struct)
    ]
    return ["| key | default | meaning |", "|---|---|---|", *rows] if rows else []


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return (
            "none" if field.default is None else f"`{msgspec.json.encode(field.default).decode()}`"
        )
    if field.default_factory is msgspec.NODEFAULT:
        return "required"
    value = msgspec.json.encode(field.default_factory()).decode()
    return f"`{value.replace(sys.executable, 'python')}`"


_HTTP = """\
Labels come from closed sets: the models and workers of the settings, status codes, finish reasons,
states, tiers. Units are seconds, tokens and bytes. A request that names no model of the settings
counts under `model=""`. The series of a model that leaves the settings go with it, and what a
worker reports is 0 while it reports nothing.

## HTTP

`router.http` answers on the router's own event loop, with TLS where `router.tls` is set.

| path | answer |
|---|---|
| `/healthz` | 200 as long as the router's loop turns; it takes no token |
| `/readyz` | 200 if requests should be sent here, else 503; JSON says why, and how each model is |
| `/metrics` | what this page lists: Prometheus' text, or OpenMetrics for who asks for it |

Where `router.auth` asks for tokens, the last two take one that is good for all models. No path
takes a body. `status` in `/readyz` is the first of these that holds:

| status | means |
|---|---|
| `draining` | it finishes what it has, and ends |
| `failed` | a model that is loaded with the cluster does not start |
| `loading` | a model that is loaded with the cluster is not ready yet |
| `exhausted` | each model that is served refuses requests of class `default`: too many wait |
| `ready` | none of them |

Models that are loaded on demand or by hand are not waited for, nor is one that was unloaded since,
or had no room at the start: its next request loads it.
"""


def metrics_page() -> str:
    """Describe every metric of router and cache store."""
    columns = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    router = [
        f"| `{families.PREFIX}{name}` | {kind.__name__.lower()} | "
        f"{', '.join(f'`{label}`' for label in labels)} | {text} |"
        for name, kind, text, labels, _ in families.TABLE
    ]
    prefix = store_metrics.PREFIX
    counters = [
        f"| `{prefix}{name}_total` | counter | {f'`{label}`' if label else ''} | {text} |"
        for name, text, label, _ in store_metrics.COUNTERS
    ]
    gauges = [f"| `{prefix}{name}` | gauge |  | {text} |" for name, text in store_metrics.GAUGES]
    parts = [
        "# Metrics\n",
        MARK,
        _HTTP,
        "## Router\n",
        "At `/metrics` of `router.http`.\n",
        *columns,
        *router,
        "\n## vLLM's names\n",
        "With `router.vllm_metrics`, `/metrics` has these as well: the router's own samples under",
        "vLLM's names, by `model_name`, for dashboards and routers that know them.\n",
        "| metric | what it is here |",
        "|---|---|",
        *(f"| `{vllm_names.PREFIX}{name}` | {text} |" for name, text in vllm_names.described()),
        "\n## Cache store\n",
        "At `/metrics` of `store.http`, where that is set.\n",
        *columns,
        *counters,
        *gauges,
    ]
    return "\n".join([*parts, ""])


# By the names of worker/models/contract.py's Lane, from the best to the last resort.
_LANES = {
    "batched": ("batched", "requests of any lengths share forwards"),
    "prompts apart": (
        "batched, prompts prefilled one at a time",
        "a prompt has its forwards to itself; decoding rows share theirs",
    ),
    "serial": ("serial", "one request at a time"),
    "serial, own caches": (
        "serial, on its own caches",
        "one request at a time; nothing is stored, and only its own next turn goes on from it",
    ),
    "not tried": ("not tried", "no tiny model of it can be built here"),
}


_TAKES = """
## What a model takes

`bramley inventory MODEL` tells what a model folder, a `.gguf` file or a model of the running
cluster is made of: tensors by kind with the bits that a parameter really has (scales and biases
counted), what its layers keep of a row, and the lane, once a worker has found it. `bramley fit
MODEL` predicts what a worker would take, beside what it may take, and ends with 1 if that is too
much:

| part | is |
|---|---|
| weights | parameters as they are loaded: on the CPU all become float32, elsewhere they stay \
packed |
| state | room for `--batch` rows of `--context` tokens, as the engine makes it: rows double, \
columns grow by an eighth, a window keeps to its own; at least the room of a worker that is \
ready |
| workspace | a prompt's chunk of full size, at most; where chunks are bounded by their time, \
and where attention is fused, it is less |
| process | Python, its libraries and a tokenizer: 256 MiB |
| may take | the cluster's `router.memory_bytes`, or three quarters of this machine's memory, \
less the store's RAM tier; or `--budget` |

Neither reads weights: headers are read and checked, the model's class is built with parameters
that nobody evaluates, and one token goes through it unevaluated. A torn file is named. What the
supervisor tells the router of a model that was never loaded is counted from the same headers.

What a worker of SmolLM2-135M-Instruct took (float32 on a busy CPU of two cores), beside the
prediction; the first by `python -m bramley.bench.inventory.measured MODEL --context 512 --batch
4`, the second by `--context 2048 --batch 1`. Rows of tiny models of each kind are held to 2 % by
`tests/component/worker/test_fit.py`.

| part | predicted | 4 x 512 tokens | predicted | 1 x 2,048 tokens |
|---|---|---|---|---|
| weights | 513.1 MiB | 513.2 MiB | 513.1 MiB | 513.1 MiB |
| state | 135.0 MiB | 135.0 MiB | 112.5 MiB | 112.5 MiB |
| workspace | at most 127 MiB | 11 MiB | at most 235 MiB | 2 MiB |
| process | 256 MiB | 230 MiB | 256 MiB | 219 MiB |
"""


def models_page() -> str:
    """Say of every architecture in which lane it runs."""
    records: dict[str, dict[str, str]] = json.loads(LANES.read_text())
    # A variant, as in "llama yarn", is another way through the file of an architecture.
    architectures = {name: record for name, record in records.items() if " " not in name}
    variants = {name: record for name, record in records.items() if " " in name}
    count = collections.Counter(record["lane"] for record in architectures.values())
    parts = [
        "# Models\n",
        MARK,
        f"mlx-lm has {len(architectures)} model files. A tiny random model of each is run in the",
        "tests: rows of several lengths, prompts in pieces, rows that come, go and are restored,",
        "and every logit is compared with mlx-lm's own for the prompt alone. When a worker loads",
        "a model, it checks by itself which lane is right for it, so that this table does not",
        "decide: a model that is not in it is served, too.\n",
        "| lane | architectures | what it means |",
        "|---|---|---|",
        *(f"| {name} | {count[lane]} | {text} |" for lane, (name, text) in _LANES.items()),
        "\n## Architectures\n",
        *_lane_rows(architectures.items()),
        "\n## Variants\n",
        "Other ways through some of these files: windows, scaled rotations, other layers.\n",
        *_lane_rows(variants.items()),
        "",
        _TAKES.strip(),
    ]
    return "\n".join([*parts, ""])


def _lane_rows(records: Iterable[tuple[str, dict[str, str]]]) -> list[str]:
    return ["| architecture | lane | layers keep | why |", "|---|---|---|---|"] + [
        f"| `{name}` | {_LANES[record['lane']][0]} | {record['layers']} | {record['why']} |"
        for name, record in records
    ]


def performance_page(folder: Path = HERE / "performance") -> str:
    """Say what was measured: all summaries that are kept."""
    files = sorted(folder.glob("*.json"))
    return markdown.performance({file.stem: summary.load(file) for file in files}, MARK)


PAGES = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "models.md": models_page,
    "performance.md": performance_page,
}

if __name__ == "__main__":
    for file, page in PAGES.items():
        (HERE / file).write_text(page())
