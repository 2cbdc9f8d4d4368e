"""``bramley eval tasks``: asks a served model what has known answers, and keeps every verdict.

Items are read from ``DIR/TASK.jsonl``; without ``--data`` from the ten of each that ship with
this program, which show that all of it works, and rank no models. humaneval runs what the model
wrote, caged: docs/evaluation.md says how far that goes.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bramley.bench.asking import MODEL, serving
from bramley.bench.eval import paired, report
from bramley.bench.eval.cage import run_caged
from bramley.bench.eval.lines import positive, read_lines
from bramley.bench.eval.provenance import Model, describe
from bramley.bench.eval.record import Record, Run, load, save
from bramley.bench.eval.runner import Runner
from bramley.bench.eval.tasks import bfcl, gsm8k, hashhop, humaneval, ifeval, mmlu
from bramley.bench.eval.tasks.contract import AnyTask, Item, Setting, Style
from bramley.client import cluster
from bramley.client.client import AsyncClient
from bramley.client.commands.connection import Remote, remote
from bramley.client.commands.screen import print_json
from bramley.client.login import Login
from bramley.client.node import read_node
from bramley.common.errors import InvalidRequest, NoReadyWorker

TASKS: dict[str, AnyTask] = {
    each.TASK.name: each.TASK for each in (mmlu, gsm8k, ifeval, bfcl, humaneval, hashhop)
}
SHIPPED = Path(__file__).parents[1] / "data"
TOGETHER = 4
CONTEXT_TOKENS = 12_000  # of hashhop
_SPARE_TOKENS = 64  # for what a chat template adds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("task", nargs="+", choices=[*TASKS, "all"], metavar="TASK")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--model", metavar="NAME", help="of a running cluster")
    who.add_argument("--path", type=Path, metavar="FOLDER", help="a model to be served meanwhile")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of TASK.jsonl files")
    parser.add_argument("--limit", type=positive, metavar="N", help="the first N items of each")
    parser.add_argument(
        "--together", type=positive, default=TOGETHER, help=f"requests at a time [{TOGETHER}]"
    )
    parser.add_argument(
        "--style",
        choices=("chat", "raw"),
        help="chat template or plain text [chat, if the model has a template]",
    )
    parser.add_argument(
        "--mmlu",
        choices=("logprobs", "generated"),
        default="logprobs",
        help="the letter by its log-probability, or as written [logprobs]",
    )
    parser.add_argument("--max-tokens", type=positive, help="of an answer [the task's own]")
    parser.add_argument(
        "--context-tokens",
        type=positive,
        help=f"of hashhop's prompts [{CONTEXT_TOKENS}, or what the model has room for]",
    )
    parser.add_argument("--baseline", type=Path, metavar="RUN.json", help="a run to compare with")
    parser.add_argument("--out", type=Path, metavar="RUN.json", help="where to keep the run")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")


def run(arguments: argparse.Namespace) -> int:
    """Ask, keep, compare and print; return the exit code."""
    names = chosen(arguments.task)
    folder: Path = arguments.data or SHIPPED
    files = {name: folder / f"{name}.jsonl" for name in names}
    items = {name: read_items(TASKS[name], files[name], arguments.limit) for name in names}
    if arguments.out is not None and not arguments.out.parent.is_dir():
        raise InvalidRequest("--out", f"{arguments.out.parent} is no folder")
    baseline = None if arguments.baseline is None else load(arguments.baseline)
    caged = _isolation(names)  # or it would fail after all answers
    out: Path = arguments.out or Path(f"bramley-eval-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json")

    def keep(records: Sequence[Record], model: cluster.Model, settings: dict[str, object]) -> Run:
        known = Model.of(arguments.path, model.name, model.revision)
        provenance = describe({"model": known}, files, {**settings, **caged})
        asked = {record.task for record in records}
        made = Run(provenance=provenance, records=list(records), is_complete=asked == set(names))
        save(made, out)
        return made

    with _door(arguments) as (target, login, name):
        told = Telling(sum(map(len, items.values())))
        evaluation = Evaluation(arguments, items, told, keep)
        made = asyncio.run(evaluation.run(target, login, name))
    differences = [] if baseline is None else paired.compare(made, baseline)
    if arguments.json:
        print_json(report.summary(made, differences, out))
    else:
        report.show(made, differences, out)
    return int(any(record.verdict == "error" for record in made.records))


def _isolation(names: Sequence[str]) -> dict[str, str]:
    """Try how programs can be caged here, if any will be; what they will be kept apart by."""
    if not any(TASKS[name].runs_code for name in names):
        return {}
    return {"isolation": run_caged("").isolation}


def chosen(names: Sequence[str]) -> list[str]:
    """Tell which tasks are meant; each once."""
    return list(TASKS) if "all" in names else list(dict.fromkeys(names))


def read_items(task: AnyTask, file: Path, limit: int | None) -> list[Item]:
    """Read the items of a task.

    Returns:
        The first ``limit``, or all.

    Raises:
        InvalidRequest: the file is no such file, or two items have one name.
    """
    items: list[Item] = read_lines(file, task.kind)
    names = [item.id for item in items]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(str(file), f"has two items {twice!r}")
    return items[:limit]


@contextmanager
def _door(arguments: argparse.Namespace) -> Generator[tuple[str, Login, str]]:
    """Find the router, or start one for the while.

    Yields:
        Its gRPC target, what it is shown, and the model's name there.

    Raises:
        NoReadyWorker: the cluster is about to start.
    """
    if arguments.path is not None:
        with serving(arguments.path) as (running, _):
            yield running.status()["addresses"]["socket"], {}, MODEL
        return
    if arguments.address is None:
        target = read_node(arguments.state_dir.expanduser()).router
        if not target:
            raise NoReadyWorker("the router is not up yet")
        yield target, {}, arguments.model
        return
    door: Remote = remote(
        arguments.address,
        arguments.token_file,
        arguments.ca,
        arguments.certificate,
        arguments.key,
    )
    yield door.address, door.login, arguments.model


class Telling:
    """Says on a terminal how far it is."""

    def __init__(self, items: int) -> None:
        self._items = items
        self._before = 0

    def begin(self, task: str) -> "Telling":
        """Go on with a task."""
        self._task = task
        return self

    def __call__(self, done: int) -> None:
        """Say that so many of the task's answers have come."""
        if sys.stderr.isatty():
            text = f"\r{self._task}: {self._before + done} of {self._items} answers "
            print(text, end="", file=sys.stderr, flush=True)

    def end(self, items: int) -> None:
        """Note that a task is done."""
        self._before += items


Keep = Callable[[Sequence[Record], cluster.Model, dict[str, object]], Run]


class Evaluation:
    """One run.

    Args:
        arguments: of the command line.
        items: of each task, one or more.
        told: is told how far it is.
        keep: keeps what there is after each task: records, the model, what all was asked with.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        items: dict[str, list[Item]],
        told: Telling,
        keep: Keep,
    ) -> None:
        self._arguments = arguments
        self._items = items
        self._told = told
        self._keep = keep

    async def run(self, target: str, login: Login, name: str) -> Run:
        """Ask everything, and return what was kept last."""
        made: Run | None = None
        records: list[Record] = []
        async with AsyncClient(target, **login) as client:
            model = await _loaded(client, name)
            runner = Runner(client, name, self._arguments.together)
            style: Style = self._arguments.style or ("chat" if model.has_chat_template else "raw")
            settings: dict[str, object] = {
                "style": style,
                "mmlu": self._arguments.mmlu,
                "max_tokens": self._arguments.max_tokens,
                "temperature": 0.0,
                "limit": self._arguments.limit,
                "together": self._arguments.together,
            }
            for task, items in self._items.items():
                setting = await self._setting(runner, task, style, model)
                if setting.lines:
                    settings["hashhop_lines"] = setting.lines
                told = self._told.begin(task)
                records += await runner.run(TASKS[task], items, setting, told)
                told.end(len(items))
                made = self._keep(records, model, settings)
        assert made is not None, "no task was asked"
        return made

    async def _setting(
        self, runner: Runner, task: str, style: Style, model: cluster.Model
    ) -> Setting:
        most: int | None = self._arguments.max_tokens
        gap, letters, lines = "", dict[str, int](), 0
        if task == mmlu.TASK.name and self._arguments.mmlu == "logprobs":
            gap, letters = await runner.letters()
        if task == hashhop.TASK.name:
            room = (model.context_tokens or CONTEXT_TOKENS) - _SPARE_TOKENS
            room -= most or hashhop.MAX_TOKENS
            wanted: int = self._arguments.context_tokens or min(CONTEXT_TOKENS, room)
            lines = await runner.lines(wanted)
        return Setting(style=style, max_tokens=most, letters=letters, gap=gap, lines=lines)


async def _loaded(client: AsyncClient, name: str) -> cluster.Model:
    """Have the model loaded, if it is not; its limits are known then.

    Returns:
        The model.

    Raises:
        InvalidRequest: it cannot be loaded.
    """
    model = await client.get_model(name)
    if model.has_chat_template is None:
        async for told in client.load_model(name):
            model = told
    if model.has_chat_template is None:
        raise InvalidRequest("--model", f"{name} is {model.state}: {model.reason}")
    return model
