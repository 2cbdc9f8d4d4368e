"""Runs a process of ours as it is, but for faults that a test asks for by files in a folder.

``python -P faulty.py FOLDER MODULE [ARGUMENTS]`` is ``python -m MODULE [ARGUMENTS]``, in which
SIGUSR1 stops the event loop, and nothing else of the process, until SIGUSR2. In a worker, while
a file of that name is there, or one in the folder of the worker's own name:

=============  =====================================================================
``hold-load``  a model's load does not end
``slow``       each step of the engine takes ``SLOW_S`` longer
``hang``       a step does not end
``die``        the engine's thread ends
``no-load``    the model cannot be loaded
``fail``       the stage of STAGES that it names fails, for prompts that have MARKER
=============  =====================================================================
"""

import functools
import json
import pkgutil
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

MARKER: Final = "boom"
SLOW_S: Final = 0.01
_LOOK_S: Final = 0.02
_MOST_S: Final = 300.0  # so that a test that dies leaves nothing that waits for ever

# Of each stage: what runs there, and the prompts that its arguments tell of.
Prompts = Iterable[str | Sequence[int]]
STAGES: dict[str, tuple[str, Callable[[tuple[Any, ...]], Prompts]]] = {
    "tokenize": ("text.tokenizer:Tokenizer.encode", lambda got: [got[1]]),
    "translate": ("translate:to_requests", lambda got: [got[1]]),
    "look up": ("prefix:PrefixCache.find", lambda got: [got[3][::4]]),
    "seat": ("engine.seating:Seating.seat", lambda got: [got[1].prompt]),
    "copy a row": ("engine.seating:Seating._sit_with", lambda got: [got[1].prompt]),
    "prefill 1": (
        "engine.executor:Executor.prefill",
        lambda got: [one.prompt for one in got[2] if not one.computed],
    ),
    "prefill 2": (
        "engine.executor:Executor.prefill",
        lambda got: [one.prompt for one in got[2] if one.computed],
    ),
    "first token": (
        "engine.decoding:Decoder.launch",
        lambda got: [one.prompt for one in got[1] if not one.output],
    ),
    "detokenize": ("answer:Answer.read", lambda got: [got[0]._prompt]),
    "stop strings": ("answer:Answer._said", lambda got: [got[0]._prompt]),
}


class InjectedError(Exception):
    """Stands for a bug."""


class Faults:
    """What the folder asks for now."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder = folder
        self._worker = worker

    def has(self, name: str) -> bool:
        """Whether a file of that name is there."""
        return any((place / name).exists() for place in (self._folder, self._folder / self._worker))

    def wait_while(self, name: str) -> None:
        """Wait until a file has gone."""
        until_s = time.monotonic() + _MOST_S
        while self.has(name) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)

    def in_step(self, *_: object) -> None:
        """Be slow, hang or end the thread."""
        if self.has("slow"):
            time.sleep(SLOW_S)
        self.wait_while("hang")
        if self.has("die"):
            raise SystemExit  # past all that contains an error

    def fail(self, stage: str, *arguments: Any) -> None:
        """Raise, if that stage is to fail for one of its prompts.

        Raises:
            InjectedError: it is.
        """
        file = self._folder / "fail"
        if not file.exists() or file.read_text() != stage:
            return
        _, prompts = STAGES[stage]
        if any(MARKER in _text(prompt) for prompt in prompts(arguments)):
            raise InjectedError(f"{stage} fails, as the test wants it")


def _text(prompt: str | Sequence[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    return bytes(token for token in prompt if token < 128).decode()  # a token is a byte


def block_on_signal() -> None:
    """Have SIGUSR1 keep the main thread, and so the event loop, until SIGUSR2."""
    until_s = [0.0]

    def block(*_: object) -> None:
        until_s[0] = time.monotonic() + _MOST_S
        while time.monotonic() < until_s[0]:
            time.sleep(_LOOK_S)

    def release(*_: object) -> None:
        until_s[0] = 0.0

    signal.signal(signal.SIGUSR1, block)
    signal.signal(signal.SIGUSR2, release)


def run_worker(faults: Faults) -> None:
    """Be a worker with these faults, to its end."""
    from bramley.worker.models.blas import load_blas

    blas = load_blas()  # before anything imports mlx

    from bramley.common.main import leave
    from bramley.worker import app
    from bramley.worker.models.errors import ModelError

    def load(*_: object) -> None:
        faults.wait_while("hold-load")
        if faults.has("no-load"):
            raise ModelError("the test wants no model")

    _around("app:load", before=load)
    _around("engine.steps:Steps.run", before=faults.in_step)
    for stage, (target, _) in STAGES.items():
        _around(target, before=functools.partial(faults.fail, stage))
    leave(app.main(blas))


def _around(target: str, before: Callable[..., object]) -> None:
    """Have ``before`` called before the function "module:name" of a worker, as that is."""
    owner, _, name = target.replace(":", ".").rpartition(".")
    place: Any = pkgutil.resolve_name(f"bramley.worker.{owner}")
    inner: Callable[..., Any] = getattr(place, name)

    @functools.wraps(inner)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args)
        return inner(*args, **kwargs)

    setattr(place, name, wrapped)


def main() -> None:
    """Run the module."""
    folder, module, *arguments = sys.argv[1:]
    block_on_signal()
    sys.argv = [module, *arguments]
    if module == "bramley.worker":
        child = json.loads(arguments[arguments.index("--child") + 1])
        run_worker(Faults(Path(folder), child["name"]))
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
