"""What an agent's turns have from the cache: ``python -m bramley.bench.agent [--model FOLDER]``.

Two conversations, each with a session's key, whose history begins with rules and tools, and grows
by a question or a tool's result and by the model's answer. One is held with parked rows, at once;
another one, after a restart, with the store alone, given the moment that a tool takes. What was
*seen* is the prompt and the answer of the turn before, of which no more may be computed again than
a handful of tokens.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from bramley.bench import trace
from bramley.bench.asking import (
    MODEL,
    WORTH_STORING,
    Asking,
    asking,
    common,
    model_folder,
    restart,
    serving,
)
from bramley.bench.cluster import Cluster
from bramley.bench.figures import Required
from bramley.client.commands.screen import print_json, print_table

if TYPE_CHECKING:
    from bramley.client.requests import Message

Way = Literal["with parked rows", "store alone"]
WAYS: tuple[Way, ...] = ("with parked rows", "store alone")
MAX_TOKENS = 32
# The last token of an answer was drawn and never fed, so nothing is computed of it; and an answer
# that was cut short within a character comes back as other tokens.
HANDFUL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What was seen of one turn.

    Attributes:
        role: of its message.
        prompt: tokens.
        answer: tokens.
        seen: tokens of the prompt and the answer of the turn before.
        kept: of these, how many lead this prompt in the same ids.
        plain: how many would in the tokenizer's own.
        cached: prompt tokens by tier.
        is_stored: whether the turn before added enough to be stored.
        written_bytes: to the disk, by the store, for this turn.
        ttft_s: to the first token.
    """

    role: str
    prompt: int
    answer: int
    seen: int
    kept: int
    plain: int
    cached: dict[str, int]
    is_stored: bool
    written_bytes: int
    ttft_s: float

    @property
    def all_cached(self) -> int:
        """In all tiers."""
        return sum(self.cached.values())

    @property
    def lost(self) -> int:
        """Seen tokens that are computed again."""
        return max(self.seen - self.all_cached, 0)

    @property
    def share_of_seen(self) -> float:
        """Of the seen tokens, those that are cached."""
        return 1.0 - self.lost / self.seen if self.seen else 1.0

    @property
    def share_of_all(self) -> float:
        """Of the prompt's tokens, those that are cached."""
        return self.all_cached / self.prompt

    def cells(self) -> Sequence[str]:
        """A row of the table, without its number."""
        return (
            self.role,
            str(self.prompt),
            str(self.answer),
            str(self.seen),
            *(str(self.cached[tier]) for tier in ("parked", "ram", "ssd")),
            f"{self.share_of_seen:.1%}" if self.seen else "",
            f"{self.share_of_all:.1%}",
            str(self.lost),
            str(self.seen - self.kept),
            str(self.seen - self.plain),
            f"{self.written_bytes / 1e6:.2f}",
            f"{self.ttft_s * 1e3:.0f}",
        )


HEADER = (
    *("turn", "role", "prompt", "answer", "seen", "parked", "ram", "ssd", "of seen", "of all"),
    *("again", "other ids", "without", "MB written", "first token, ms"),
)


class Conversation:
    """Goes on turn by turn, and notes what each had from the cache."""

    def __init__(self, asking: Asking, way: Way) -> None:
        self._asking = asking
        self._way = way
        self._first = WAYS.index(way) * trace.QUESTION_EVERY
        self._messages: list[Message] = [trace.system(self._count)]
        self._seen: list[int] = []
        self._written = asking.written_bytes()
        self._new = 0  # tokens of the turn before that it did not find itself
        self.turns: list[Turn] = []

    def _count(self, text: str) -> int:
        return len(self._asking.client.tokenize(MODEL, text))

    def go_on(self) -> None:
        """Ask once more; with patience, until what the turn gave is stored."""
        asked = self._asking
        self._messages.append(trace.message(self._first + len(self.turns), self._count))
        ids = asked.ids(self._messages, self._way)
        plain = asked.client.tokenize(MODEL, messages=self._messages)
        answer = asked.ask(messages=self._messages, session_key=self._way, max_tokens=MAX_TOKENS)
        self._messages.append({"role": "assistant", "content": answer.text})
        seen = [*ids, *answer.token_ids]
        if self._way == "store alone":
            asked.settle(seen)
        asked.flush()
        written = asked.written_bytes()
        self.turns.append(
            Turn(
                role=self._messages[-2]["role"],
                prompt=answer.usage.prompt_tokens,
                answer=len(answer.token_ids),
                seen=len(self._seen),
                kept=common(ids, self._seen),
                plain=common(plain, self._seen),
                cached=answer.usage.cached_tokens,
                is_stored=self._new >= WORTH_STORING,
                written_bytes=written - self._written,
                ttft_s=answer.timings.ttft_s,
            )
        )
        self._seen, self._new = seen, len(seen) - self.turns[-1].all_cached
        self._written = written


@dataclass(frozen=True, slots=True)
class Check:
    """A figure, and what is required of it."""

    what: str
    value: float
    required: Required | None = None

    @property
    def verdict(self) -> str:
        """Whether it is as required."""
        if self.required is None:
            return ""
        return "ok" if self.required.is_met(self.value) else "MISSED"

    def cells(self) -> Sequence[str]:
        """A row of the table."""
        required = "" if self.required is None else str(self.required)
        return self.what, f"{self.value:.4g}", required, self.verdict


def judge(way: Way, turns: Sequence[Turn]) -> list[Check]:
    """Judge a conversation of two turns at least; its first has nothing to find."""
    later = turns[1:]
    # Of a turn that added too little to be stored, the next one may find nothing.
    stored = [turn for turn in later if turn.is_stored]
    again = max((turn.lost for turn in stored), default=0)
    other = max(turn.seen - turn.kept for turn in later)
    plain = max(turn.seen - turn.plain for turn in later)
    new = sum(turn.prompt + turn.answer - turn.seen for turn in later)
    cached, asked = sum(turn.all_cached for turn in later), sum(turn.prompt for turn in later)
    of_seen = min(turn.share_of_seen for turn in later)
    few, most = Required("<=", HANDFUL), Required(">=", 0.95)
    figures = (
        ("cached share of all prompt tokens, from turn 2 on", cached / asked, most),
        ("the same, in the worst turn", min(turn.share_of_all for turn in later), most),
        ("cached share of seen tokens, in the worst turn", of_seen, most),
        ("seen tokens computed again, at most", again, few),
        ("seen tokens that came back as other ids, at most", other, few),
        ("the same, had the tokenizer cut them", plain, None),
        ("turns too short to be stored", len(later) - len(stored), None),
        ("turns that a parked row served", sum(t.cached["parked"] > 0 for t in later), None),
        ("KB written a new token", sum(t.written_bytes for t in later) / new / 1e3, None),
        ("MB written a turn, median", median(later, "written_bytes") / 1e6, None),
        ("first token, ms, median", median(later, "ttft_s") * 1e3, None),
    )
    return [Check(f"{way}: {what}", value, required) for what, value, required in figures]


def median(turns: Sequence[Turn], figure: str) -> float:
    """Of a figure, over all turns."""
    return statistics.median(getattr(turn, figure) for turn in turns)


def hold(cluster: Cluster, way: Way, turns: int) -> list[Turn]:
    """Hold a conversation."""
    with asking(cluster) as asked:
        conversation = Conversation(asked, way)
        for _ in range(turns):
            conversation.go_on()
            print(way, *conversation.turns[-1].cells(), file=sys.stderr, flush=True)
    return conversation.turns


def hold_both(model: Path, turns: int) -> dict[Way, list[Turn]]:
    """Hold both in a cluster, which is started again between them."""
    with serving(model) as (cluster, settings):
        parked = hold(cluster, "with parked rows", turns)
        settings.write(parked_bytes=0)
        restart(cluster)
        return {"with parked rows": parked, "store alone": hold(cluster, "store alone", turns)}


def show(held: dict[Way, list[Turn]], took_s: float, *, as_json: bool) -> int:
    """Print what was seen, and how long that took; return the exit code."""
    checks = [check for way, turns in held.items() for check in judge(way, turns)]
    if as_json:
        rows = [{**msgspec.to_builtins(one), "verdict": one.verdict} for one in checks]
        print_json({"checks": rows, "turns": held, "took_s": took_s})
    else:
        for way, turns in held.items():
            print(f"{way}:")
            print_table(HEADER, [(str(n), *turn.cells()) for n, turn in enumerate(turns, 1)])
            print()
        print_table(("what", "figure", "required", ""), [check.cells() for check in checks])
        print(f"\nit took {took_s:.0f} s")
    return int(any(check.verdict == "MISSED" for check in checks))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder of one; SmolLM2 without it")
    parser.add_argument("--turns", type=int, default=20, help="two at least")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure and print; return the exit code."""
    arguments, began_s = parse(sys.argv[1:]), time.monotonic()
    with model_folder(arguments.model) as model:
        held = hold_both(model, arguments.turns)
    return show(held, time.monotonic() - began_s, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
