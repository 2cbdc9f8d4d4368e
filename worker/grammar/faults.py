"""Why the library refuses a grammar, in words about what its caller wrote. Pure."""

import re
from typing import Final

_SHOWN_MAX: Final = 80  # characters of an expression's part
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_LISTING = re.compile(r"\n +\d+ \| ")  # the grammar's lines behind the problem
_NEXT = re.compile(r" \(at \".*", re.DOTALL)  # what stands where something else was expected
_QUIET: Final = "<non-verbose/>"
_IN_REGEX: Final = " (in regex): "
_CARETS = re.compile(r"( +)(\^+) *")


def grammar_fault(error: str, own: range) -> str:
    """Write why a grammar cannot be compiled.

    Args:
        error: as the library says it.
        own: lines of the grammar, from 1, that the caller wrote: their places are told as the
            caller counts lines.

    Returns:
        One line.
    """
    place = ""
    while found := _PLACE.match(error):  # of a grammar inside another both have a place
        line = int(found[1])
        error = error[found.end() :]
        if line in own:
            place = f"line {line - own.start + 1}, column {found[2]}: "
        else:
            error = _NEXT.sub("", error)
    _, is_regex, expression = error.partition(_IN_REGEX)
    if is_regex:
        return place + expression_fault(expression)
    return place + " ".join(_LISTING.split(error)[0].removesuffix(_QUIET).split())


def expression_fault(error: str) -> str:
    """Write why a regular expression is refused: the reason, and the part of it that is meant."""
    lines = error.splitlines()
    at = next((at for at, line in enumerate(lines) if line.startswith("error: ")), 0)
    reason = lines[at].removeprefix("error: ") if lines else ""
    carets = _CARETS.fullmatch(lines[at - 1]) if at > 1 else None
    part = lines[at - 2][carets.start(2) : carets.end(2)] if carets else ""
    return f"{reason}: {part[:_SHOWN_MAX]!r}" if part else reason
