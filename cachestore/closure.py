"""Which objects it takes to use a prefix on its own. Pure."""

from collections.abc import Iterable

from bramley.cachestore import keys, matching
from bramley.cachestore.catalogue import Catalogue, Entry
from bramley.cachestore.keys import Identity
from bramley.cachestore.matching import Group, Query
from bramley.cachestore.namespaces import Namespace

_ONE_MORE = b"\xff\xff\xff\xff"  # a match leaves a token to compute


def told_by(objects: Iterable[Entry], root: bytes, identity: Identity) -> Namespace:
    """Make a namespace that no worker has opened out of what is stored in it."""
    found = {(one.object.group, one.object.kind != "state") for one in objects}
    groups = [Group(name, required=True, sliceable=cut) for name, cut in sorted(found)]
    return Namespace(root, identity, tuple(groups))


def closure(catalogue: Catalogue, namespace: Namespace, entry: Entry) -> list[Entry]:
    """Find what an object needs to be used without any other.

    Returns:
        Itself among them, each once; nothing if there is a gap before it, or if a group lacks
        that is required.
    """
    stored = entry.object
    groups = namespace.parent_groups(stored.group)
    if not groups:  # a model of states alone, each of which holds all that is before it
        ends = [catalogue.end(one.name, stored.chain) for one in namespace.groups if one.required]
        return _each_once([entry, *(end for end in ends if end)]) if all(ends) else []
    if not catalogue.is_reachable(groups[0], stored.parent, stored.root):
        return []
    line = list(catalogue.line(groups[0], stored.parent, stored.root))
    pieces = [place.entry.object.token_ids_le[: place.end] for place in reversed(line)]
    tokens = b"".join([*pieces, stored.token_ids_le])
    query = Query(stored.root, keys.chain(stored.root, tokens), tokens + _ONE_MORE)
    found = matching.find(catalogue, namespace.groups, query)
    if not found.boundaries:
        return []
    at = found.boundaries[0]
    if stored.kind == "state" and at.tokens != entry.end_token:
        return []
    return _each_once([entry, *(place.entry for place in line), *(use.entry for use in at.uses)])


def _each_once(entries: Iterable[Entry]) -> list[Entry]:
    return list({one.id: one for one in entries}.values())


def parents_first(entries: Iterable[Entry]) -> list[Entry]:
    """Put what others follow from before those."""
    return sorted(entries, key=lambda one: (one.object.first_token, one.object.created_s, one.id))
