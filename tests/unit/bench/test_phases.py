"""What is made of the record of requests: figures, and what has none."""

import math
from pathlib import Path

import pytest

from bramley.bench.serve import arithmetic, run
from bramley.bench.serve.__main__ import (
    PROMPTS,
    chosen_phases,
    files_of,
    parse,
    sizes_of,
    within_context,
)
from bramley.bench.serve.arithmetic import Unmeasurable
from bramley.bench.serve.arms import make, name_apart
from bramley.bench.serve.dialects import Noting, path_of
from bramley.bench.serve.metrics import METRICS, metric
from bramley.bench.serve.phases import PHASES
from bramley.bench.serve.record import LEFT, Event, Request
from bramley.bench.serve.workload import FULL, QUICK, Asked, Sizes
from bramley.common.errors import InvalidRequest


def request(*events: tuple[float, int], sent_s: float = 1.0, **more: object) -> Request:
    """A request that was answered by events, each at a time and of so many tokens."""
    made = Request(
        phase="some",
        attempt=1,
        index=0,
        sha256="",
        sent_s=sent_s,
        ended_s=max([sent_s, *(at_s for at_s, _ in events)]) + 0.5,
        events=[Event(at_s=at_s, tokens=tokens) for at_s, tokens in events],
    )
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_the_first_text_is_counted_from_the_request() -> None:
    assert arithmetic.ttft_s(request((1.25, 1), (9.0, 1))) == 0.25
    assert arithmetic.wall_s(request((1.25, 1), (9.0, 1))) == 8.5


def test_a_decode_rate_leaves_out_the_first_text_and_counts_tokens_not_events() -> None:
    assert arithmetic.decode_rate(request((2.0, 7), (3.0, 1), (4.0, 5))) == 3.0


@pytest.mark.parametrize("events", [[(2.0, 5)], [(2.0, 5), (2.0, 1)], []])
def test_an_answer_that_came_at_once_has_no_decode_rate(events: list[tuple[float, int]]) -> None:
    with pytest.raises(Unmeasurable):
        arithmetic.decode_rate(request(*events))


def test_a_failed_request_has_no_figures() -> None:
    with pytest.raises(Unmeasurable, match="gone"):
        arithmetic.ttft_s(request((2.0, 1), error="gone"))


def test_cached_tokens_are_not_prefilled() -> None:
    told = request((3.0, 1), prompt_tokens=100, cached_tokens={"ram": 30, "ssd": 10})
    assert arithmetic.prefill_rate(told) == 30.0
    assert arithmetic.cached_tokens(told) == 40
    told.cached_tokens = None
    assert arithmetic.prefill_rate(told) == 50.0
    with pytest.raises(Unmeasurable):
        arithmetic.cached_tokens(told)
    told.prompt_tokens = None
    with pytest.raises(Unmeasurable):
        arithmetic.prefill_rate(told)


def test_streams_together_count_from_the_first_request_to_the_last_end() -> None:
    one = request((2.0, 10), sent_s=1.0)
    other = request((5.0, 10), sent_s=2.0)
    assert arithmetic.aggregate_rate([one, other]) == 20 / 4.5


def test_gaps_are_between_texts_of_one_answer_and_count_whole_wherever_they_meet_the_span() -> None:
    streams = [request((0.5, 1), (1.0, 1), (2.0, 1), (4.0, 1), (9.0, 1), (9.5, 1))]
    streams.append(request((3.0, 1), (3.5, 1)))
    assert arithmetic.gaps_s(streams, 1.5, 5.0) == [1.0, 2.0, 5.0, 0.5]


def test_a_stream_that_stood_still_until_after_the_span_is_no_fast_one() -> None:
    stood_still = [request((1.0, 1), (1.1, 1), (6.0, 1))]
    gaps = arithmetic.gaps_s(stood_still, 1.05, 5.9)
    assert arithmetic.percentile(gaps, 0.99) == pytest.approx(4.9)


def test_the_longest_gap_counts_the_ends_of_the_span() -> None:
    stream = [request((1.0, 1), (2.0, 1)), request((3.0, 1))]
    assert arithmetic.longest_gap_s(stream, 1.5, 7.0) == 4.0
    assert arithmetic.longest_gap_s(stream, 2.5, 3.25) == 0.5
    assert arithmetic.longest_gap_s(stream, 4.0, 6.0) == 2.0


def test_a_rate_is_of_the_tokens_within_the_span() -> None:
    streams = [request((1.0, 4), (2.0, 4), (3.0, 4)), request((2.5, 1))]
    assert arithmetic.rate_between(streams, 1.0, 3.0) == 4.5


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1), (0.001, 1)]
)
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert arithmetic.percentile([*range(100, 0, -1)], share) == value


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(Unmeasurable):
        arithmetic.percentile([], 0.5)


def test_the_cached_share_is_of_all_prompts_together() -> None:
    turns = [
        request(prompt_tokens=100, cached_tokens={"any": 50}),
        request(prompt_tokens=300, cached_tokens={"any": 270}),
    ]
    assert arithmetic.cached_share(turns) == 0.8
    with pytest.raises(Unmeasurable):
        arithmetic.cached_share([*turns, request(prompt_tokens=5)])


def test_stability_is_the_largest_over_the_smallest() -> None:
    assert arithmetic.stability([10.0, 12.0, 11.0]) == 1.2
    assert arithmetic.stability([]) is None


class Steps:
    """A clock that goes on by a second each time that it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def noting(go_on: bool = True) -> Noting:
    asked = Asked(phase="p", attempt=1, index=3, turn=0, messages=(), max_tokens=9)
    return Noting(asked, Steps(), lambda _: go_on)


def counts(made: Request) -> list[int]:
    return [event.tokens for event in made.events]


def test_tokens_without_text_count_with_the_next_text() -> None:
    made = noting()
    for text, tokens in (("", 2), ("a", 1), ("", 1), ("b", 3)):
        assert made.came(text, tokens)
    told = made.end(finish="stop", counted_by="ids")
    assert told.text == "ab"
    assert counts(told) == [3, 4]
    assert [event.at_s for event in told.events] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("usage", "balanced"),
    [(3, [1, 1, 1]), (5, [1, 1, 1, 2]), (2, [1, 1, 0]), (1, [1, 0, 0]), (None, [1, 1, 1])],
)
def test_events_have_in_all_what_the_server_counts(usage: int | None, balanced: list[int]) -> None:
    made = noting()
    for text in "abc":
        made.came(text, 1)
    made.request.completion_tokens = usage
    assert counts(made.end(finish="stop", counted_by="usage")) == balanced


def test_of_an_answer_that_was_left_or_failed_only_what_was_seen_counts() -> None:
    for finish, error in ((LEFT, None), (None, "gone")):
        made = noting(go_on=False)
        assert not made.came("a", 1)
        made.request.completion_tokens = 9
        assert counts(made.end(finish=finish, error=error)) == [1]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://h:1", "/v1/models"),
        ("http://h:1/", "/v1/models"),
        ("http://h:1/v1", "/v1/models"),
        ("https://h/api/v1/", "/api/v1/models"),
        ("https://h/api", "/api/v1/models"),
    ],
)
def test_a_path_is_below_v1_once(url: str, path: str) -> None:
    assert path_of(url, "/models") == path


def test_arms_have_an_early_turn_and_a_late_one() -> None:
    assert run.order(["a", "b"]) == [0, 1, 1, 0]
    assert run.order(["a", "b", "c"]) == [0, 1, 2, 2, 1, 0]
    assert run.order(["a"]) == [0, 0]


@pytest.mark.parametrize("kind", ["nobody", "url=ftp://x", "url=", "url=http://h:x", "bramley"])
def test_an_arm_that_cannot_be_is_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest):
        make(kind, None, 1.0)


def test_two_servers_of_one_kind_are_told_apart() -> None:
    servers = [make(kind, Path("m"), 1.0) for kind in ("bramley", "mlx_lm.server", "bramley")]
    name_apart(servers)
    assert [server.name for server in servers] == ["bramley", "mlx_lm.server", "bramley 2"]
    assert servers[2].kind == "bramley"


def test_phases_are_chosen_in_their_own_order_and_some_always_run() -> None:
    assert chosen_phases("kill,decode") == ["load", "warm-up", "decode", "kill"]
    assert chosen_phases(None) == list(PHASES)
    with pytest.raises(InvalidRequest, match="nothing"):
        chosen_phases("decode,nothing")


def test_options_change_the_sizes() -> None:
    given = parse(["--quick", "--context", "99", "--streams", "2,3", "--stagger", "0.5"])
    sizes = sizes_of(given)
    assert (sizes.context_prompt, sizes.streams, sizes.stagger_s) == (99, (2, 3), 0.5)
    assert sizes.decode_answer == QUICK.decode_answer
    assert sizes_of(parse([])) == FULL


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--streams", "0"), ("--streams", "a"), ("--streams", "600,600")),
        *(("--stagger", "-1"), ("--stagger", "nan"), ("--stagger", "inf")),
        *(("--seeds", "0"), ("--timeout", "0"), ("--aggregate-context", "-1")),
    ],
)
def test_sizes_that_cannot_be_are_refused(option: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=option):
        sizes_of(parse([option, value]))


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ('{"max_position_embeddings": 2048}', 1024),
        ('{"max_position_embeddings": 1024}', 512),
        ('{"text_config": {"max_position_embeddings": 3000}}', 1976),
        ('{"max_position_embeddings": 2048, "text_config": null}', 1024),
        ('{"max_position_embeddings": 99999}', FULL.context_prompt),
        ("{}", FULL.context_prompt),
    ],
)
def test_the_long_prompt_fits_the_model(tmp_path: Path, config: str, most: int) -> None:
    (tmp_path / "config.json").write_text(config)
    assert within_context(FULL, tmp_path).context_prompt == most


def test_every_prompt_fits_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    sizes = within_context(FULL, tmp_path)
    assert max(getattr(sizes, name) for name in PROMPTS) == 256
    assert {name for name in Sizes.__struct_fields__ if name.endswith("_prompt")} - {
        *PROMPTS,
        "agent_prompt",
    } == set()
    last_turn = sizes.agent_prompt + sizes.agent_turns * sizes.agent_answer
    assert last_turn < 512


def test_a_file_is_named_after_its_seed_where_there_are_several(tmp_path: Path) -> None:
    assert files_of(tmp_path / "b.json", [3]) == {3: tmp_path / "b.json"}
    several = files_of(tmp_path / "b", [3, 4])
    assert several == {3: tmp_path / "b-3.json", 4: tmp_path / "b-4.json"}
    assert len({path.name.rpartition("-")[0] for path in files_of(None, [1, 2]).values()}) == 1


def test_a_file_that_could_not_be_written_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(InvalidRequest, match="--out: no/such is no folder"):
        files_of(Path("no/such/b.json"), [1])


def test_a_metric_is_known_with_and_without_a_number() -> None:
    assert metric("aggregate_rate@4") is METRICS["aggregate_rate@"]
    assert metric("ready") is METRICS["ready"]
    with pytest.raises(KeyError):
        metric("ready@4")
    assert all(math.isfinite(len(each.meaning)) and each.unit for each in METRICS.values())
