"""Says when streams may be told again, so that telling takes little of the time. Pure.

What telling takes, the steps lack: both are Python. So streams rest after each telling in
proportion to what it took, and what their engine makes meanwhile goes together. Where a step
takes longer than the rest, each token goes at once.
"""

# Times what was measured, which is a third of what a message costs: the others are what follows
# it in this process, and the reader's.
REST = 32.0
LONGEST_S = 0.05  # however many streams there are


class Pace:
    """Of one event loop."""

    def __init__(self) -> None:
        self._rested_s = 0.0

    def told(self, took_s: float, now_s: float) -> None:
        """Note what telling some streams took, which is over now.

        Args:
            took_s: of the loop's CPU time.
            now_s: on the monotonic clock.
        """
        rested_s = max(self._rested_s, now_s) + REST * took_s
        self._rested_s = min(rested_s, now_s + LONGEST_S)

    def wait_s(self, now_s: float) -> float:
        """Say for how long to tell nothing yet that can wait."""
        return max(self._rested_s - now_s, 0.0)
