"""What the store saves: time to first token cold, warm, and after deaths, by prompt length.

``python -m bramley.bench.prefix [TOKENS ...]``, 600 and 2,000 unless told otherwise. Each length
has a cluster of its own; every answer must be the cold one's. Needs a quiet machine.
"""

import statistics
import sys

from bramley.bench.cluster import running
from bramley.bench.demo import Demo, print_phases

WARM_RUNS = 5


def measure(tokens: int) -> None:
    """Go through the phases for one prompt length and print them."""
    with running([]) as cluster:
        demo = Demo(cluster, tokens)
        demo.ask_once("cold")
        for _ in range(WARM_RUNS):
            demo.ask_once("warm")
        demo.keep()
        demo.kill_worker()
        demo.ask_once("worker killed")
        demo.restart()
        demo.ask_once("all stopped, started again")
        print_phases(demo.phases)
        cold_s, killed_s, restart_s = (demo.phases[place].ttft_s for place in (0, -2, -1))
        warm_s = statistics.median(phase.ttft_s for phase in demo.phases[1 : 1 + WARM_RUNS])
        print(f"cold over warm (median of {WARM_RUNS}): {cold_s / warm_s:.0f} x")
        print(f"worker killed over warm: {killed_s / warm_s:.2f} x")
        print(f"cold over restarted: {cold_s / restart_s:.0f} x\n")


def main() -> None:
    """Measure every length asked for."""
    for tokens in map(int, sys.argv[1:] or ("600", "2000")):
        measure(tokens)


if __name__ == "__main__":
    main()
