"""What was said in a session, read off the objects that it stored. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from bramley.cachestore.catalogue import Catalogue, Entry, Place
from bramley.cachestore.namespaces import Namespace

SEQUENCES_MAX = 64
BYTES_MAX = 2 << 20


@dataclass(frozen=True)
class Recalled:
    """One prompt and its answer.

    Attributes:
        first_token: tokens before them that no object holds; the header may tell of those.
    """

    token_ids_le: bytes
    first_token: int
    header: bytes


def recall(
    catalogue: Catalogue,
    namespace: Namespace,
    session_key: str,
    limit: int,
    after_s: float = -inf,
) -> list[Recalled]:
    """Find the newest sequences of a session, none of them the beginning of a newer one.

    Args:
        catalogue: of all.
        namespace: the session's.
        session_key: empty for what was stored without one.
        limit: of how many.
        after_s: when the session was closed, on the wall clock: older objects do not count.

    Returns:
        The newest first; of several BYTES_MAX at most.
    """
    found: list[Recalled] = []
    told: set[str] = set()  # whole objects of the lines that were joined
    size = 0
    entries = catalogue.of_session(namespace.root, session_key)
    for entry in sorted(entries, key=_age, reverse=True):
        if entry.id in told or entry.object.created_s <= after_s:
            continue
        line = _line(catalogue, entry, namespace.parent_groups(entry.object.group))
        told |= {
            place.entry.id for place in line if place.part + 1 == len(place.entry.object.parts)
        }
        one = _recalled(entry, line)
        if any(newer.token_ids_le.startswith(one.token_ids_le) for newer in found):
            continue
        size += len(one.token_ids_le) + len(one.header)
        if len(found) == min(limit, SEQUENCES_MAX) or (found and size > BYTES_MAX):
            break
        found.append(one)
    return found


def _age(entry: Entry) -> tuple[float, int]:
    return entry.object.created_s, entry.end_token


def _line(catalogue: Catalogue, entry: Entry, groups: Sequence[str]) -> list[Place]:
    """The blocks that an object follows, from the last one back."""
    stored = entry.object
    if not groups:
        return []
    return list(catalogue.line(groups[0], stored.parent, stored.root))  # all have the same tokens


def _recalled(entry: Entry, line: Sequence[Place]) -> Recalled:
    pieces = [place.entry.object.token_ids_le[: place.end] for place in reversed(line)]
    tokens = b"".join([*pieces, entry.object.token_ids_le])
    return Recalled(tokens, entry.end_token - len(tokens) // 4, entry.object.header)
