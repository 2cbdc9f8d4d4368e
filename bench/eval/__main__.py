"""``python -m bramley.bench.eval kl|tasks``: what ``bramley eval`` starts."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bramley.bench.cluster import Failed
from bramley.bench.eval import kl
from bramley.bench.eval.tasks import command as tasks
from bramley.client.cli import explain
from bramley.client.commands.screen import say
from bramley.common.errors import BramleyError
from bramley.common.main import leave


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bramley eval", description="Evaluate a model.")
    door = parser.add_argument_group("where the cluster is")
    door.add_argument("--state-dir", type=Path, default=Path("~/.bramley"))
    door.add_argument("--address")
    for name in ("--token-file", "--ca", "--certificate", "--key"):
        door.add_argument(name, type=Path)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module, text in (
        ("kl", kl, "compare two models' distributions"),
        ("tasks", tasks, "ask a model what has known answers"),
    ):
        command = commands.add_parser(name, help=text, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser.parse_args(arguments)


def main() -> int:
    """Run one command; return the exit code."""
    arguments = parse(sys.argv[1:])
    try:
        return arguments.run(arguments)
    except BramleyError as error:
        line, code = explain(error)
        say(line)
        return code
    except (Failed, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    leave(code)
