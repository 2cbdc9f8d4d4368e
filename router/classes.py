"""Classes of urgency: how many may wait in each, how long, and what is kept free for it (pure)."""

import enum
from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Places = Annotated[int, msgspec.Meta(ge=0)]


class Priority(enum.IntEnum):
    """A class; its numbers are those of ``PriorityClass`` in types.proto."""

    BULK = 1
    DEFAULT = 2
    INTERACTIVE = 3
    SYSTEM = 4

    @classmethod
    def of(cls, number: int) -> "Priority":
        """Take the class of a request: DEFAULT, if it asks for none."""
        return cls(number) if number else cls.DEFAULT


class ClassRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one class of a model's requests gets.

    Attributes:
        queue_max: requests that may wait.
        queue_bytes: of the requests that wait, together.
        queue_timeout_s: longest wait for a place on a worker; a request may ask for less.
        floor: places that lower classes leave to it; one place is always everybody's.
        promote_after_s: who waited as long goes before all others, at every fourth place.
    """

    queue_max: Positive = 256
    queue_bytes: Positive = 256 << 20
    queue_timeout_s: Seconds = 60.0
    floor: Places = 0
    promote_after_s: Seconds = 30.0


class SystemRule(ClassRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of probes and the like."""

    queue_max: Positive = 64
    queue_timeout_s: Seconds = 30.0
    promote_after_s: Seconds = 5.0


class InteractiveRule(ClassRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of requests whose first token somebody waits for: they take a bulk request's place."""

    promote_after_s: Seconds = 5.0


class DefaultRule(ClassRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of requests that ask for no class."""

    floor: Places = 1


class BulkRule(ClassRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of requests that may wait, and may be put back before their first token."""

    queue_max: Positive = 1024
    queue_timeout_s: Seconds = 300.0
    promote_after_s: Seconds = 120.0


class Classes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rule of each class, the most urgent first."""

    system: SystemRule = SystemRule()
    interactive: InteractiveRule = InteractiveRule()
    default: DefaultRule = DefaultRule()
    bulk: BulkRule = BulkRule()

    def of(self, priority: Priority) -> ClassRule:
        """The rule of a class."""
        match priority:
            case Priority.SYSTEM:
                return self.system
            case Priority.INTERACTIVE:
                return self.interactive
            case Priority.DEFAULT:
                return self.default
            case Priority.BULK:
                return self.bulk
