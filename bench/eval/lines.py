"""Files of one JSON object a line, each checked against what it should hold."""

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec

from bramley.common.errors import InvalidRequest

S = TypeVar("S", bound=msgspec.Struct)


def read_lines(file: Path, kind: type[S]) -> list[S]:
    """Read such a file; empty lines are passed over.

    Returns:
        The objects, in order: at least one.

    Raises:
        InvalidRequest: it cannot be read, is empty, or a line holds something else.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise InvalidRequest(str(file), str(error.strerror)) from error
    found: list[S] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"{file}:{number}", str(error)) from error
    if not found:
        raise InvalidRequest(str(file), "holds nothing")
    return found


def file_sha256(file: Path) -> str:
    """Digest a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def positive(text: str) -> int:
    """Read a number of at least 1, for argparse.

    Returns:
        The number.

    Raises:
        ValueError: it is none.
    """
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number
