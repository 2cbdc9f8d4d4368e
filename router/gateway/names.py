"""Names fields of the router's requests as a dialect's bodies name them (pure)."""

import re


class Names:
    """A dialect's names.

    Args:
        pairs: a pattern of the router's paths, and what the body calls them; the first that fits
            counts.
    """

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self._pairs = [(re.compile(pattern), name) for pattern, name in pairs]

    def __call__(self, field: str) -> str:
        """Name a field; what no pattern fits stays as it is."""
        for pattern, name in self._pairs:
            if found := pattern.fullmatch(field):
                return found.expand(name)
        return field
