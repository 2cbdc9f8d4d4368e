"""Where in a schema something stands, and what is there, as an error says it. Pure."""

import json
from dataclasses import dataclass
from typing import Final

_POINTER_MAX: Final = 200  # characters that are shown
_VALUE_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere in parsed JSON; the whole of it has no parent.

    Many share their parents: a path of its own for each could take more room than the schema.
    """

    parent: "Place | None" = None
    key: str | int = ""

    def at(self, key: str | int) -> "Place":
        """Go one step down."""
        return Place(self, key)

    def pointer(self) -> str:
        """Write the place as a JSON pointer, its middle left out where it is too long."""
        parts: list[str] = []
        place = self
        while place.parent is not None:
            parts.append("/" + str(place.key).replace("~", "~0").replace("/", "~1"))
            place = place.parent
        whole, half = _sendable("".join(reversed(parts))), _POINTER_MAX // 2
        return whole if len(whole) <= _POINTER_MAX else f"{whole[:half]}…{whole[-half:]}"


def shown(value: object) -> str:
    """Write parsed JSON, or its beginning; nothing where that cannot be done."""
    try:
        whole = _sendable(json.dumps(value, ensure_ascii=False))
    except (RecursionError, ValueError):
        return ""
    return whole if len(whole) <= _VALUE_MAX else f"{whole[:_VALUE_MAX]}…"


def _sendable(text: str) -> str:
    """Write halves of characters as escapes: no message can hold them."""
    return text.encode("utf-8", "backslashreplace").decode()
