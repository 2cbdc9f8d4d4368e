"""Prints docs/testing.md's table of the kill matrix from what a run of it has written.

``pytest tests/fault/test_matrix.py -o junit_family=xunit1 --junitxml FILE`` (in pieces, if so
wanted), then ``python tests/support/matrix_table.py FILE...``.
"""

import json
import sys
from typing import Any
from xml.etree import ElementTree

PHASES = ("idle", "loading", "queued", "prefill", "decode")
SIGNS = {"UNAVAILABLE WORKER_LOST": "lost", "UNAVAILABLE": "broken"}
WHOSE = {"subject": "", "runs": " (runs)", "beside": " (other)"}
Row = dict[str, Any]


def rows(path: str) -> list[Row]:
    """Read what the cells of one run told; those that failed told nothing."""
    found = ElementTree.parse(path).iter("property")  # noqa: S314  our own file
    return [json.loads(one.get("value", "")) for one in found if one.get("name") == "row"]


def shown(row: Row) -> str:
    """Say when a new request was served, and what failed, if anything."""
    ends: dict[str, str] = row["ends"]
    failed = [f"{SIGNS[end]}{WHOSE[role]}" for role, end in ends.items() if end != "OK"]
    return ", ".join([f"{row['back_s']:.1f} s", *failed])


def main() -> None:
    """Print a line for each process and fault."""
    cells = {tuple(row["cell"]): row for path in sys.argv[1:] for row in rows(path)}
    print(f"| process | what befalls it | {' | '.join(PHASES)} | new requests meanwhile |")  # noqa: T201
    print("|---" * (3 + len(PHASES)) + "|")  # noqa: T201
    for victim, fault in dict.fromkeys((victim, fault) for victim, fault, _ in cells):
        found = [cells.get((victim, fault, phase)) for phase in PHASES]
        told = " | ".join(shown(row) if row else "failed" for row in found)
        refused = sorted({status for row in found if row for status in row["refused"]})
        print(f"| {victim} | {fault} | {told} | {', '.join(refused) or 'wait'} |")  # noqa: T201


if __name__ == "__main__":
    main()
