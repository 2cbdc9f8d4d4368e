"""Why a worker ended, in one word of a closed set, from the words of ``Process.last_exit`` (pure).

The words are the supervisor's: ``signal SIGKILL``, ``exit code 1: its last words``, and before
them what it was ended for, as in ``silent for 30 s: signal SIGKILL``.
"""

import re
from typing import Literal, get_args

Reason = Literal["crash", "killed", "oom", "hang", "stopped", "start", "unknown"]
REASONS: tuple[Reason, ...] = get_args(Reason)

_END = re.compile(r"(?:^|: )(?:signal (?P<signal>\w+)|exit code (?P<code>\d+|unknown))(?=$|:)")
_HANG = re.compile(r"\bsilent for\b|\binside one step\b|\bhangs?\b|\bhung\b")
_OOM = re.compile(
    r"out of memory|cannot allocate memory|bad_alloc|\bmemoryerror\b|insufficient memory",
    re.IGNORECASE,
)
_START = re.compile(r"^(cannot start|not ready in time|ended its hand-shake)")
_STOPPING = ("SIGTERM", "SIGINT")


def reason_of(last_exit: str) -> Reason:
    """Tell why a worker ended.

    Returns:
        "hang" and "oom" where the words say so, "start" where it never served; else "killed" for
        SIGKILL, which is no crash of its own, "stopped" for a good end, "crash" for any other.
    """
    if _HANG.search(last_exit):
        return "hang"
    if _OOM.search(last_exit):
        return "oom"
    if _START.search(last_exit):
        return "start"
    end = _END.search(last_exit)
    if end is None or end["code"] == "unknown":
        return "unknown"
    if end["signal"] == "SIGKILL":
        return "killed"
    return "stopped" if end["signal"] in _STOPPING or end["code"] == "0" else "crash"
