"""A conversation with second thoughts, each answer beside that of a run without any cache."""

from collections.abc import Callable, Sequence

from bramley.bench.asking import WORTH_STORING_OF_PROMPT, Asking, common
from bramley.client.events import Completion
from bramley.client.requests import Message

MIN_TOKENS, MAX_TOKENS = 24, 40
WORTH_TOKENS = 16  # fewer are computed sooner than fetched
STORED = (
    "The {0} in room {1} was bought in {2} and weighs {3} pounds; it stands beside the window. ",
    "In the year {2} somebody moved the {0} from room {1} to the cellar, {3} steps down. ",
)
THINGS = ("chair", "table", "lamp", "mirror", "piano", "clock", "carpet", "stove", "bed", "desk")

Add = Callable[[str, Sequence[str], str], None]


def inventory(first: int, items: int) -> str:
    """Write some twenty tokens an item, the same each time."""
    numbers = range(first, first + items)
    return "".join(
        STORED[n % 2].format(THINGS[n * 7 % 10], 10 + n * 13 % 80, 1800 + n * 37 % 200, n * n % 97)
        for n in numbers
    )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


LONG = _user(f"This is a list of old things. {inventory(0, 16)}Which one would you sell first?")
SECOND = _user(f"And of these? {inventory(16, 8)}")
EDITED = _user(f"And which of these would you keep? {inventory(18, 8)}")
THIRD = _user("Why?")
OTHER = _user("Write one sentence about the oldest of them.")


class Branching:
    """One conversation and its branches.

    Args:
        name: of it, which nothing cached is shared with another across.
        add: takes each check: what, its faults, and what else there is to say.
    """

    def __init__(self, name: str, add: Add) -> None:
        self._name = name
        self._add = add
        self._messages: list[Message] = []
        self._first: list[int] = []  # ids of the first prompt

    def run(self, asked: Asking) -> None:
        """Go through all branches."""
        first = self._answered(asked, "first turn", [LONG])
        second = self._answered(asked, "second turn", [*first, SECOND])
        third = self._answered(asked, "third turn", [*second, THIRD])
        self._answered(asked, "third turn regenerated", third[:-1])
        self._answered(asked, "second turn regenerated", second[:-1])
        edited = self._answered(asked, "second turn edited", [*first, EDITED])
        self._answered(asked, "on from the edited one", [*edited, THIRD])
        self._answered(asked, "shortened to the first turn", [*first, OTHER])
        self._answered(asked, "its beginning left out", [*second[2:], OTHER])
        self._messages = self._answered(asked, "the first line again", [*third, OTHER])

    def go_on(self, asked: Asking, when: str) -> None:
        """Ask for one more turn, of a cluster whose processes may be others by now."""
        self._messages = self._answered(asked, f"one more turn, {when}", [*self._messages, THIRD])

    def _answered(self, asked: Asking, what: str, messages: Sequence[Message]) -> list[Message]:
        ids = asked.ids(messages, self._name, self._name)
        stored = asked.stored(ids, self._name)
        shared = common(ids, self._first)
        self._first = self._first or ids
        answer = asked.ask(
            messages=messages,
            session_key=self._name,
            salt=self._name,
            min_tokens=MIN_TOKENS,
            max_tokens=MAX_TOKENS,
        )
        anew = asked.ask(anew=True, token_ids=ids, min_tokens=MIN_TOKENS, max_tokens=MAX_TOKENS)
        cached = answer.usage.cached_tokens
        tiers = "+".join(f"{count} {tier}" for tier, count in cached.items() if count) or "0"
        found = faults(answer, anew, ids, stored)
        if shared >= WORTH_STORING_OF_PROMPT and not sum(cached.values()):
            found.append("nothing of the first turn was used")
        self._add(
            f"conversation {self._name!r}, {what}",
            found,
            f"cached {tiers} of {len(ids)}, stored {stored}, answer {len(answer.token_ids)}",
        )
        asked.settle([*ids, *answer.token_ids], self._name)
        return [*messages, {"role": "assistant", "content": answer.text}]


def faults(answer: Completion, anew: Completion, ids: Sequence[int], stored: int) -> list[str]:
    """Say what is wrong with an answer.

    Args:
        answer: that may have used what was cached.
        anew: to the same ids, with nothing cached.
        ids: of the prompt.
        stored: how many of them were stored before.

    Returns:
        A few words on each fault.
    """
    found: list[str] = []
    cached = answer.usage.cached_tokens
    if answer.token_ids != anew.token_ids:
        pairs = enumerate(zip(answer.token_ids, anew.token_ids, strict=False))
        at = next((at for at, (one, other) in pairs if one != other), "the end")
        found.append(f"another answer than with nothing cached, from {at} on")
    if answer.usage.prompt_tokens != len(ids):
        found.append(f"a prompt of {answer.usage.prompt_tokens} tokens for {len(ids)}")
    if sum(anew.usage.cached_tokens.values()):
        found.append("something was cached where nothing was to be")
    if stored >= WORTH_TOKENS and not sum(cached.values()):
        found.append("nothing of what is stored was used")
    if cached["ram"] + cached["ssd"] > stored or sum(cached.values()) >= len(ids):
        found.append("more is said to be cached than there was")
    return found
