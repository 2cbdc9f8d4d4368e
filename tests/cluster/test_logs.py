"""The logs of a whole cluster hold no prompt and no answer."""

import contextlib
from typing import Any

from bramley.common.status import RemoteError
from support.served import SAYS, Served

SECRET = "xyzzy-7f3a-plugh"  # noqa: S105  a prompt
ANSWER = SAYS["\x05"]

ASKED: list[dict[str, Any]] = [
    {"prompt": SECRET, "session_key": "s", "stop": SECRET, "logprobs": 1},
    {"prompt": SECRET, "bad_words": [SECRET]},
    {"prompt": SECRET * 10_000},
    {"prompt": SECRET, "temperature": -1.0},
    {"messages": [{"role": "user", "content": SECRET}]},
    {"messages": [{"role": SECRET, "content": SECRET}]},
]


async def test_what_is_said_is_in_no_log_of_any_process(served: Served) -> None:
    for model in ("tiny", "script"):
        for options in ASKED:
            with contextlib.suppress(RemoteError):
                await served.client.complete(model, max_tokens=4, **options)
    told = await served.completed("script", "\x05", max_tokens=60)
    assert told.text == ANSWER
    with contextlib.suppress(RemoteError):
        await served.client.tokenize("tiny", SECRET)
    files = (served.cluster.state_dir / "logs").glob("*.log")
    logs = {file.stem: file.read_text() for file in files}
    assert {"router-router", "store-store", "worker-tiny", "worker-script"} <= logs.keys()
    assert all(logs.values())
    for name, log in logs.items():
        assert SECRET not in log, name
        assert ANSWER not in log, name
