"""The phases of the serving benchmark: what each asks of a server, and what it makes of it."""

from collections.abc import Callable
from functools import partial

from bramley.bench.cluster import Failed
from bramley.bench.serve.arithmetic import (
    Unmeasurable,
    aggregate_rate,
    cached_share,
    cached_tokens,
    decode_rate,
    gaps_s,
    longest_gap_s,
    percentile,
    prefill_rate,
    rate_between,
    tokens,
    ttft_s,
    wall_s,
)
from bramley.bench.serve.arms import NotApplicable
from bramley.bench.serve.record import Failure, Request
from bramley.bench.serve.turn import Stream, Turn, ended, leaving, well, whole
from bramley.bench.serve.workload import PROBES, WARM_UP, Asked
from bramley.common.errors import BramleyError

Phase = Callable[[Turn, int], None]  # of a turn and the number of the attempt

ATTEMPTS = 2
AFTER_S = 0.3  # from the long prompt to the short request beside it
BACK_WITHIN_S = 180.0
SHORT_PROMPT = 12
_POLL_S = 0.1


def load(turn: Turn, _: int) -> None:
    """Tell how long the server took to start."""
    if turn.ready_s is None:
        raise NotApplicable("the server ran before")
    turn.sample("ready", turn.ready_s)


def warm_up(turn: Turn, attempt: int) -> None:
    """Ask for the first time; nothing else is cold for a reason of the server's own."""
    place = turn.place("warm-up", attempt)
    request = turn.answered(place.fixed(WARM_UP, turn.workload.sizes.short_answer))
    if turn.ready_s is not None and attempt == 1:
        # Without what the benchmark itself does between the two.
        turn.sample("cold_start", turn.ready_s + ttft_s(request), request)


def parity(turn: Turn, attempt: int) -> None:
    """Ask what each server must answer alike; the texts are what counts, empty ones too."""
    place = turn.place("parity", attempt)
    for probe in PROBES:
        whole(turn.ask(place.fixed(probe, turn.workload.sizes.parity_answer)))


def decode(turn: Turn, attempt: int) -> None:
    """Stream the fixed samples, one after the other."""
    place, sizes = turn.place("decode", attempt), turn.workload.sizes
    for _ in range(sizes.decode_samples):
        request = turn.answered(place.story(sizes.decode_answer))
        turn.measure("decode_rate", decode_rate, request)
        turn.sample("request_wall", wall_s(request), request)
        turn.sample("output_rate", tokens(request) / wall_s(request), request)


def ttft(turn: Turn, attempt: int) -> None:
    """Ask prompts that are new, and each of them again."""
    place, sizes = turn.place("ttft", attempt), turn.workload.sizes
    for _ in range(sizes.ttft_samples):
        asked = place.prompt(sizes.ttft_prompt, sizes.short_answer)
        request = turn.answered(asked)
        turn.sample("ttft_cold", ttft_s(request), request)
        turn.measure("prefill_rate", prefill_rate, request)
        again = turn.answered(place.again(asked))
        turn.sample("ttft_repeat", ttft_s(again), again)


def context(turn: Turn, attempt: int) -> None:
    """Ask one long prompt, and the same again."""
    place, sizes = turn.place("context", attempt), turn.workload.sizes
    asked = place.prompt(sizes.context_prompt, sizes.context_answer)
    request = turn.answered(asked)
    turn.sample("context_ttft", ttft_s(request), request)
    turn.measure("context_prefill_rate", prefill_rate, request)
    turn.measure("context_decode_rate", decode_rate, request)
    for _ in range(sizes.context_repeats):
        again = turn.answered(place.again(asked))
        turn.sample("context_repeat_ttft", ttft_s(again), again)
        turn.measure("context_decode_rate", decode_rate, again)


def aggregate(turn: Turn, attempt: int) -> None:
    """Stream several answers together, in legs of more and more."""
    place, sizes = turn.place("aggregate", attempt), turn.workload.sizes
    lanes = iter(range(sum(sizes.streams)))
    for count in sizes.streams:
        streams: list[Stream] = []
        with leaving(streams):
            for _ in range(count):
                own = place.lane(next(lanes))
                make = partial(own.streamed, sizes.aggregate_context, sizes.aggregate_answer)
                streams.append(Stream(turn, make))
                turn.sleep(sizes.stagger_s)
            requests = ended(streams)
        turn.sample(f"aggregate_rate@{count}", aggregate_rate(requests), *requests)
        for request in requests:
            turn.measure(f"aggregate_stream_rate@{count}", decode_rate, request)
            turn.sample(f"aggregate_ttft@{count}", ttft_s(request), request)


def mixed(turn: Turn, attempt: int) -> None:
    """Have streams run; then a long prompt comes, and a short request beside it."""
    place, sizes = turn.place("mixed", attempt), turn.workload.sizes
    idle = turn.answered(place.prompt(SHORT_PROMPT, sizes.short_answer))
    long = place.prompt(sizes.mixed_prompt, sizes.short_answer)
    short = place.prompt(SHORT_PROMPT, sizes.short_answer)
    streams = [
        Stream(turn, partial(place.lane(number).story, sizes.mixed_answer), again=True)
        for number in range(sizes.mixed_streams)
    ]
    with leaving(streams):
        for stream in streams:
            stream.until_text()
        start_s = turn.now()
        turn.sleep(sizes.mixed_s)
        loading = Stream(turn, lambda: long)
        turn.sleep(AFTER_S)
        beside = turn.ask(short)
        loaded = ended([loading])[0]
    running = ended(streams)
    well(beside)
    turn.sample("mixed_idle_ttft", ttft_s(idle), idle)
    turn.sample("mixed_short_ttft", ttft_s(beside), beside)
    turn.sample("mixed_long_ttft", ttft_s(loaded), loaded)
    _mixed_streams(turn, streams, start_s, loaded, running)


def _mixed_streams(
    turn: Turn, streams: list[Stream], start_s: float, loaded: Request, running: list[Request]
) -> None:
    from_s, to_s = loaded.sent_s, loaded.events[0].at_s
    gaps = gaps_s(running, from_s, to_s)
    standing = max(longest_gap_s(stream.requests, from_s, to_s) for stream in streams)
    turn.sample("mixed_itl_p50", percentile(gaps or [standing], 0.5), *running)
    turn.sample("mixed_itl_p99", percentile(gaps or [standing], 0.99), *running)
    turn.sample("mixed_gap", standing, *running)
    before = rate_between(running, start_s, from_s)
    if not before:
        raise Failed("the running streams gave nothing before the long prompt came")
    turn.sample("mixed_kept", rate_between(running, from_s, to_s) / before, *running)


def agent(turn: Turn, attempt: int) -> None:
    """Go through an agent's turns, each with all that was said before it."""
    place, sizes = turn.place("agent", attempt), turn.workload.sizes
    asked, requests = place.agent(), list[Request]()
    for _ in range(sizes.agent_turns):
        request = turn.answered(asked)
        requests.append(request)
        asked = place.goes_on(asked, request.text)
    later = requests[1:]
    for request in later:
        turn.sample("agent_ttft", ttft_s(request), request)
    turn.measure("agent_cached", lambda _: cached_share(later), later[-1])
    turn.sample("agent_wall", sum(map(wall_s, requests)), *requests)


def restart(turn: Turn, attempt: int) -> None:
    """Stop the server and start it again; what it still has of a prompt from before."""
    _needs_ours(turn)
    place, sizes = turn.place("restart", attempt), turn.workload.sizes
    asked = place.prompt(sizes.restart_prompt, sizes.short_answer)
    before = turn.answered(asked)
    turn.sample("restart_cold_ttft", ttft_s(before), before)
    turn.sample("restart_ready", turn.server.restart())
    again = turn.answered(place.again(asked))
    turn.sample("restart_ttft", ttft_s(again), again)
    turn.measure("restart_cached", cached_tokens, again)


def kill(turn: Turn, attempt: int) -> None:
    """Kill what computes in the midst of an answer, and ask until there is one again."""
    _needs_ours(turn)
    place, sizes = turn.place("kill", attempt), turn.workload.sizes
    other = place.prompt(sizes.kill_prompt, sizes.short_answer)
    turn.answered(other)
    asked = place.prompt(sizes.kill_prompt, sizes.kill_answer)
    turn.answered(place.again(asked, sizes.short_answer))
    cut = Stream(turn, lambda: asked)
    cut.until_text()
    killed_s = turn.now()
    turn.server.kill()
    cut.join()
    if not cut.requests or cut.requests[0].error is None:
        raise Failed("the answer that was to be cut by the kill ended well")
    # In a lane of its own: how often a server refuses must not move what is asked after it.
    make = partial(place.lane(0).again, asked, sizes.short_answer)
    served = _until_served(turn, make, killed_s)
    turn.sample("kill_served_again", served.events[0].at_s - killed_s, served)
    again = turn.answered(place.again(other))
    turn.sample("kill_ttft", ttft_s(again), again)
    turn.measure("kill_cached", cached_tokens, again)


def _until_served(turn: Turn, make: Callable[[], Asked], since_s: float) -> Request:
    refused = 0
    while (request := turn.ask(make(), retries=refused)).error is not None:
        refused += 1
        if turn.now() - since_s > BACK_WITHIN_S:
            raise Failed(f"nothing was served within {BACK_WITHIN_S:g} s of the kill")
        turn.sleep(_POLL_S)
    return well(request)


def _needs_ours(turn: Turn) -> None:
    if not turn.server.is_ours:
        raise NotApplicable("the server is run by somebody else")


# In the order in which they run: what harms a server comes last.
PHASES: dict[str, Phase] = {
    "load": load,
    "warm-up": warm_up,
    "parity": parity,
    "decode": decode,
    "ttft": ttft,
    "context": context,
    "aggregate": aggregate,
    "mixed": mixed,
    "agent": agent,
    "restart": restart,
    "kill": kill,
}
ALWAYS = ("load", "warm-up")


def go_through(turn: Turn, name: str) -> bool:
    """Try a phase, and once more if it fails; every failure is kept.

    Returns:
        Whether it ended well, or has no meaning for this server.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if attempt > 1:
                turn.server.revive()
            PHASES[name](turn, attempt)
        except NotApplicable as reason:
            turn.settle(well=False)
            turn.arm.not_applicable[name] = str(reason)
            return True
        except (Failed, BramleyError, Unmeasurable, OSError) as error:
            turn.settle(well=False)
            turn.arm.failures.append(
                Failure(
                    phase=name,
                    attempt=attempt,
                    turn=turn.turn,
                    error=str(error),
                    is_final=attempt == ATTEMPTS,
                )
            )
        else:
            turn.settle(well=True)
            return True
    return False
