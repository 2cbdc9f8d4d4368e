"""Which of the stored objects make up the longest prefixes of a request that a model can use.

A *line* is one sliceable group's unbroken run of objects from the root. A boundary is usable
where every required group reaches it: a line by any leading part of a block, since keys and
values can be cut anywhere, and a group of states only where one was kept. At least one token
is always left to compute, or there would be nothing to draw the next one from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bramley.cachestore.catalogue import TOKEN_BYTES, Catalogue, Entry, Place
from bramley.cachestore.keys import HASH_BYTES
from bramley.cachestore.objects import BLOCK

BOUNDARIES_MAX = 4
_BLOCK_BYTES = BLOCK * TOKEN_BYTES


@dataclass(frozen=True)
class Group:
    """A state group as the namespace declares it."""

    name: str
    required: bool
    sliceable: bool


@dataclass(frozen=True)
class Query:
    """A request's tokens, and the hashes of its whole blocks.

    Attributes:
        root: of the namespace.
        chains: 32 bytes a whole block.
        tokens: all ids, little-endian uint32.
    """

    root: bytes
    chains: bytes
    tokens: bytes

    def chain(self, blocks: int) -> bytes:
        """The hash after that many whole blocks."""
        end = blocks * HASH_BYTES
        return self.chains[end - HASH_BYTES : end] if blocks else self.root

    def rest(self, blocks: int) -> bytes:
        """The tokens of the block after that many whole ones, as far as there are any."""
        return self.tokens[blocks * _BLOCK_BYTES : (blocks + 1) * _BLOCK_BYTES]

    @property
    def blocks(self) -> int:
        """How many whole blocks there are."""
        return len(self.chains) // HASH_BYTES

    @property
    def usable_tokens(self) -> int:
        """All tokens but one."""
        return len(self.tokens) // TOKEN_BYTES - 1


@dataclass(frozen=True)
class Use:
    """A leading part of an object, from its first token on."""

    entry: Entry
    tokens: int


@dataclass(frozen=True)
class Boundary:
    """A place where computing can go on; ``uses`` lead to it, each group's from the root on."""

    tokens: int
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Found:
    """What a request can use, deepest first.

    Attributes:
        missing_groups: optional ones that the deepest boundary lacks; without any boundary, the
            required ones that prevent it.
    """

    boundaries: tuple[Boundary, ...]
    missing_groups: tuple[str, ...]


@dataclass(frozen=True)
class _Line:
    uses: tuple[Use, ...]
    tokens: int

    def cut(self, tokens: int) -> list[Use]:
        """The uses that lead to ``tokens``, which it covers."""
        return [
            Use(use.entry, min(use.tokens, tokens - use.entry.object.first_token))
            for use in self.uses
            if use.entry.object.first_token < tokens
        ]


def find(catalogue: Catalogue, groups: Sequence[Group], query: Query) -> Found:
    """Find the usable prefixes of a request."""
    lines = {group.name: _line(catalogue, group.name, query) for group in groups if group.sliceable}
    required = [group for group in groups if group.required]
    reaches = [lines[group.name].tokens for group in required if group.sliceable]
    reach = max(0, min([query.usable_tokens, *reaches]))
    stateful = [group.name for group in required if not group.sliceable]
    if stateful:
        ends = _state_boundaries(catalogue, stateful, query, reach)
    else:
        ends = _line_boundaries([lines[group.name] for group in required], reach)
    boundaries: list[Boundary] = []
    missing: list[str] = []
    for tokens in ends[:BOUNDARIES_MAX]:
        uses: list[Use] = []
        for group in groups:
            found = (
                lines[group.name].cut(tokens)
                if group.sliceable and lines[group.name].tokens >= tokens
                else _states_at(catalogue, group, query, tokens)
            )
            if not found and not boundaries:
                missing.append(group.name)
            uses += found
        boundaries.append(Boundary(tokens, tuple(uses)))
    if not boundaries:
        missing = _preventing(catalogue, required, lines, query)
    return Found(tuple(boundaries), tuple(missing))


def _preventing(
    catalogue: Catalogue, required: Iterable[Group], lines: dict[str, _Line], query: Query
) -> list[str]:
    return [
        group.name
        for group in required
        if not (
            lines[group.name].tokens
            if group.sliceable
            else _state_boundaries(catalogue, [group.name], query, query.usable_tokens)
        )
    ]


def _line_boundaries(lines: Sequence[_Line], reach: int) -> list[int]:
    ends = {reach, reach // BLOCK * BLOCK}
    for line in lines:
        ends |= {use.entry.object.first_token for use in line.uses}
    return sorted((end for end in ends if 0 < end <= reach), reverse=True)


def _state_boundaries(
    catalogue: Catalogue, groups: Sequence[str], query: Query, reach: int
) -> list[int]:
    ends: list[int] = []
    for blocks in range(min(query.blocks, reach // BLOCK), -1, -1):
        rest, chain = query.rest(blocks), query.chain(blocks)
        first, *others = (catalogue.states(group, chain) for group in groups)
        for more in sorted(first, reverse=True):
            tokens, key = blocks * BLOCK + more, rest[: more * TOKEN_BYTES]
            if not 0 < tokens <= reach:
                continue
            if all(key in states.get(more, ()) for states in (first, *others)):
                ends.append(tokens)
        if len(ends) >= BOUNDARIES_MAX:
            break
    return ends


def _states_at(catalogue: Catalogue, group: Group, query: Query, tokens: int) -> list[Use]:
    if group.sliceable:
        return []
    blocks, more = divmod(tokens, BLOCK)
    states = catalogue.states(group.name, query.chain(blocks)).get(more, {})
    entry = states.get(query.rest(blocks)[: more * TOKEN_BYTES])
    return [Use(entry, more)] if entry is not None else []


def _line(catalogue: Catalogue, group: str, query: Query) -> _Line:
    """Find a group's deepest unbroken run of objects, and what of the next block is there."""
    uses, blocks = _whole_blocks(catalogue, group, query, query.blocks)
    place, shared = _longest_shared(catalogue, group, query, blocks)
    if place is None:
        return _Line(uses, blocks * BLOCK)
    entry = place.entry
    first, end = entry.object.first_token, blocks * BLOCK + shared
    if not _same_tokens(entry, query, end):
        return _Line(uses, blocks * BLOCK)
    if uses and uses[-1].entry is entry:
        uses = uses[:-1]
    elif first < blocks * BLOCK:
        # It begins before this block, and stands for what it covers there, too.
        uses, reached = _whole_blocks(catalogue, group, query, first // BLOCK)
        assert reached == first // BLOCK, "a part of the line is not a line"
    return _Line((*uses, Use(entry, end - first)), end)


def _whole_blocks(
    catalogue: Catalogue, group: str, query: Query, blocks: int
) -> tuple[tuple[Use, ...], int]:
    reversed_uses: list[Use] = []
    top = at = blocks
    while at:
        place = catalogue.block(group, query.chain(at))
        if place is None or not _is_of(place, query, at):
            reversed_uses.clear()
            top = at = at - 1
            continue
        first = place.entry.object.first_token
        reversed_uses.append(Use(place.entry, at * BLOCK - first))
        at = first // BLOCK
    return tuple(reversed(reversed_uses)), top


def _is_of(place: Place, query: Query, blocks: int) -> bool:
    """Whether an object up to this part is the request's own, token by token."""
    end = blocks * BLOCK
    return place.first_token + BLOCK == end and _same_tokens(place.entry, query, end)


def _same_tokens(entry: Entry, query: Query, end_token: int) -> bool:
    stored = entry.object
    start, end = stored.first_token * TOKEN_BYTES, end_token * TOKEN_BYTES
    return (
        stored.root == query.root and query.tokens[start:end] == stored.token_ids_le[: end - start]
    )


def _longest_shared(
    catalogue: Catalogue, group: str, query: Query, blocks: int
) -> tuple[Place | None, int]:
    rest = query.rest(blocks)
    best: tuple[Place | None, int] = (None, 0)
    for place in catalogue.nearest(group, query.chain(blocks), rest):
        shared = common_tokens(place.tokens, rest)
        if shared > best[1] and place.first_token == blocks * BLOCK:
            best = (place, shared)
    return best


def common_tokens(a: bytes, b: bytes) -> int:
    """How many token ids two prompts share from their start."""
    low, high = 0, min(len(a), len(b)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if a[: middle * TOKEN_BYTES] == b[: middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
