"""Figures of `bramley top`, from samples of a cluster's counters."""

import pytest

from bramley.client.cache import StoreStats
from bramley.client.cluster import Model, Process
from bramley.client.commands.status import ClusterStatus
from bramley.client.overview import Exposition, Overview, Sample, overview, quantile

MODEL = Model(
    name="m",
    state="ready",
    reason="",
    revision="",
    load_progress=1.0,
    context_tokens=2048,
    max_rows=8,
    has_chat_template=True,
    requests_running=2,
    requests_waiting=3,
    pinned=False,
    memory_bytes=1 << 20,
    reserved_bytes=2 << 20,
    needed_bytes=2 << 20,
    idle_s=None,
)
WORKER = Process(
    role="worker",
    name="m@2",
    pid=7,
    state="running",
    epoch=1,
    address="",
    restarts=0,
    last_exit="",
)


def exposition(*lines: str) -> Exposition:
    return Exposition("".join(f"bramley_router_{line}\n" for line in lines))


def sample(at_s: float, *lines: str, store: StoreStats | None = None) -> Sample:
    status = ClusterStatus(state="running", models=[MODEL], processes=[WORKER], version="1")
    return Sample(at_s=at_s, status=status, metrics=exposition(*lines), store=store)


def generated(at_s: float, tokens: int) -> Sample:
    return sample(at_s, f'generated_tokens_total{{model="m"}} {tokens}')


def tokens_s(*samples: Sample) -> float | None:
    (row,) = overview(samples).models
    return row.tokens_s


def test_a_rate_is_between_the_last_two_looks() -> None:
    assert tokens_s(generated(0, 0), generated(10, 100), generated(12, 160)) == 30.0


def test_one_look_has_no_rate() -> None:
    assert tokens_s(generated(0, 100)) is None


def test_a_router_that_began_anew_has_no_negative_rate() -> None:
    assert tokens_s(generated(0, 100), generated(1, 5)) == 0.0


def test_a_router_that_does_not_answer_has_no_figures() -> None:
    row = overview([generated(0, 100), sample(1)]).models[0]
    assert (row.tokens_s, row.ttft_s) == (None, None)


def test_another_model_s_tokens_are_not_counted() -> None:
    other = sample(1, 'generated_tokens_total{model="n"} 50', 'generated_tokens_total{model="m"} 7')
    assert tokens_s(generated(0, 5), other) == 2.0


def test_who_waits_is_told_by_class() -> None:
    lines = ('queue_depth{model="m",class="bulk"} 3', 'queue_depth{model="m",class="default"} 1')
    waiting = overview([sample(0, *lines)]).models[0].waiting
    assert waiting == {"system": 0, "interactive": 0, "default": 1, "bulk": 3}


def test_each_worker_has_its_own_figures() -> None:
    lines = (
        'worker_last_step_age_seconds{model="m",worker="m"} 9',
        'worker_last_step_age_seconds{model="m",worker="m@2"} 0.5',
        'memory_resident_bytes{model="m",worker="m@2"} 1024',
    )
    (row,) = overview([sample(0, *lines)]).workers
    assert (row.step_age_s, row.resident_bytes) == (0.5, 1024)


def first_token(at_s: float, fast: int, slow: int) -> Sample:
    name = "time_to_first_token_seconds_bucket"
    return sample(
        at_s,
        f'{name}{{model="m",le="1.0"}} {fast}',
        f'{name}{{model="m",le="2.0"}} {fast + slow}',
        f'{name}{{model="m",le="+Inf"}} {fast + slow}',
    )


def ttft_s(*samples: Sample) -> float | None:
    return overview(samples).models[0].ttft_s


def test_the_first_token_s_time_is_that_of_what_was_seen_or_else_of_all() -> None:
    assert ttft_s(first_token(0, 100, 0), first_token(60, 100, 10)) == 1.5
    assert ttft_s(first_token(0, 100, 0), first_token(60, 100, 0)) == 0.5
    assert ttft_s(first_token(0, 0, 0)) is None


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.25, 0.5), (0.5, 1.0), (0.75, 2.0), (0.99, 3.0), (1.0, 3.0)],
)
def test_a_quantile_is_that_of_prometheus(share: float, expected: float) -> None:
    buckets = {1.0: 50.0, 3.0: 100.0, float("inf"): 100.0}
    assert quantile(share, buckets) == pytest.approx(expected, abs=0.05)


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    assert quantile(0.9, {1.0: 1.0, float("inf"): 10.0}) == 1.0


def cached(at_s: float, tokens: int, prompts: int, store: StoreStats | None) -> Sample:
    lines = (
        f'cached_tokens_total{{model="m",tier="ram"}} {tokens}',
        f'cached_tokens_total{{model="m",tier="parked"}} {tokens}',
        f'prompt_tokens_total{{model="m"}} {prompts}',
    )
    return sample(at_s, *lines, store=store)


def test_shares_of_the_cache_are_of_what_was_seen() -> None:
    store = StoreStats(counters={"matches": 4, "match_hits": 3}, gauges={"ram_bytes": 5})
    shown: Overview = overview([cached(0, 10, 1000, store), cached(1, 30, 1100, store)])
    assert shown.cache is not None
    assert shown.cache.cached_share == 0.4
    assert shown.cache.hit_share == 0.75
    assert shown.cache.gauges == {"ram_bytes": 5}


def test_without_a_store_there_is_no_cache() -> None:
    assert overview([cached(0, 1, 2, None)]).cache is None
