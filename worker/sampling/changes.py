"""What one row adds to its logits, and divides out of them: penalties, bias and bans.

The history is counted once, and followed from then on as it grows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bramley.worker.sampling.params import SamplingParams

History = tuple[Sequence[int], Sequence[int]]  # prompt, output


@dataclass(frozen=True, slots=True)
class Change:
    """Of each of ``ids``, no two the same: divide or multiply, then add, unless it is banned."""

    ids: NDArray[np.int32]
    divisor: NDArray[np.float32]
    added: NDArray[np.float32]
    banned: NDArray[np.uint8]


class RowChanges:
    """One row's, from step to step.

    Attributes:
        fixed: whether it is the same at every step.
    """

    def __init__(self, params: SamplingParams, min_until: int, blocked: frozenset[int]) -> None:
        self._params = params
        self._min_until = min_until
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, np.int32)
        self._seen = np.zeros((2, 64), np.int32)  # in the whole window, in its output
        self._bias = np.zeros(64, np.float32)
        for token, bias in params.logit_bias:
            slot = self._slot(token)  # first: it may make the arrays anew
            self._bias[slot] += bias
        words = [word for word in params.bad_words if word]
        self._endings = [(word[:-1], self._slot(word[-1])) for word in words]
        self._reach = max((len(word) - 1 for word in words), default=0)
        self._blocked = [self._slot(token) for token in sorted(blocked)] if min_until else []
        self._history: History = ((), ())
        self._read = 0
        self.fixed = not (params.needs_history or self._blocked)

    @property
    def empty(self) -> bool:
        """Whether nothing is ever changed."""
        return self.fixed and not self._slots

    def at(self, position: int, history: History) -> Change:
        """Return the change for the token at ``position``, which follows ``history``."""
        if self._params.penalises:
            self._follow(history)
        count = len(self._slots)
        in_window, in_output = self._seen[:, :count]
        params = self._params
        taken_off = params.presence_penalty * (in_output > 0) + params.frequency_penalty * in_output
        banned = np.zeros(count, np.uint8)
        banned[self._banned(position, history)] = 1
        return Change(
            self._ids[:count],
            np.where(in_window > 0, params.repetition_penalty, 1.0).astype(np.float32),
            (self._bias[:count] - taken_off).astype(np.float32),
            banned,
        )

    def _banned(self, position: int, history: History) -> list[int]:
        tail = _tail(history, self._reach)
        slots = [
            slot
            for start, slot in self._endings
            if not start or tail[len(tail) - len(start) :] == start
        ]
        return slots + self._blocked if position < self._min_until else slots

    def _follow(self, history: History) -> None:
        prompt, output = history
        stop = len(prompt) + len(output)
        if not self._continues(history):
            self._seen[:] = 0
            first = max(stop - self._params.penalty_window, 0) if self._params.penalty_window else 0
            self._count(Counter(prompt[first:]), in_output=False)
            self._count(Counter(output[max(first - len(prompt), 0) :]), in_output=True)
        else:
            for place in range(self._read, stop):
                self._move(history, place, 1)
                if 0 < self._params.penalty_window <= place:
                    self._move(history, place - self._params.penalty_window, -1)
        self._history, self._read = history, stop

    def _continues(self, history: History) -> bool:
        """Whether this is the history that was counted, and perhaps new output."""
        prompt, output = history
        counted_prompt, counted_output = self._history
        return (
            prompt is counted_prompt
            and output is counted_output
            and len(prompt) <= self._read <= len(prompt) + len(output)
        )

    def _move(self, history: History, place: int, step: int) -> None:
        prompt, output = history
        in_output = place >= len(prompt)
        token = output[place - len(prompt)] if in_output else prompt[place]
        self._count({token: step}, in_output=in_output)

    def _count(self, tokens: Mapping[int, int], *, in_output: bool) -> None:
        slots = [self._slot(token) for token in tokens]
        counts = np.fromiter(tokens.values(), np.int32, len(slots))
        self._seen[: 1 + in_output, slots] += counts

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._seen = np.concatenate([self._seen, np.zeros_like(self._seen)], axis=1)
            self._bias = np.concatenate([self._bias, np.zeros_like(self._bias)])
        self._ids[slot] = token
        return slot


def _tail(history: History, count: int) -> tuple[int, ...]:
    prompt, output = history
    missing = max(count - len(output), 0)
    return (*prompt[max(len(prompt) - missing, 0) :], *output[max(len(output) - count, 0) :])
