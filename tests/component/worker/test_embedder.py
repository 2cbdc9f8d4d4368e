"""Embeddings of tiny models: what mlx computes directly, in any company, and no stream's harm."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from bramley.worker.embedding.job import EmbedJob, Pooling
from bramley.worker.models.contract import ModelParts
from bramley.worker.models.mlx_lm import model_parts
from support.byte_tokenizer import VOCABULARY
from support.engines import InProcessEngine, request
from support.tiny_models import KINDS, Kind, build

NEAR = 1e-4  # of vectors of length about 8, in float32
WORDS = [list(word.encode()) for word in ("a", "some words", "and some more of them", "b c")]
LONG = [(7 * place + place // 3) % 250 for place in range(150)]  # two chunks and a part


def parts_of(kind: Kind) -> ModelParts:
    return model_parts(build(kind), vocabulary=VOCABULARY, heads=4)


def engine_of(parts: ModelParts, **more: Any) -> InProcessEngine:
    return InProcessEngine(parts.model, layers=parts.layers, body=parts.body, **more)


def direct(parts: ModelParts, ids: Sequence[int], pooling: Pooling) -> "np.ndarray[Any, Any]":
    """ORACLE: the model's inner module on its own caches, the text whole and alone."""
    model: Any = parts.model
    hidden = model.model if "model" in model else model.language_model.model
    states = np.array(hidden(mx.array([list(ids)]), cache=parts.own_caches())[0])
    return states[-1] if pooling == "last" else states.mean(axis=0)


def embed(engine: InProcessEngine, name: str, texts: Any, pooling: Pooling) -> list[Any]:
    engine.embed(EmbedJob(id=name, texts=texts, pooling=pooling))
    outcome = engine.finished(name)[name]
    assert outcome.error is None, outcome.error
    return [np.frombuffer(values, "<f4") for values in outcome.values]


@pytest.fixture(params=KINDS)
def parts(request: pytest.FixtureRequest) -> ModelParts:
    return parts_of(request.param)


@pytest.fixture
def engine(parts: ModelParts) -> Iterator[InProcessEngine]:
    made = engine_of(parts)
    yield made
    made.idle()
    made.close()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_batch_of_texts_of_any_lengths_gives_what_each_gives_alone(
    parts: ModelParts, engine: InProcessEngine, pooling: Pooling
) -> None:
    texts = [*WORDS, LONG, LONG[:64], WORDS[1]]
    for ids, values in zip(texts, embed(engine, "all", texts, pooling), strict=True):
        assert np.abs(values - direct(parts, ids, pooling)).max() < NEAR
        (alone,) = embed(engine, "one", [ids], pooling)
        assert np.abs(values - alone).max() < NEAR


def test_texts_of_several_jobs_share_forwards(parts: ModelParts, engine: InProcessEngine) -> None:
    counters = engine.engine.counters
    jobs = [EmbedJob(id=f"j{n}", texts=[[n, 2, 3], [n, 5, 6, 7]], pooling="mean") for n in range(6)]
    engine.submit(request("stream", [1, 2, 3], max_tokens=1))
    engine.finished()
    engine.at_step = {engine.step + 1: lambda: engine.embed(*jobs)}
    before = counters.steps
    engine.run(request("next", [1, 2, 3, 4], max_tokens=2))
    for job in engine.finished(*(job.id for job in jobs)).values():
        assert job.error is None
    assert counters.steps - before <= 6  # 12 texts
    for job in jobs:
        for ids, values in zip(job.texts, engine.outcomes[job.id].values, strict=True):
            own = np.frombuffer(values, "<f4")
            assert np.abs(own - direct(parts, ids, "mean")).max() < NEAR


@pytest.mark.parametrize("kind", ["full"])
def test_a_stream_says_the_same_beside_embeddings_and_both_go_on(kind: Kind) -> None:
    parts = parts_of(kind)
    engine = engine_of(parts, chunk_tokens=16)
    try:
        alone = engine.run(request("alone", [1, 2, 3, 4], max_tokens=40))["alone"]
        job = EmbedJob(id="job", texts=[LONG, *WORDS], pooling="mean")
        gone = EmbedJob(id="gone", texts=[LONG] * 50, pooling="mean")
        engine.at_step = {
            engine.step + 3: lambda: engine.embed(gone, job),
            engine.step + 9: lambda: engine.engine.cancel("gone"),
        }
        beside = engine.run(request("beside", [1, 2, 3, 4], max_tokens=40))["beside"]
        assert beside == alone
        values = engine.finished("job")["job"].values
        for ids, own in zip(job.texts, values, strict=True):
            assert np.abs(np.frombuffer(own, "<f4") - direct(parts, ids, "mean")).max() < NEAR
        engine.idle()
        assert not engine.outcomes["gone"].values
    finally:
        engine.close()


def test_a_text_that_needs_more_memory_than_there_is_fails_alone() -> None:
    parts = parts_of("full")
    engine = engine_of(parts, state_bytes=400_000)
    try:
        engine.embed(EmbedJob(id="large", texts=[LONG * 20], pooling="mean"))
        error = engine.finished("large")["large"].error
        assert error is not None
        assert error.reason == "DEVICE_OOM"
        (values,) = embed(engine, "small", [WORDS[1]], "last")
        assert np.abs(values - direct(parts, WORDS[1], "last")).max() < NEAR
    finally:
        engine.close()
