"""Measures servers side by side: ``python -m bramley.bench.serve``, or ``bramley bench serve``.

Exit codes: 0, 1 if a phase failed for good, 2 for bad input or a machine that is not fit.
"""

import argparse
import math
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec
from tokenizers import Tokenizer

from bramley.bench.asking import model_folder
from bramley.bench.serve import arms, phases, preflight, run
from bramley.bench.serve.record import Run
from bramley.bench.serve.workload import (
    FULL,
    LANES_MAX,
    QUICK,
    Count,
    Sizes,
    four_characters_a_token,
)
from bramley.common.errors import BramleyError, InvalidRequest

SMOLLM2 = "smollm2"
MARGIN = 1024  # tokens of a context that a long prompt leaves to its answer, its frame and rounding
NOT_FIT = 2
PROMPTS = (
    *("ttft_prompt", "context_prompt", "restart_prompt", "kill_prompt", "mixed_prompt"),
    "aggregate_context",
)
SIZE_OPTIONS = {
    "context": "context_prompt",
    "aggregate_context": "aggregate_context",
    "stagger": "stagger_s",
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bramley bench serve", description=__doc__)
    parser.add_argument("--model", default=SMOLLM2, help="folder of a model [default: smollm2]")
    parser.add_argument(
        "--arms",
        default=f"{arms.OURS},{arms.PEER}",
        help=f"of {', '.join(arms.KINDS)} and url=http://HOST:PORT[#MODEL], with commas between "
        "them; in turns A B B A [default: %(default)s]",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first run [default: %(default)s]"
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="so many runs, a file each [default: 1]"
    )
    parser.add_argument(
        "--quick", action="store_true", help="less of everything: two arms in 6 minutes"
    )
    parser.add_argument("--phases", help=f"of {', '.join(phases.PHASES)}; all without it")
    parser.add_argument("--context", type=int, help="tokens of the long prompt [default: 4096]")
    parser.add_argument(
        "--aggregate-context", type=int, help="tokens of each stream's prompt [default: 32]"
    )
    parser.add_argument("--streams", help="numbers of streams that run together [default: 1,2,4,8]")
    parser.add_argument(
        "--stagger", type=float, help="seconds between the streams' starts [default: 0]"
    )
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="seconds that an answer has [default: 900]"
    )
    parser.add_argument("--out", type=Path, help="the file; with several seeds, one a seed")
    parser.add_argument(
        "--diagnostic", action="store_true", help="measure on any machine, and say so in the file"
    )
    return parser.parse_args(
        arguments, argparse.Namespace(command=["bramley", "bench", "serve", *arguments])
    )


def sizes_of(given: argparse.Namespace) -> Sizes:
    """Choose how much is asked.

    Returns:
        The sizes.

    Raises:
        InvalidRequest: a number is none, or too small.
    """
    if given.seeds < 1:
        raise InvalidRequest("--seeds", "must be at least 1")
    if not given.timeout > 0:
        raise InvalidRequest("--timeout", "must be above 0")
    changes: dict[str, Any] = {
        field: value
        for option, field in SIZE_OPTIONS.items()
        if (value := getattr(given, option)) is not None
    }
    if given.streams is not None:
        counts = given.streams.split(",")
        if not all(count.isdecimal() and int(count) > 0 for count in counts):
            raise InvalidRequest("--streams", f"{given.streams!r} are no numbers of streams")
        changes["streams"] = tuple(map(int, counts))
        if sum(changes["streams"]) > LANES_MAX:
            raise InvalidRequest("--streams", f"are more than {LANES_MAX} in all")
    for option, field in SIZE_OPTIONS.items():
        if not 0 <= changes.get(field, 0) < math.inf:
            raise InvalidRequest("--" + option.replace("_", "-"), "must not be negative")
    return msgspec.structs.replace(QUICK if given.quick else FULL, **changes)


def within_context(sizes: Sizes, folder: Path | None) -> Sizes:
    """Shorten prompts to what the model has room for."""
    if folder is None:
        return sizes
    config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, Any])
    told: dict[str, Any] = {**config, **(config.get("text_config") or {})}
    context = told.get("max_position_embeddings")
    if not isinstance(context, int):
        return sizes
    most = max(context - MARGIN, context // 2)
    # An agent's prompt grows with each turn.
    bounds = dict.fromkeys(PROMPTS, most) | {"agent_prompt": most // 2}
    fitting = {field: min(getattr(sizes, field), bound) for field, bound in bounds.items()}
    return msgspec.structs.replace(sizes, **fitting)


def chosen_phases(given: str | None) -> list[str]:
    """Choose phases, in their own order; some always run.

    Returns:
        Their names.

    Raises:
        InvalidRequest: one is none.
    """
    names = given.split(",") if given else list(phases.PHASES)
    for name in names:
        if name not in phases.PHASES:
            raise InvalidRequest("--phases", f"{name!r} is none of {', '.join(phases.PHASES)}")
    return [name for name in phases.PHASES if name in {*names, *phases.ALWAYS}]


def counter(folder: Path | None) -> tuple[Count, str]:
    """Find what counts the tokens of prompts, and its name for the record."""
    if folder is None or not (file := folder / "tokenizer.json").exists():
        return four_characters_a_token, "four characters a token"
    encode = cast("Callable[..., Any]", Tokenizer.from_file(str(file)).encode)
    return lambda text: len(encode(text, add_special_tokens=False).ids), "tokenizer.json"


@contextmanager
def found_model(name: str, kinds: Sequence[str]) -> Generator[Path | None]:
    """Find the model's folder; SmolLM2 is written for the while, unless nobody needs it.

    Yields:
        The folder, or None.

    Raises:
        InvalidRequest: there is no such folder.
    """
    if name == SMOLLM2:
        if all(kind.startswith("url=") for kind in kinds):
            yield None
            return
        with model_folder(None) as folder:
            yield folder
        return
    folder = Path(name).expanduser().resolve()
    if not (folder / "config.json").exists():
        raise InvalidRequest("--model", f"{name} is no folder of a model")
    yield folder


def files_of(given: Path | None, seeds: Sequence[int]) -> dict[int, Path]:
    """Name the runs' files: as given, with the seed in it where there are several.

    Returns:
        One for each seed.

    Raises:
        InvalidRequest: their folder is not there, which would show only after the first turn.
    """
    path = given or Path(f"serve-{secrets.token_hex(4)}.json")
    if not path.parent.is_dir():
        raise InvalidRequest("--out", f"{path.parent} is no folder")
    if len(seeds) == 1:
        return {seeds[0]: path}
    suffix = path.suffix or ".json"
    return {seed: path.with_name(f"{path.stem}-{seed}{suffix}") for seed in seeds}


def measure(given: argparse.Namespace) -> int:
    """Measure all seeds; return the exit code."""
    kinds, names = given.arms.split(","), chosen_phases(given.phases)
    sizes, failed = sizes_of(given), False
    files = files_of(given.out, range(given.seed, given.seed + given.seeds))
    for kind in kinds:
        arms.check(kind)
    checks = preflight.judge(preflight.look())
    if refused := preflight.refusals(checks):
        print("the machine is not fit for measuring:", *refused, sep="\n  ", file=sys.stderr)
        if not given.diagnostic:
            print("`--diagnostic` measures all the same, and says so", file=sys.stderr)
            return NOT_FIT
        print("it is measured all the same, and the file says so", file=sys.stderr)
    with found_model(given.model, kinds) as folder:
        count, counted_by = counter(folder)
        fitting = within_context(sizes, folder)
        name = given.model if given.model == SMOLLM2 else Path(given.model).name
        plan = run.Plan(
            name=name,
            model=folder,
            kinds=kinds,
            phases=names,
            sizes=fitting,
            count=count,
            counted_by=counted_by,
            timeout_s=given.timeout,
            command=given.command,
        )
        for seed, out in files.items():
            if seed != given.seed:
                checks = preflight.again()
            told = run.measure(plan, seed, checks, out, diagnostic=given.diagnostic)
            failed |= tell(told, out)
    return int(failed)


def tell(told: Run, out: Path) -> bool:
    """Say where a run is, and whether something of it failed for good."""
    final = [failure for arm in told.arms for failure in arm.failures if failure.is_final]
    print(out)
    if not told.source.is_same:
        print("the sources changed while the run went on", file=sys.stderr)
    if final:
        print(f"{len(final)} phases failed for good; see {out}", file=sys.stderr)
    return bool(final)


def main() -> int:
    """Measure and print; return the exit code."""
    # So that servers are stopped as after an interruption; a terminal that closes hangs up.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        return measure(parse(sys.argv[1:]))
    except BramleyError as error:
        print(error.message, file=sys.stderr)
        return NOT_FIT if isinstance(error, InvalidRequest) else 1
    except (OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
