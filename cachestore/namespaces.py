"""The namespaces that workers have opened: what each one's state consists of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bramley.cachestore.keys import Identity
from bramley.cachestore.matching import Group

PREFILL_RATE = 1000.0  # tokens a second, where a worker does not say
OPEN_MAX = 1024
UNUSED_S = 3600.0


@dataclass
class Namespace:
    """One namespace.

    Attributes:
        prefill_rate: tokens a second; prices recomputation.
        used_s: when a worker last named it.
    """

    root: bytes
    identity: Identity
    groups: tuple[Group, ...]
    prefill_rate: float = PREFILL_RATE
    used_s: float = 0.0

    def group(self, name: str) -> Group | None:
        """Find a declared group."""
        return next((group for group in self.groups if group.name == name), None)

    def parent_groups(self, name: str) -> Sequence[str]:
        """In which groups a chain must be for an object of group ``name`` to follow it."""
        group = self.group(name)
        return [name] if group is not None and group.sliceable else self.trunk

    @property
    def trunk(self) -> Sequence[str]:
        """The groups whose blocks a state follows."""
        return [group.name for group in self.groups if group.sliceable and group.required]


def superfluous(
    namespaces: Mapping[bytes, Namespace], is_empty: Callable[[bytes], bool], now_s: float
) -> list[bytes]:
    """Name those to forget, where there are too many.

    Args:
        namespaces: that are open.
        is_empty: whether one has no objects.
        now_s: the time.

    Returns:
        Roots of empty ones that nobody used for long, the longest unused first.
    """
    beyond = len(namespaces) - OPEN_MAX
    if beyond <= 0:
        return []
    idle = [one for one in namespaces.values() if one.used_s + UNUSED_S <= now_s]
    idle.sort(key=lambda one: one.used_s)
    return [one.root for one in idle if is_empty(one.root)][:beyond]
