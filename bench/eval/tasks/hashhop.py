"""hashhop: a long list of assignments, made by seed; some of them are to be followed in turn."""

import random
import re
from dataclasses import dataclass
from itertools import pairwise

from bramley.bench.eval.tasks.contract import Answer, Asked, Item, Setting, Task, Verdict

MAX_TOKENS = 128
NAME_LETTERS = 8
LINES_MIN = 8
_NAME = re.compile(rf"(?<![a-z])[a-z]{{{NAME_LETTERS}}}(?![a-z])")


class Hops(Item, frozen=True, kw_only=True):
    """One item: all of it follows from seed and length."""

    seed: int
    hops: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.hops < LINES_MIN:
            raise ValueError(f"hops: 1 to {LINES_MIN - 1}")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Assignments in the order in which they stand, where to begin, and every step's name."""

    lines: tuple[str, ...]
    start: str
    path: tuple[str, ...]


def puzzle(item: Hops, lines: int) -> Puzzle:
    """Make the assignments of an item: chains of ``hops`` each, shuffled.

    Args:
        item: which.
        lines: how many; at least ``LINES_MIN``.

    Returns:
        The first chain is asked for; all others are there to be passed over.
    """
    drawn = random.Random(f"{item.seed}.{item.hops}.{lines}")  # noqa: S311 -- no secret
    pairs: list[tuple[str, str]] = []
    names: set[str] = set()
    chains: list[list[str]] = []
    while len(pairs) < lines:
        chain = [_name(drawn, names) for _ in range(min(item.hops, lines - len(pairs)) + 1)]
        chains.append(chain)
        pairs += pairwise(chain)
    drawn.shuffle(pairs)
    text = tuple(f"{left} = {right}" for left, right in pairs)
    return Puzzle(text, chains[0][0], tuple(chains[0][1:]))


def _name(drawn: random.Random, names: set[str]) -> str:
    while (name := "".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=NAME_LETTERS))) in names:
        pass
    names.add(name)
    return name


def ask(item: Hops, setting: Setting) -> Asked:
    """Ask for the name at the end of a chain."""
    made = puzzle(item, setting.lines)
    text = "\n".join(
        [
            "Each line assigns a name to another.",
            "",
            *made.lines,
            "",
            f"Start at {made.start} and follow {_times(item.hops)}: each name on the left leads "
            "to the name on its right. Answer with the name that you reach, and nothing else.",
        ]
    )
    tokens = setting.limit(MAX_TOKENS)
    if setting.style == "raw":
        return Asked(text=f"{text}\nAnswer:", style="raw", max_tokens=tokens, stop=("\n\n",))
    return Asked(text=text, style="chat", max_tokens=tokens)


def _times(hops: int) -> str:
    return "one assignment" if hops == 1 else f"{hops} assignments, one after the other"


def judge(item: Hops, answer: Answer, setting: Setting) -> Verdict:
    """Compare the last name of the answer with the end of the chain."""
    path = puzzle(item, setting.lines).path
    names = _NAME.findall(answer.text.lower())
    known = puzzle_names(item, setting.lines)
    found = next((name for name in reversed(names) if name in known), "")
    if not found:
        return Verdict(is_right=False, found="", why="no name of the list in the answer")
    if found == path[-1]:
        return Verdict(is_right=True, found=found, why="the end of the chain")
    place = f"after {path.index(found) + 1} of {len(path)} hops" if found in path else "elsewhere"
    return Verdict(is_right=False, found=found, why=f"{found} stands {place}")


def puzzle_names(item: Hops, lines: int) -> set[str]:
    """Tell every name that stands in an item's list."""
    return {name for line in puzzle(item, lines).lines for name in line.split(" = ")}


TASK = Task(name="hashhop", kind=Hops, ask=ask, judge=judge)
