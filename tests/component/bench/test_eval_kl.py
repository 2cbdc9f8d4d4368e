"""The divergence of model folders: nothing from itself, and of others what their weights say."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from numpy.typing import NDArray

from bramley.bench.eval import forwards, measure
from bramley.bench.eval.forwards import PROMPT_TOKENS, Source, served, whole
from bramley.bench.eval.measure import Wanted
from bramley.bench.eval.spread import Told
from bramley.common.errors import InvalidRequest
from bramley.worker.loading import Numerics
from bramley.worker.models.mlx_lm import load_model
from bramley.worker.settings import WorkerSettings
from support.blas import BLAS
from support.tiny_models import Kind, parameters, save_tiny

TEXTS = ("The quick brown fox", "x" * 40 + "yes", "ab", "Ein kürzerer Satz, und noch einer. " * 3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Path]:
    made: dict[Kind, Path] = {}

    def get(kind: Kind) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / "model"
            save_tiny(made[kind], kind, seed=5)
        return made[kind]

    return get


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.jsonl"
    lines = [
        {"id": f"{n}", "kind": "long" if n == 3 else "short", "text": text}
        for n, text in enumerate(TEXTS)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def told(reference: Path, candidate: Path, texts: Path, *, serving: bool = False) -> Told:
    wanted = Wanted(
        reference=reference, candidate=candidate, texts=texts, tokens=80, serving=serving
    )
    return measure.measure(wanted, BLAS)


def changed(source: Path, target: Path, change: Callable[[dict[str, mx.array]], None]) -> Path:
    """Copy a model with other weights."""
    shutil.copytree(source, target)
    weights = cast("dict[str, mx.array]", mx.load(str(source / "model.safetensors")))
    change(weights)
    mx.save_safetensors(str(target / "model.safetensors"), weights, {"format": "mlx"})
    return target


@pytest.mark.parametrize("kind", ["full", "sliding", "hybrid"])
def test_a_model_is_at_no_distance_from_itself_as_it_is_served(
    kind: Kind, tiny: Callable[[Kind], Path], texts: Path
) -> None:
    found = told(tiny(kind), tiny(kind), texts, serving=True)
    assert found.figures.max < 1e-6
    assert found.figures.agreement == 1.0
    perplexity = pytest.approx(found.figures.reference_perplexity, rel=1e-5)  # 8e8: sums differ
    assert found.figures.candidate_perplexity == perplexity
    # Of each text what is not prefilled: "ab" gives one position, the long one all from there on.
    assert found.figures.positions == sum(
        min(len(text.encode()), 80) - min(PROMPT_TOKENS, len(text.encode()) - 1) for text in TEXTS
    )


def test_a_model_is_at_no_distance_from_itself_as_a_whole(
    tiny: Callable[[Kind], Path], texts: Path
) -> None:
    found = told(tiny("full"), tiny("full"), texts)
    assert found.figures.max == 0
    assert found.figures.positions == sum(min(len(text.encode()), 80) - 1 for text in TEXTS)
    assert found.by_kind.keys() == {"short", "long"}
    models = found.provenance.models
    assert models["reference"] == models["candidate"]
    assert len(models["reference"].config_sha256) == 64


@pytest.mark.parametrize("serving", [False, True])
def test_scores_that_are_all_doubled_give_the_divergence_that_numpy_computes(
    tiny: Callable[[Kind], Path], texts: Path, tmp_path: Path, *, serving: bool
) -> None:
    def double(weights: dict[str, mx.array]) -> None:
        weights["lm_head.weight"] = weights["lm_head.weight"] * 2

    hot = changed(tiny("full"), tmp_path / "hot", double)
    found = told(tiny("full"), hot, texts, serving=serving)
    expected: list[float] = []
    model = load_model(tiny("full"), dequantize=True).model
    for text in TEXTS:
        ids = list(text.encode())[:80]
        rows = logits(model, ids)[:-1].astype(np.float64)
        first = min(PROMPT_TOKENS, len(ids) - 1) - 1 if serving else 0
        for row in rows[first:]:
            # Of a distribution p and its square q, scaled: ln p - 2 ln p + ln of the sum of p^2.
            log_p = row - np.log(np.exp(row - row.max()).sum()) - row.max()
            p = np.exp(log_p)
            expected.append(float((p * -log_p).sum() + math.log((p * p).sum())))
    assert found.figures.positions == len(expected)
    assert found.figures.mean == pytest.approx(np.mean(expected), rel=1e-4)
    assert found.figures.max == pytest.approx(max(expected), rel=1e-4)
    assert found.figures.mean > 0.01
    assert found.figures.agreement == 1.0  # the likeliest stay the likeliest


def logits(model: nn.Module, ids: Sequence[int]) -> NDArray[np.float32]:
    return cast("Any", np.array(cast("Any", model)(mx.array([list(ids)]))[0]))


def test_a_cache_that_forgets_is_seen_as_it_is_served_alone(
    tiny: Callable[[Kind], Path], texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a lossy cache would do: the keys and values of the prompt are rounded."""
    right = forwards.prefill

    def lossy(executor: Any, cohort: Any, requests: Any) -> None:
        right(executor, cohort, requests)
        for layer in cohort.layers:
            layer.adopt([mx.round(array * 4) / 4 for array in layer.arrays()])

    monkeypatch.setattr(forwards, "prefill", lossy)
    found = told(tiny("full"), tiny("full"), texts, serving=True)
    assert found.figures.mean > 1e-3
    assert told(tiny("full"), tiny("full"), texts).figures.max == 0


def test_every_position_comes_once_whatever_shares_the_batch(tiny: Callable[[Kind], Path]) -> None:
    ids = [list(range(40, 40 + length)) for length in (2, 50, 33, 34, 3, 41, 70)]

    def places(rows: int) -> dict[tuple[int, int], bytes]:
        settings = WorkerSettings(path=str(tiny("full")), max_rows=rows)
        source = served(settings, Numerics("cpu", BLAS.sum_panel), ids)
        return gathered(source)

    alone, together = places(1), places(3)
    assert alone == together
    assert alone.keys() == {
        (text, place)
        for text, one in enumerate(ids)
        for place in range(min(PROMPT_TOKENS, len(one) - 1) - 1, len(one) - 1)
    }


def gathered(source: Source) -> dict[tuple[int, int], bytes]:
    found: dict[tuple[int, int], bytes] = {}
    for piece in source.pieces:
        for row, bits in enumerate(piece.bits):
            assert (piece.text, piece.first + row) not in found
            found[piece.text, piece.first + row] = bits.tobytes()
    return found


def test_long_texts_are_run_in_pieces(
    tiny: Callable[[Kind], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [[(7 * place) % 250 for place in range(50)]]
    at_once = gathered(whole(tiny("full"), ids))
    monkeypatch.setattr(forwards, "CHUNK", 7)
    in_pieces = gathered(whole(tiny("full"), ids))
    assert at_once.keys() == in_pieces.keys()
    for place, bits in at_once.items():
        np.testing.assert_allclose(
            np.frombuffer(bits, np.float32),
            np.frombuffer(in_pieces[place], np.float32),
            rtol=1e-4,
            atol=1e-4,
        )


def test_a_model_is_gone_with_its_last_piece(tiny: Callable[[Kind], Path]) -> None:
    size = weight_bytes(tiny("full"))
    forwards.forget()
    before = mx.get_active_memory()
    source = whole(tiny("full"), [[1, 2, 3], [4, 5]])
    next(source.pieces)
    assert mx.get_active_memory() - before >= size
    assert len(list(source.pieces)) == 1
    forwards.forget()
    assert mx.get_active_memory() - before < size / 2


def weight_bytes(folder: Path) -> int:
    model = load_model(folder, dequantize=True).model
    return sum(array.nbytes for array in parameters(model).values())


def test_half_precision_is_kept_bit_for_bit(
    tiny: Callable[[Kind], Path], texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halve(weights: dict[str, mx.array]) -> None:
        weights.update({name: one.astype(mx.bfloat16) for name, one in weights.items()})

    half = changed(tiny("full"), tmp_path / "half", halve)
    monkeypatch.setattr(forwards, "_on_cpu", lambda: False)  # as a GPU would run it
    found = told(half, half, texts)
    assert found.figures.max == 0
    assert found.kept_bytes == 2 * 260 * found.figures.positions


def test_models_that_read_a_text_otherwise_are_not_compared(
    tiny: Callable[[Kind], Path], texts: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny("full"), other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[ord("x")], vocabulary[ord("y")] = vocabulary[ord("y")], vocabulary[ord("x")]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InvalidRequest, match="reads text '0' otherwise"):
        told(tiny("full"), other, texts)


def test_a_text_of_one_token_is_refused(tiny: Callable[[Kind], Path], tmp_path: Path) -> None:
    file = tmp_path / "short.jsonl"
    file.write_text('{"id": "one", "text": "a"}')
    with pytest.raises(InvalidRequest, match="text one"):
        told(tiny("full"), tiny("full"), file)
