"""What the main of every supervised child does: arguments, settings, logs, loop, exit codes."""

import argparse
import gc
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import uvloop

from bramley.common import logs
from bramley.common.child import ChildContext, parse_context
from bramley.common.errors import CannotListen, SettingsError
from bramley.common.settings import read_json

log = logging.getLogger(__name__)

EXIT_CANNOT_LISTEN = 1
EXIT_SETTINGS = 2

S = TypeVar("S", bound=msgspec.Struct)


def leave(code: int) -> NoReturn:
    """End this process at once, its logs written.

    gRPC and MLX have threads that do not always survive the interpreter's own end: a clean
    stop ended with SIGABRT in one of some thirty runs.
    """
    logging.shutdown()
    os._exit(code)


def keep_what_is_here() -> None:
    """Have the garbage collector pass over all that exists by now, and look for cycles rarely.

    For processes that make many short-lived messages and no cycles to speak of.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def run_child(
    role: str,
    kind: type[S],
    serve: Callable[[ChildContext, S], Coroutine[Any, Any, None]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Be the process that ``--child JSON --settings FILE`` tell of, to its end.

    Args:
        role: signs the log's lines, with the process's name where that is another.
        kind: of the settings.
        serve: the process's work, until it should end.
        arguments: those of the command line, if not given.

    Returns:
        The exit code, for ``leave``: 2 for a fault of the settings, 1 for an address that is not
        to be had, each with one line that says which.
    """
    parser = argparse.ArgumentParser(description=f"A {role}, run by a supervisor.")
    parser.add_argument("--child", required=True, help="who this process is, as JSON")
    parser.add_argument("--settings", required=True, type=Path, help=f"{kind.__name__} as JSON")
    parsed = parser.parse_args(arguments)
    logs.setup(role)
    try:
        context = parse_context(parsed.child)
        name = role if context.name == role else f"{role}/{context.name}"
        logs.setup(name, context.log_format)
        uvloop.run(serve(context, read_json(parsed.settings, kind)))
    except SettingsError as error:
        log.critical("%s", error)
        return EXIT_SETTINGS
    except CannotListen as error:
        log.critical("%s", error)
        return EXIT_CANNOT_LISTEN
    return 0
