"""The command line in the test's own process."""

import sys
from pathlib import Path

import pytest

from bramley.client import cli


class Shell:
    """Runs ``bramley`` in this process, on one state folder.

    Args:
        state_dir: the folder.
        patch: of the test.
        group: of commands, where all are of one.
    """

    def __init__(self, state_dir: Path, patch: pytest.MonkeyPatch, *group: str) -> None:
        self.state_dir = state_dir
        self._patch = patch
        self._group = group

    def run(self, *arguments: str) -> int:
        """Run a command, and return its exit code."""
        command = ["bramley", "--state-dir", str(self.state_dir), *self._group, *arguments]
        self._patch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code
