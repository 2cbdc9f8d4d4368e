"""Reports 5 and 15: two identities share a root only if they are the same."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from bramley.cachestore.keys import Identity, chain, differing_fields, root

# Few letters, so that parts often coincide or run together.
TEXTS = st.text("ab\0é", max_size=3)
LISTS = st.lists(TEXTS, max_size=3).map(tuple)


@st.composite
def identities(draw: st.DrawFn) -> Identity:
    fields: dict[str, Any] = {name: draw(TEXTS) for name in Identity.__struct_fields__}
    for name in ("adapter_digests", "kv_scheme"):
        fields[name] = draw(LISTS)
    for name in ("draft_digest", "salt"):
        fields[name] = draw(st.none() | TEXTS)
    return Identity(**fields)


@given(identities(), identities())
def test_report_15_distinct_identities_have_distinct_roots(a: Identity, b: Identity) -> None:
    assert (root(a) == root(b)) == (a == b) == (differing_fields(a, b) == [])


@given(identities(), st.data())
def test_report_15_moving_text_between_fields_changes_the_root(
    identity: Identity, data: st.DataObject
) -> None:
    fields: dict[str, Any] = {name: getattr(identity, name) for name in Identity.__struct_fields__}
    one, other = data.draw(
        st.lists(st.sampled_from(sorted(fields)), min_size=2, max_size=2, unique=True)
    )
    swapped = Identity(**fields | {one: fields[other], other: fields[one]})
    assume(swapped != identity)
    assert root(swapped) != root(identity)


@given(identities(), identities(), st.binary(min_size=2048, max_size=2048))
def test_report_15_namespaces_share_no_block(a: Identity, b: Identity, ids: bytes) -> None:
    assume(a != b)
    assert chain(root(a), ids)[:32] != chain(root(b), ids)[:32]
    assert chain(root(a), ids)[32:] != chain(root(b), ids)[32:]
