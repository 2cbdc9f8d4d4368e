"""The namespaces that workers have opened: what each one's state consists of."""

from collections.abc import Sequence
from dataclasses import dataclass

from bramley.cachestore.keys import Identity
from bramley.cachestore.matching import Group

PREFILL_RATE = 1000.0  # tokens a second, where a worker does not say


@dataclass
class Namespace:
    """One namespace.

    Attributes:
        prefill_rate: tokens a second; prices recomputation.
    """

    root: bytes
    identity: Identity
    groups: tuple[Group, ...]
    prefill_rate: float = PREFILL_RATE

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
