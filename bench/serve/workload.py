"""Every request of every phase, from a seed: the same bytes for every server.

A nonce leads each prompt, so that no cache has it but where a phase asks the same again. What is
said is drawn from sentences of our own; how long it is, is counted by the model's tokenizer.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from bramley.client.requests import Message

Count = Callable[[str], int]  # tokens of a text

OTHER_TURN = 1_000_000  # indexes of an arm's second turn start here: other nonces
LANE = 1000  # indexes that each of several streams has, which asks until it is left
LANES_MAX = OTHER_TURN // LANE - 1
GREEDY: dict[str, Any] = {"temperature": 0.0}


class Sizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much each phase asks; tokens, unless said otherwise.

    Attributes:
        decode_samples: fixed ones.
        streams: that run together, a leg of the aggregate each.
        aggregate_context: of each stream's prompt.
        stagger_s: between the starts of a leg's streams.
        mixed_s: for which streams run before the long prompt comes.
    """

    parity_answer: int = 48
    decode_samples: int = 5
    decode_answer: int = 128
    ttft_prompt: int = 1000
    ttft_samples: int = 3
    short_answer: int = 8
    context_prompt: int = 4096
    context_answer: int = 48
    context_repeats: int = 2
    restart_prompt: int = 2048
    kill_prompt: int = 1000
    kill_answer: int = 256
    streams: tuple[int, ...] = (1, 2, 4, 8)
    aggregate_answer: int = 96
    aggregate_context: int = 32
    stagger_s: float = 0.0
    mixed_streams: int = 2
    mixed_prompt: int = 1200
    mixed_answer: int = 512
    mixed_s: float = 4.0
    agent_turns: int = 6
    agent_prompt: int = 1200
    agent_result: int = 80
    agent_answer: int = 24


FULL = Sizes()
QUICK = Sizes(
    parity_answer=12,
    decode_samples=5,
    decode_answer=24,
    ttft_prompt=280,
    context_prompt=600,
    context_answer=12,
    restart_prompt=280,
    kill_prompt=280,
    streams=(1, 4),
    aggregate_answer=24,
    mixed_prompt=400,
    mixed_s=1.5,
    agent_turns=3,
    agent_prompt=300,
    agent_result=40,
    agent_answer=8,
)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a server, greedily.

    Attributes:
        session: names the conversation, for servers that take such a name; not in ``sha256``.
    """

    phase: str
    attempt: int
    index: int
    turn: int
    messages: tuple[Message, ...]
    max_tokens: int
    session: str = ""

    @property
    def canonical(self) -> dict[str, Any]:
        """What is asked, without its place in the run."""
        return {"messages": list(self.messages), "max_tokens": self.max_tokens, **GREEDY}

    @property
    def sha256(self) -> str:
        """Of what is asked."""
        told = self.canonical
        line = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(line.encode()).hexdigest()


def nonce(seed: int, phase: str, attempt: int, index: int) -> str:
    """Twelve hexadecimal digits that nobody asked before."""
    named = json.dumps([seed, phase, attempt, index], separators=(",", ":"))
    return hashlib.sha256(named.encode()).hexdigest()[:12]


WHO = (
    *("The keeper", "A baker", "The old captain", "Her sister", "The clerk", "A young gardener"),
    *("The mason", "Our neighbour", "The nurse", "A painter", "The ferryman", "The teacher"),
)
DOES = (
    *("counts the boats", "writes a letter", "mends the nets", "carries water", "reads aloud"),
    *("opens the shutters", "weighs the flour", "cleans the lamps", "repairs a clock"),
    *("draws a map of the coast", "looks for the lost key", "sells bread and salt"),
)
WHERE = (
    *("by the harbour", "in the upper room", "behind the mill", "on the long bridge"),
    *("under the lime trees", "near the market", "at the edge of the village"),
    *("beside the lighthouse", "in the yard of the school", "along the river"),
)
WHEN = (
    *("before the sun rises", "while the rain falls", "after the bells have rung"),
    *("every autumn", "when the tide is low", "as soon as the shops close"),
    *("on the first day of the month", "although nobody asked for it"),
    *("until the last ship has left", "whenever the wind turns"),
)
SUBJECTS = (
    *("the sea", "a long winter", "the work of a baker", "bridges", "old maps", "the harvest"),
    *("lighthouses", "a small town", "clocks"),
)
LONG_STORY = "Write a very long story about {subject}, in many chapters. Do not stop early."
SHORT_QUESTIONS = ("Who was busy?", "What was done?", "Where was it?", "When was it?")
PROBES = (
    "What is the capital of France? Answer in one sentence.",
    "Count from one to thirty in words.",
    "Explain in plain words why the sky is blue.",
    'Write a function in Python that tells whether a word reads the same backwards: "',
)
WARM_UP = "Say hello."
RULES = "You look after a harbour. Answer in a few words. This is what you know so far."
TOOL_RESULT = "The harbour office reports: {report}What do you do next?"


class Workload:
    """All requests of a run.

    Args:
        seed: of the run.
        sizes: how much is asked.
        count: tells how many tokens a text has.

    Attributes:
        made: all that was made so far, by its ``sha256``.
    """

    def __init__(self, seed: int, sizes: Sizes, count: Count) -> None:
        self.seed = seed
        self.sizes = sizes
        self._count = count
        self._counted: dict[str, int] = {}
        self.made: dict[str, dict[str, Any]] = {}

    def place(self, phase: str, attempt: int, turn: int) -> "Place":
        """Make the requests of one attempt at a phase, in one of an arm's turns."""
        return Place(self, phase, attempt, turn)

    def told(self, tokens: int, draw: Random) -> str:
        """Tell a story of some ``tokens`` tokens; each sentence is counted by itself."""
        sentences: list[str] = []
        while tokens > 0:
            sentence = _sentence(draw)
            if sentence not in self._counted:
                self._counted[sentence] = self._count(sentence)
            tokens -= max(self._counted[sentence], 1)
            sentences.append(sentence)
        return "".join(sentences)


class Place:
    """Where in a run requests are asked; each method makes some of one phase.

    Indexes count up from 0 in an arm's first turn and from ``OTHER_TURN`` in its second.
    """

    def __init__(self, workload: Workload, phase: str, attempt: int, turn: int) -> None:
        self.sizes = workload.sizes
        self._workload = workload
        self._phase, self._attempt, self._turn = phase, attempt, turn
        self._next = turn * OTHER_TURN

    def lane(self, number: int) -> "Place":
        """Make a place of its own for one of several streams, so that their order is free."""
        made = Place(self._workload, self._phase, self._attempt, self._turn)
        made._next += LANE * (number + 1)
        return made

    def nonce(self, index: int) -> str:
        """Which leads the prompt of that index."""
        return nonce(self._workload.seed, self._phase, self._attempt, index)

    def fixed(self, text: str, max_tokens: int) -> Asked:
        """Ask a text as it is; caches may have it."""
        return self._asked(({"role": "user", "content": text},), max_tokens)

    def story(self, max_tokens: int) -> Asked:
        """Ask for an answer that is long."""
        index = self._next
        subject = SUBJECTS[index % OTHER_TURN % len(SUBJECTS)]
        text = LONG_STORY.format(subject=subject)
        return self.fixed(f"{self.nonce(index)} {text}", max_tokens)

    def streamed(self, tokens: int, max_tokens: int) -> Asked:
        """Ask for an answer that is long, with a prompt of some ``tokens`` tokens."""
        subject = SUBJECTS[self._next % len(SUBJECTS)]
        return self.prompt(tokens, max_tokens, LONG_STORY.format(subject=subject))

    def prompt(self, tokens: int, max_tokens: int, ask: str = "") -> Asked:
        """Ask something of some ``tokens`` tokens."""
        lead = self.nonce(self._next)
        told = self._workload.told(tokens, Random(lead))  # noqa: S311  the same each time
        question = ask or SHORT_QUESTIONS[self._next % len(SHORT_QUESTIONS)]
        return self.fixed(f"{lead} {told}{question}", max_tokens)

    def again(self, asked: Asked, max_tokens: int | None = None) -> Asked:
        """Ask the same once more."""
        return self._asked(asked.messages, max_tokens or asked.max_tokens)

    def agent(self) -> Asked:
        """Ask the first turn of an agent."""
        sizes, lead = self.sizes, self.nonce(self._next)
        told = self._workload.told(sizes.agent_prompt, Random(lead))  # noqa: S311
        first = f"{lead} {RULES} {told}{SHORT_QUESTIONS[0]}"
        asked = self.fixed(first, sizes.agent_answer)
        return msgspec.structs.replace(asked, session=lead)

    def goes_on(self, before: Asked, answer: str) -> Asked:
        """Ask the next turn, after the answer to the one before."""
        draw = Random(self.nonce(self._next))  # noqa: S311
        report = self._workload.told(self.sizes.agent_result, draw)
        said: Message = {"role": "assistant", "content": answer}
        result: Message = {"role": "user", "content": TOOL_RESULT.format(report=report)}
        asked = self._asked((*before.messages, said, result), before.max_tokens)
        return msgspec.structs.replace(asked, session=before.session)

    def _asked(self, messages: Sequence[Message], max_tokens: int) -> Asked:
        index = self._next
        self._next += 1
        asked = Asked(
            phase=self._phase,
            attempt=self._attempt,
            index=index,
            turn=self._turn,
            messages=tuple(messages),
            max_tokens=max_tokens,
        )
        self._workload.made[asked.sha256] = asked.canonical
        return asked


def _sentence(draw: Random) -> str:
    # `random()` alone is promised to give the same numbers in every version of Python.
    who, does, where, when = (of[int(draw.random() * len(of))] for of in (WHO, DOES, WHERE, WHEN))
    return f"{who} {does} {where}, {when}. "


def four_characters_a_token(text: str) -> int:
    """Count where there is no tokenizer: what it says is recorded, not relied on."""
    return -(-len(text) // 4)
