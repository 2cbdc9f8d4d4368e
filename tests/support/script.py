"""What a fake worker does, from a file for the process and from labels for one request."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bramley.protos.v1 import generation_pb2

POINTS = ("prepare", "accepted", "started", "delta")
ACTIONS = ("die", "stall", "sigstop", "block", "oom", "fault", "end", "finish", "bad_field")


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fake worker's part.

    Attributes:
        tokens: of an answer, where the request sets no max_tokens.
        interval_s: from one token to the next; 0 is as fast as they can be sent.
        prefill_s: from Started to the first token, in four chunks.
        load_s: how long it is LOADING; negative: for ever.
        exit_code: of a process that ends at once; -1 to live.
        exit_after_s: when a process ends by itself after it was ready; 0 never.
        max_rows: its limit, as it states it.
        context_tokens: the same.
        echo: the answer's tokens are the prompt's characters, not numbers.
        reasons: so many tokens of an answer are reasoning, before all others.
        calls: so many tokens at an answer's end are each a call of the tool "f"; it ends by them.
        ignore_cancel: a stream whose caller left keeps its row.
        heartbeat_s: between two reports.
        row_chains: what it says its rows hold, as text; so are the hashes of a prompt's blocks.
        token_bytes: of a row's state, as it states them.
        memory_bytes: that it says it holds.
        prefill_rate: that it says it measured.
        revision: of its model.
        cache_roots: namespaces that it claims to have opened in the cache store.
        cache_roots_cut: whether it has forgotten others.
        actions: done at a point by every request: {"die": "started"}; a request's labels
            ``fake.die`` and so on say the same for it alone.
    """

    tokens: int = 16
    interval_s: float = 0.0
    prefill_s: float = 0.0
    load_s: float = 0.0
    exit_code: int = -1
    exit_after_s: float = 0.0
    max_rows: int = 8
    context_tokens: int = 4096
    echo: bool = False
    reasons: int = 0
    calls: int = 0
    ignore_cancel: bool = False
    heartbeat_s: float = 0.5
    row_chains: list[str] = []
    token_bytes: int = 0
    memory_bytes: int = 0
    prefill_rate: float = 0.0
    revision: str = "fake"
    cache_roots: list[str] = []
    cache_roots_cut: bool = False
    actions: dict[str, str] = {}

    def for_request(self, labels: Mapping[str, str]) -> "Script":
        """This script, as far as ``labels`` do not say otherwise.

        Returns:
            What to do for the one request.
        """
        changes: dict[str, object] = {}
        actions = dict(self.actions)
        for label, value in labels.items():
            prefix, _, name = label.partition(".")
            if prefix != "fake":
                continue
            if name in ACTIONS:
                actions[name] = value
            else:
                changes[name] = value
        made = {**msgspec.structs.asdict(self), **changes, "actions": actions}
        return msgspec.convert(made, Script, strict=False)

    def delta(self, numbers: range, said: Sequence[str], total: int) -> generation_pb2.Delta:
        """Say each token as what it is: reasoning, content, or a call."""
        delta = generation_pb2.Delta(
            token_ids=numbers,
            completion_tokens=numbers.stop,
            reasoning_tokens=min(numbers.stop, self.reasons),
        )
        calls_from = total - self.calls
        for number, text in zip(numbers, said, strict=True):
            if number < self.reasons:
                delta.reasoning_text += text
            elif number < calls_from:
                delta.text += text
            else:
                arguments = f'{{"n": {number}}}'
                delta.tool_calls.add(
                    index=number - calls_from,
                    id=f"c{number}",
                    name="f",
                    arguments_json=arguments,
                    ended=True,
                )
        return delta


def read(path: Path | None) -> Script:
    """Read a script from JSON; without a file it is the plain one."""
    return msgspec.json.decode(path.read_bytes(), type=Script) if path else Script()
