"""Which stored objects a command is about: by their ids, or by session, model and namespace."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from bramley.client.cache import CachedObject, Listed
from bramley.client.store import Store
from bramley.common.errors import InvalidRequest

_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What was typed; empty is not given.

    Attributes:
        ids: leading characters of ids; of each as many as no other has.
        namespace: leading characters of its root, in hex.
        everything: asked for in so many words.
    """

    ids: tuple[str, ...] = ()
    session: str = ""
    model: str = ""
    namespace: str = ""
    everything: bool = False

    @property
    def has_filter(self) -> bool:
        """Whether anything but ids was given."""
        return bool(self.session or self.model or self.namespace or self.everything)


def listed(store: Store, wanted: Selection, limit: int) -> Listed:
    """Find the first objects of a selection; without anything given that is all.

    Args:
        store: whose they are.
        wanted: without ids.
        limit: of how many; 0 for all.

    Returns:
        Those, by id.

    Raises:
        InvalidRequest: there is no such model or namespace, or more than one.
    """
    found: list[CachedObject] = []
    for one in _filtered(store, wanted, limit + 1 if limit else 0):
        if limit and len(found) == limit:
            return Listed(objects=found, more=True)
        found.append(one)
    return Listed(objects=found, more=False)


def selected(store: Store, wanted: Selection) -> list[CachedObject]:
    """Find the objects of a selection.

    Returns:
        Each once; one at least.

    Raises:
        InvalidRequest: nothing was given, or ids together with something else, or it is about
            nothing that is stored, or an id about several.
    """
    if wanted.ids and wanted.has_filter:
        raise InvalidRequest("ID", "give either ids, or what the objects have in common")
    if not wanted.ids and not wanted.has_filter:
        raise InvalidRequest("ID", "name objects, or what they have in common: see --help")
    if wanted.ids:
        found = [_one(store, prefix) for prefix in wanted.ids]
    else:
        found = list(_filtered(store, wanted, 0))
    if not found:
        raise InvalidRequest(_argument(wanted), "nothing is stored of it")
    return list({one.id: one for one in found}.values())


def _argument(wanted: Selection) -> str:
    """Name what was typed last."""
    given = {
        "--session": wanted.session,
        "--model": wanted.model,
        "--namespace": wanted.namespace,
    }
    return next((name for name, value in given.items() if value), "--all")


def _one(store: Store, prefix: str) -> CachedObject:
    if not _HEX.fullmatch(prefix):
        raise InvalidRequest("ID", f"{prefix!r} is no id: they have the digits 0-9 and a-f")
    found = list(zip(range(2), store.objects(id_prefix=prefix, page=2), strict=False))
    if not found:
        raise InvalidRequest("ID", f"the id of no object begins with {prefix!r}")
    if len(found) > 1:
        raise InvalidRequest("ID", f"the ids of several objects begin with {prefix!r}")
    return found[0][1]


def _filtered(store: Store, wanted: Selection, page: int) -> Iterator[CachedObject]:
    return chain.from_iterable(
        store.objects(root=root, session=wanted.session, page=page)
        for root in _roots(store, wanted)
    )


def _roots(store: Store, wanted: Selection) -> Iterable[bytes]:
    """Find the namespaces that are asked about; an empty root stands for all."""
    if not wanted.model and not wanted.namespace:
        return [b""]
    found = store.namespaces()
    if wanted.model:
        roots = {root.hex() for root in store.models.get(wanted.model, ())}
        own = [one for one in found if one.root in roots]
        if not own:
            names = ", ".join(sorted(store.models)) or "none"
            raise InvalidRequest(
                "--model",
                f"no worker of {wanted.model!r} runs, so that its namespaces are not known:"
                f" --namespace works without (models that run: {names})",
            )
        # Another tenant's namespace differs in its salt alone.
        alike = [_unsalted(one.identity) for one in own]
        found = [one for one in found if one in own or _unsalted(one.identity) in alike]
    if wanted.namespace:
        found = [one for one in found if one.root.startswith(wanted.namespace.lower())]
        if len(found) != 1:
            count = "several namespaces begin" if found else "no namespace begins"
            raise InvalidRequest("--namespace", f"{count} with {wanted.namespace!r}")
    return [bytes.fromhex(one.root) for one in found]


def _unsalted(identity: dict[str, str | list[str]]) -> dict[str, str | list[str]]:
    return {name: value for name, value in identity.items() if name != "salt"}
