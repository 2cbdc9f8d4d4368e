"""Names of what is stored: equal everywhere, and never equal for different things."""

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bramley.cachestore.keys import HASH_BYTES, Identity, chain, differing_fields, root, tail_hash

GOLDEN = Path(__file__).parents[2] / "golden" / "cachestore_keys.json"
PLAIN = Identity(
    weights_digest="weights",
    config_digest="config",
    tokenizer_digest="tokenizer",
    kv_scheme=("full", "full"),
    layout="block",
    numerics_epoch="1",
)


def golden() -> list[dict[str, Any]]:
    return json.loads(GOLDEN.read_text())


def tokens(first: int, step: int, count: int) -> bytes:
    return b"".join(struct.pack("<I", (first + step * n) % 2**32) for n in range(count))


def names(case: dict[str, Any]) -> dict[str, Any]:
    """Everything that the keys say about a golden case."""
    name = root(msgspec.convert(case["identity"], Identity))
    ids = tokens(**case["tokens"])
    hashes = chain(name, ids)
    rest = ids[len(hashes) // HASH_BYTES * 1024 :]
    return {
        "root": name.hex(),
        "chain": [hashes[at : at + 32].hex() for at in range(0, len(hashes), 32)],
        "tail": tail_hash(hashes[-32:] or name, rest).hex() if rest else None,
    }


def recorded(case: dict[str, Any]) -> dict[str, Any]:
    return {key: case[key] for key in ("root", "chain", "tail")}


def test_report_5_names_are_as_recorded() -> None:
    assert len(golden()) >= 50
    assert [names(case) for case in golden()] == [recorded(case) for case in golden()]


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_report_5_names_are_as_recorded_in_another_process(seed: str) -> None:
    code = (
        "import json; from test_keys import golden, names;"
        "print(json.dumps([*map(names, golden())]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        timeout=60,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    assert json.loads(done.stdout) == [recorded(case) for case in golden()]


def differ(*identities: Identity) -> bool:
    return len({root(identity) for identity in identities}) == len(identities)


def with_(**fields: object) -> Identity:
    return msgspec.structs.replace(PLAIN, **fields)


def test_b022_adapters_have_namespaces_of_their_own() -> None:
    assert differ(
        PLAIN,
        with_(adapter_digests=("A",)),
        with_(adapter_digests=("B",)),
        with_(adapter_digests=("A", "B")),
        with_(adapter_digests=("B", "A")),
    )


def test_b025_report_15_a_salt_imitates_no_adapter() -> None:
    assert differ(PLAIN, with_(adapter_digests=("s1",)), with_(salt="s1"), with_(draft_digest="s1"))


def test_b025_report_15_parts_do_not_run_together() -> None:
    assert differ(
        with_(adapter_digests=("ab",), salt="c"), with_(adapter_digests=("a",), salt="bc")
    )
    assert differ(
        with_(adapter_digests=("a", "bc")),
        with_(adapter_digests=("ab", "c")),
        with_(adapter_digests=("abc",)),
        with_(adapter_digests=("a", "b", "c")),
    )
    assert differ(
        with_(weights_digest="ab", config_digest="c"), with_(weights_digest="a", config_digest="bc")
    )


def test_report_15_absent_is_not_empty() -> None:
    assert differ(with_(salt=None), with_(salt=""))
    assert differ(with_(draft_digest=None), with_(draft_digest=""))
    assert differ(with_(adapter_digests=()), with_(adapter_digests=("",)))
    assert differ(with_(kv_scheme=()), with_(kv_scheme=("",)), with_(kv_scheme=("", "")))


def test_report_15_the_same_text_in_each_field_gives_another_root() -> None:
    texts = [with_(**{name: "x"}) for name in Identity.__struct_fields__ if name not in TUPLES]
    lists = [with_(**{name: ("x",)}) for name in TUPLES]
    assert differ(*texts, *lists)


TUPLES = ("adapter_digests", "kv_scheme")


def test_report_6_a_salted_prefix_has_no_name_in_common_with_the_unsalted() -> None:
    ids = tokens(1, 1, 1024)
    salted, plain = (chain(root(each), ids) for each in (with_(salt="tenant"), PLAIN))
    assert not {salted[at : at + 32] for at in range(0, 128, 32)} & {
        plain[at : at + 32] for at in range(0, 128, 32)
    }


def test_a_chain_names_whole_blocks_only() -> None:
    lengths = [len(chain(root(PLAIN), tokens(0, 1, count))) for count in (0, 255, 256, 511, 512)]
    assert lengths == [0, 0, 32, 32, 64]


def test_a_chain_goes_on_from_any_of_its_names() -> None:
    ids = tokens(0, 1, 768)
    whole = chain(root(PLAIN), ids)
    assert chain(whole[:32], ids[1024:]) == whole[32:]


def test_a_changed_token_changes_every_later_name_and_no_earlier() -> None:
    ids = bytearray(tokens(0, 1, 768))
    before = chain(root(PLAIN), bytes(ids))
    ids[1024] ^= 1
    after = chain(root(PLAIN), bytes(ids))
    assert [before[at : at + 32] == after[at : at + 32] for at in (0, 32, 64)] == [
        True,
        False,
        False,
    ]


def test_tails_of_every_length_have_names_of_their_own() -> None:
    parent, ids = root(PLAIN), tokens(0, 0, 256)
    tails = {tail_hash(parent, ids[: 4 * count]) for count in range(1, 256)}
    assert len(tails) == 255
    assert chain(parent, ids) not in tails


@pytest.mark.parametrize("length", [0, 3, 5, 1024, 1028])
def test_what_is_no_tail_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="is not 1 to 255 tokens"):
        tail_hash(root(PLAIN), bytes(length))


def test_differing_fields_are_named_in_order() -> None:
    other = with_(salt="s", config_digest="other", adapter_digests=("A",))
    assert differing_fields(PLAIN, other) == ["config_digest", "adapter_digests", "salt"]
    assert differing_fields(PLAIN, PLAIN) == []


def test_a_long_prompt_is_named_within_3_ms() -> None:
    ids, name = os.urandom(4 * 131_072), root(PLAIN)

    def seconds(_: int) -> float:
        start_s = time.perf_counter()
        chain(name, ids)
        return time.perf_counter() - start_s

    # Others use this machine too: the best of many counts.
    assert min(map(seconds, range(30))) <= 0.003
