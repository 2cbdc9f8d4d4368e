"""Divergences are what their definition says, and how sure their means are."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bramley.bench.eval.divergence import ROWS, NotFinite, compare
from bramley.bench.eval.kept import SPARE_BYTES, Kept, NoRoom, widened
from bramley.bench.eval.provenance import describe
from bramley.bench.eval.spread import by_kind, summarize, worst
from bramley.bench.eval.sure import interval, wilson
from bramley.bench.eval.texts import SHIPPED, Text, read_texts
from bramley.common.errors import InvalidRequest

KINDS = {"prose", "code", "dialogue", "tables", "numbers", "languages", "letters"}


def logits(*rows: Sequence[float]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


def targets(*ids: int) -> NDArray[np.int64]:
    return np.array(ids, np.int64)


def test_the_divergence_of_two_coins_is_its_closed_form() -> None:
    fair, biased = logits([0.0, 0.0]), np.log(logits([3.0, 1.0]))
    found = compare(fair, biased, targets(1))
    # 1/2 ln((1/2)/(3/4)) + 1/2 ln((1/2)/(1/4)) = 1/2 ln(4/3)
    np.testing.assert_allclose(found.kl, [0.5 * math.log(4 / 3)], rtol=1e-6)
    np.testing.assert_allclose(found.reference_nll, [math.log(2)], rtol=1e-6)
    np.testing.assert_allclose(found.candidate_nll, [math.log(4)], rtol=1e-6)
    back = compare(biased, fair, targets(1))
    np.testing.assert_allclose(back.kl, [0.75 * math.log(1.5) + 0.25 * math.log(0.5)], rtol=1e-5)


def test_a_model_is_at_no_distance_from_itself_whatever_is_added_to_its_scores() -> None:
    drawn = np.random.default_rng(1).normal(size=(ROWS * 2 + 3, 50)).astype(np.float32) * 5
    ids = np.arange(len(drawn)) % 50
    assert compare(drawn, drawn, ids).kl.max() == 0
    shifted = compare(drawn, drawn + np.float32(1000), ids)
    assert shifted.kl.max() < 1e-6
    assert shifted.agrees.all()


def test_the_likeliest_tokens_agree_or_not_at_each_position() -> None:
    one, other = logits([1, 2, 0], [5, 1, 1]), logits([0, 9, 0], [1, 1, 4])
    assert compare(one, other, targets(0, 0)).agrees.tolist() == [True, False]


def test_what_both_rule_out_counts_for_nothing_and_what_one_alone_does_for_everything() -> None:
    ruled, open_ = logits([0, 0, -math.inf]), logits([0, 0, 0])
    assert compare(ruled, ruled, targets(0)).kl.tolist() == [0]
    assert compare(ruled, open_, targets(0)).kl[0] == pytest.approx(math.log(1.5))
    assert compare(open_, ruled, targets(0)).kl.tolist() == [math.inf]


@pytest.mark.parametrize("bad", [[math.nan, 0], [math.inf, 0], [-math.inf, -math.inf]])
def test_scores_without_a_distribution_are_refused(bad: list[float]) -> None:
    with pytest.raises(NotFinite):
        compare(logits([0, 0]), logits(bad), targets(0))


def test_the_summary_is_over_positions_and_its_interval_over_texts() -> None:
    same = compare(logits([0, 0]), logits([0, 0]), targets(0))
    apart = compare(logits(*[[0, 0]] * 3), logits(*[[0, 3]] * 3), targets(0, 0, 0))
    each = apart.kl[0]
    figures = summarize([same, apart])
    assert (figures.texts, figures.positions) == (2, 4)
    assert figures.mean == pytest.approx(0.75 * each)
    assert (figures.median, figures.p95, figures.max) == (each, each, each)
    assert figures.reference_perplexity == pytest.approx(2)
    assert figures.mean_interval is None  # of two texts it would promise too much
    told = summarize([same, apart] * 4).mean_interval
    assert told is not None
    assert 0 <= told.low < 0.75 * each < told.high <= each


def test_kinds_are_summed_up_apart_and_the_worst_position_is_named() -> None:
    same = compare(logits([0, 0]), logits([0, 0]), targets(0))
    apart = compare(logits([0, 0], [0, 0]), logits([0, 1], [0, 3]), targets(0, 0))
    texts = [Text(id="a", text="", kind="x"), Text(id="b", text="", kind="y")]
    found = by_kind(texts, [same, apart])
    assert (found["x"].max, found["y"].positions) == (0, 2)
    told = worst(texts, [same, apart], [0, 31])
    assert (told.text, told.position, told.kl) == ("b", 32, apart.kl[1])


def test_the_bootstrap_holds_the_mean_and_is_the_same_each_time() -> None:
    values = np.random.default_rng(2).normal(3, 1, 40).tolist()
    told = interval(values, [1] * 40)
    assert told is not None
    mean, error = sum(values) / 40, float(np.std(values) / math.sqrt(40))
    assert told.low == pytest.approx(mean - 1.96 * error, abs=0.1 * error)
    assert told.high == pytest.approx(mean + 1.96 * error, abs=0.1 * error)
    assert told == interval(values, [1] * 40)
    assert interval([math.inf] * 9, [1] * 9) is None


def test_a_share_s_interval_is_wilson_s_and_never_of_no_width() -> None:
    told = wilson(3, 10)
    assert told is not None
    # Where the share is 1.96 deviations of each end's own distribution away.
    for end in (told.low, told.high):
        assert abs(end - 0.3) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / 10), rel=1e-4)
    none, every = wilson(0, 10), wilson(10, 10)
    assert none is not None
    assert every is not None
    assert (none.low, every.high) == (0, pytest.approx(1))
    assert none.high == pytest.approx(1 - every.low)
    assert 0.25 < none.high < 0.3
    assert wilson(0, 0) is None


def bits_of(values: list[float], dtype: str) -> NDArray[Any]:
    if dtype == "bfloat16":  # the upper half of a float32
        return (np.array([values], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.array([values], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_kept_logits_come_back_as_they_were(tmp_path: Path, dtype: str) -> None:
    kept = Kept(tmp_path / "logits", [2, 3], 4, dtype)
    bits = bits_of([0.5, -3.0, 96.0, -math.inf], dtype)
    kept.write(1, 1, np.repeat(bits, 2, axis=0))
    read = kept.read(1, 1, 2)
    assert read.dtype == np.float32
    assert read.tolist() == [[0.5, -3.0, 96.0, -math.inf]] * 2
    assert not kept.read(0, 0, 2).any()
    assert kept.nbytes == 5 * 4 * bits.itemsize
    assert widened(bits, dtype).tolist() == read[:1].tolist()


def test_what_the_disk_has_no_room_for_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match="has no room"):
        Kept(tmp_path / "logits", [SPARE_BYTES], 1 << 20, "float32")
    assert not list(tmp_path.iterdir())


def test_the_texts_that_ship_are_of_every_kind() -> None:
    texts = read_texts(None)
    assert len(texts) == len({text.id for text in texts}) == 64
    assert {text.kind for text in texts} == KINDS
    assert min(len(text.text) for text in texts) > 100
    assert len({text.kind for text in read_texts(None, 7)}) >= 5


@pytest.mark.parametrize(
    ("content", "place"),
    [("", ""), ('{"id": "a"}', ":1"), ('{"id": "a", "text": "b"}\n\n{', ":3")],
)
def test_a_file_that_holds_no_texts_is_refused_by_its_line(
    tmp_path: Path, content: str, place: str
) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(content)
    with pytest.raises(InvalidRequest, match=f"{file}{place}"):
        read_texts(file)


def test_provenance_tells_programs_and_data() -> None:
    told = describe({}, {"texts": SHIPPED}, {"tokens": 9})
    assert {"bramley", "numpy"} <= told.versions.keys()
    assert len(told.files["texts"]) == 64
    assert told.settings == {"tokens": 9}
