"""The processes of ``bramley inventory`` and ``bramley fit``: MLX is loaded here, and not there."""

import argparse
import sys
from pathlib import Path

import msgspec

from bramley.client.commands.screen import print_json, say
from bramley.worker.models.blas import forget_blas, load_blas
from bramley.worker.models.errors import ModelError
from bramley.worker.settings import WorkerSettings

FITS_NOT, WRONG = 1, 2


def main() -> int:
    """Tell of the model that the command line names.

    Returns:
        0, 1 where it does not fit, 2 with a sentence on stderr where it cannot be read.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("inventory", "fit"))
    parser.add_argument("settings", help="WorkerSettings as JSON")
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--tensors", action="store_true")
    parser.add_argument("--context", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--budget", type=int, help="of models and store together")
    parser.add_argument("--store", type=int, default=0, help="of it, for the store")
    arguments = parser.parse_args()
    settings = msgspec.json.decode(arguments.settings, type=WorkerSettings)
    settings = msgspec.structs.replace(settings, path=str(Path(settings.path).resolve()))
    try:
        return (_inventory if arguments.command == "inventory" else _fit)(settings, arguments)
    except ModelError as error:
        say(str(error))
        return WRONG


def _inventory(settings: WorkerSettings, arguments: argparse.Namespace) -> int:
    from bramley.bench.inventory.opened import opened  # noqa: PLC0415 MLX, after the BLAS
    from bramley.bench.inventory.survey import survey  # noqa: PLC0415
    from bramley.bench.inventory.tables import show_inventory  # noqa: PLC0415
    from bramley.worker.loading import numerics_of  # noqa: PLC0415

    with opened(settings, numerics_of(BLAS)) as model:
        found = survey(model, with_tensors=arguments.tensors)
    if arguments.as_json:
        print_json(found)
    else:
        show_inventory(found)
    return 0


def _fit(settings: WorkerSettings, arguments: argparse.Namespace) -> int:
    from bramley.bench.inventory.fit import Budget, fit  # noqa: PLC0415 MLX, after the BLAS
    from bramley.bench.inventory.opened import opened  # noqa: PLC0415
    from bramley.bench.inventory.tables import show_fit  # noqa: PLC0415
    from bramley.worker.loading import numerics_of  # noqa: PLC0415

    budget = Budget.usual()
    if arguments.budget is not None:
        budget = Budget(arguments.budget, arguments.store)
    with opened(settings, numerics_of(BLAS)) as model:
        found = fit(model, settings, budget, arguments.context, arguments.batch)
    if arguments.as_json:
        print_json(found)
    else:
        show_fit(found)
    return 0 if found.fits else FITS_NOT


BLAS = load_blas()  # before anything imports mlx
code = main()
forget_blas()
sys.exit(code)
