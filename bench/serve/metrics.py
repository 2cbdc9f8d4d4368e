"""Every metric of the serving benchmark: its unit, which way is better, and what it means.

A name with ``@`` has a number or a phase behind it in a sample: ``aggregate_rate@4``.
"""

from typing import Literal, NamedTuple

Better = Literal["higher", "lower", "neither"]


class Metric(NamedTuple):
    """What is known of a metric before any value."""

    unit: str
    better: Better
    meaning: str


METRICS: dict[str, Metric] = {
    "ready": Metric(
        "s", "lower", "from the start of its processes until the server says it serves"
    ),
    "cold_start": Metric("s", "lower", "ready, and to the first text of the first request"),
    "decode_rate": Metric("tok/s", "higher", "of one stream, from its first text to its last"),
    "request_wall": Metric("s", "lower", "of a whole request of the decode phase"),
    "output_rate": Metric("tok/s", "higher", "tokens of that request over its whole time"),
    "ttft_cold": Metric("s", "lower", "to the first text of a prompt that nobody asked before"),
    "ttft_repeat": Metric("s", "lower", "of the same prompt once more"),
    "prefill_rate": Metric("tok/s", "higher", "prompt tokens that no cache had, over ttft_cold"),
    "context_ttft": Metric("s", "lower", "to the first text after a long prompt"),
    "context_prefill_rate": Metric("tok/s", "higher", "as prefill_rate, of the long prompt"),
    "context_decode_rate": Metric("tok/s", "higher", "of one stream behind the long prompt"),
    "context_repeat_ttft": Metric("s", "lower", "of the same long prompt once more"),
    "restart_ready": Metric("s", "lower", "as ready, of the second start, with what was stored"),
    "restart_cold_ttft": Metric("s", "lower", "before a restart, of a prompt that is new"),
    "restart_ttft": Metric("s", "lower", "after a restart, of that prompt"),
    "restart_cached": Metric("tok", "higher", "tokens of that prompt that a cache still had"),
    "kill_served_again": Metric("s", "lower", "from SIGKILL to the first text of the next answer"),
    "kill_ttft": Metric("s", "lower", "then, of another prompt from before the kill"),
    "kill_cached": Metric("tok", "higher", "tokens of that prompt that a cache still had"),
    "aggregate_rate@": Metric("tok/s", "higher", "of so many streams together, prompts included"),
    "aggregate_stream_rate@": Metric("tok/s", "higher", "decode rate of each of these streams"),
    "aggregate_ttft@": Metric("s", "lower", "of each of these streams"),
    "mixed_idle_ttft": Metric("s", "lower", "of a short request that is alone"),
    "mixed_short_ttft": Metric("s", "lower", "of one that comes while a long prompt is computed"),
    "mixed_long_ttft": Metric("s", "lower", "of that long prompt, beside running streams"),
    "mixed_itl_p50": Metric("s", "lower", "between texts of the running streams meanwhile"),
    "mixed_itl_p99": Metric("s", "lower", "the same, of the slowest hundredth"),
    "mixed_gap": Metric("s", "lower", "the longest that a running stream stood still meanwhile"),
    "mixed_kept": Metric("share", "higher", "of their rate that running streams keep meanwhile"),
    "agent_ttft": Metric("s", "lower", "of an agent's turns from the second on"),
    "agent_cached": Metric("share", "higher", "of these turns' prompt tokens that a cache had"),
    "agent_wall": Metric("s", "lower", "of all the agent's turns"),
    "memory_idle_rss": Metric("bytes", "lower", "of all its processes, before the first request"),
    "memory_idle_pss": Metric("bytes", "lower", "the same, shared pages counted once"),
    "memory_peak_rss": Metric("bytes", "lower", "the most of all its processes together"),
    "memory_peak_pss": Metric("bytes", "lower", "the same, shared pages counted once"),
    "memory_phase_rss@": Metric("bytes", "lower", "the most during that phase"),
    "memory_model": Metric("bytes", "neither", "the most that the server itself said of its model"),
}


def metric(name: str) -> Metric:
    """Look up what a sample's metric is; what follows an ``@`` is left aside.

    Returns:
        It.

    Raises:
        KeyError: it is none.
    """
    head, at, _ = name.partition("@")
    return METRICS[head + at]
