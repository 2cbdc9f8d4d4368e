"""Embeddings without a model: which texts share a forward, what folders say, cuts and lengths."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from bramley.common.errors import EngineFault
from bramley.worker.embedding.declared import Declared, declared_by
from bramley.worker.embedding.job import ROWS_MAX, EmbedJob, choose, texts_of
from bramley.worker.embedding.vectors import finish

POOLING = "1_Pooling/config.json"
KINDS = "sentence_transformers.models."


def chosen(lengths: list[int], tokens: int) -> list[int]:
    job = EmbedJob(id="j", texts=[[0] * length for length in lengths], pooling="mean")
    return [len(text.ids) for text in choose(texts_of(job), tokens)]


def test_texts_share_a_forward_while_they_fit_it_and_are_about_as_long() -> None:
    assert chosen([3, 9, 10, 4, 5], 100) == [10, 9, 5]  # half as long at least
    assert chosen([10, 10, 10], 29) == [10, 10]  # padding counts
    assert chosen([30, 20, 1], 16) == [30]  # alone, in pieces
    assert len(chosen([1] * (ROWS_MAX + 9), 4096)) == ROWS_MAX


def test_longer_texts_of_other_jobs_wait_for_their_own_turn() -> None:
    first, other = (
        EmbedJob(id=name, texts=texts, pooling="mean")
        for name, texts in (("a", [[1] * 8]), ("b", [[1] * 9, [1] * 7]))
    )
    taken = choose([*texts_of(first), *texts_of(other)], 64)
    assert [(text.job.id, len(text.ids)) for text in taken] == [("a", 8), ("b", 7)]


def folder(path: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(json.dumps(content))
    return path


def modules(*kinds: str) -> list[dict[str, str]]:
    return [
        {"type": KINDS + kind, "path": f"{n}_{kind}" if n else ""} for n, kind in enumerate(kinds)
    ]


LAST = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, Declared()),
        ({POOLING: LAST}, Declared(pooling="last")),
        ({POOLING: {"pooling_mode": "mean"}}, Declared()),
        (
            {"modules.json": modules("Transformer", "Pooling", "Normalize"), POOLING: LAST},
            Declared(pooling="last", normalizes=True),
        ),
    ],
)
def test_a_folder_says_how_its_model_pools(
    tmp_path: Path, files: dict[str, Any], said: Declared
) -> None:
    assert declared_by(folder(tmp_path, files)) == said


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({POOLING: {"pooling_mode_cls_token": True}}, "cls_token"),
        ({POOLING: {**LAST, "pooling_mode_mean_tokens": True}}, "and"),
        ({"modules.json": modules("Transformer", "Pooling", "Dense")}, "Dense"),
        ({"config.json": {"use_bidirectional_attention": True}}, "both directions"),
    ],
)
def test_what_is_not_computed_here_is_told(
    tmp_path: Path, files: dict[str, Any], word: str
) -> None:
    assert word in declared_by(folder(tmp_path, files)).problem


def test_a_vector_is_cut_before_it_is_brought_to_length_1() -> None:
    values = struct.pack("<3f", 3, 4, 12)
    assert struct.unpack("<3f", finish(values, dimensions=0, normalize=False)) == (3, 4, 12)
    cut = struct.unpack("<2f", finish(values, dimensions=2, normalize=True))
    assert cut == pytest.approx((0.6, 0.8))
    assert finish(bytes(8), dimensions=0, normalize=True) == bytes(8)
    with pytest.raises(EngineFault):
        finish(struct.pack("<2f", 1, float("nan")), dimensions=0, normalize=False)
