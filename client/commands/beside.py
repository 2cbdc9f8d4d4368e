"""Runs a supervisor beside the command: in a session of its own, its words in its log."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

COMMAND = (sys.executable, "-P", "-m", "bramley.deploy")


class Beside:
    """A supervisor that outlives the command.

    It writes to its log once it owns the state folder; what it says before is read here.

    Attributes:
        process: the supervisor's.
        log: where its words go.
    """

    def __init__(self, state_dir: Path, arguments: Sequence[str]) -> None:
        self.log = state_dir / "logs" / "supervisor.log"
        self._offset = self.log.stat().st_size if self.log.exists() else 0
        self.process = subprocess.Popen(  # noqa: S603
            [*COMMAND, "--state-dir", str(state_dir), "--detached", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.stderr is not None:
            self.process.stderr.close()

    def last_words(self) -> str:
        """Tell why it has ended."""
        refusal = self.process.stderr.read() if self.process.stderr is not None else b""
        if refusal.strip():
            return _last_line(refusal)
        if not self.log.exists():
            return "the supervisor ended without a word"
        with self.log.open("rb") as written:
            written.seek(self._offset)
            said = _last_line(written.read())
        return f"{said} (the supervisor ended; its log is {self.log})"

    def code(self) -> int:
        """Choose the command's exit code for its end: its own, where it failed with one."""
        return self.process.returncode if self.process.returncode > 0 else 1


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("bramley: ") if lines else "not a word"
