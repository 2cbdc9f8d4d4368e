"""The cache store, on a disk that takes nothing while a file exists.

As a process: ``python holding_store.py FILE --child JSON --settings FILE``.
"""

import sys
import time
from pathlib import Path
from typing import Any

from bramley.cachestore.__main__ import run
from bramley.cachestore.disk import Disk
from bramley.cachestore.settings import StoreSettings
from bramley.common.main import leave, run_child


def main() -> int:
    """Run it: the exit code."""
    hold, write = Path(sys.argv.pop(1)), Disk.write

    def wait_and_write(self: Disk, *given: Any, **more: Any) -> None:
        while hold.exists():
            time.sleep(0.01)
        write(self, *given, **more)

    Disk.write = wait_and_write
    return run_child("store", StoreSettings, run)


if __name__ == "__main__":
    leave(main())
