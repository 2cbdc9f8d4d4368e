"""A model's rows against mlx-lm's own cache with each prompt alone: every logit of every way.

Rows are fed the tokens that mlx-lm's logits call for, so that one difference does not become
another text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from bramley.worker.cache.contract import Bytes
from bramley.worker.cache.opaque import OpaqueState
from bramley.worker.cache.table import RowTable
from bramley.worker.models.contract import Lane, LanguageModel
from bramley.worker.models.mlx_lm import own_caches
from support.forwards import Logits, Rows, as_numpy
from support.zoo.shapes import VOCABULARY

PROMPTS = (1, 2, 33, 20)  # tokens; the window is 8
STEPS = 12
PIECE = 8  # tokens of a prompt a forward
JOINS, LEAVES = 4, 8  # steps after which the last text's row comes, and the first one's goes

WRONG, OTHER = 1e-3, 1e-4  # of the largest logit; beyond OTHER the token must be the same


@dataclass(frozen=True)
class Text:
    """A prompt and what follows it, and mlx-lm's logits after each token."""

    tokens: list[int]
    prompt: int
    logits: Logits

    def parts(self, piece: int) -> Iterator[list[int]]:
        """Cut the prompt but for its last token, which is the first step's."""
        for start in range(0, self.prompt - 1, piece):
            yield self.tokens[start : min(start + piece, self.prompt - 1)]


def texts(model: nn.Module, piece: int = max(PROMPTS)) -> list[Text]:
    """Let mlx-lm go on from each prompt alone, which it takes in pieces."""
    random = np.random.default_rng(1)
    prompts = [[int(token) for token in random.integers(0, VOCABULARY, n)] for n in PROMPTS]
    return [_text(model, prompt, piece) for prompt in prompts]


def _text(model: nn.Module, prompt: list[int], piece: int) -> Text:
    caches = make_prompt_cache(model)
    text = Text([*prompt], len(prompt), np.empty((0, 0), np.float32))
    pieces = [*text.parts(piece), prompt[-1:]]
    logits = [_forward(model, part, caches) for part in pieces]
    for _ in range(STEPS):
        text.tokens.append(int(logits[-1][-1, :VOCABULARY].argmax()))
        logits.append(_forward(model, text.tokens[-1:], caches))
    return Text(text.tokens, text.prompt, np.concatenate(logits))


def _forward(model: nn.Module, tokens: list[int], caches: list[object]) -> Logits:
    return as_numpy(cast("LanguageModel", model)(mx.array([tokens]), cache=caches))[0]


class OwnRows(Rows):
    """The one row that there is of a model on its own caches."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.table = RowTable()
        self._state = OpaqueState(self.table, lambda: own_caches(model))
        self.layers = [self._state]

    @property
    def _caches(self) -> Sequence[object]:
        return self._state.caches


class Walk:
    """Rows, each with a text and its place in it, whose logits are compared as they come."""

    def __init__(self, model: nn.Module, lane: Lane) -> None:
        self._model = model
        self._lane = lane
        self._rows = OwnRows(model) if lane is Lane.OWN else Rows(model)
        self._texts: list[Text] = []
        self._at: list[int] = []

    def join(self, texts: Sequence[Text], piece: int = max(PROMPTS)) -> None:
        """Let rows with these prompts come, at the end: all in one forward if they may."""
        first = len(self._texts)
        for text in texts:
            self._rows.join()
            self._texts.append(text)
            self._at.append(0)
        rows = range(first, len(self._texts))
        together = [rows] if self._lane is Lane.BATCHED else [range(r, r + 1) for r in rows]
        for some in together:
            self._prefill(some, piece)

    def _prefill(self, rows: range, piece: int) -> None:
        left = [list(self._texts[row].parts(piece)) for row in rows]
        for turn in range(max(map(len, left))):
            self._feed([parts[turn] if turn < len(parts) else [] for parts in left], rows.start)

    def step(self, count: int) -> None:
        """Feed every row a token, so many times."""
        for _ in range(count):
            pairs = zip(self._texts, self._at, strict=True)
            self._feed([text.tokens[at : at + 1] for text, at in pairs], 0)

    def leave(self, row: int) -> None:
        """Let a row go; the last takes its place."""
        self._rows.leave(row)
        self._texts[row], self._at[row] = self._texts[-1], self._at[-1]
        self._texts.pop()
        self._at.pop()

    def moved(self, row: int) -> "Walk":
        """Make other rows, of which the first goes on where ``row`` is: by an export of it."""
        other = Walk(self._model, self._lane)
        _restore(other._rows, self._rows, row)
        other._texts, other._at = [self._texts[row]], [self._at[row]]
        return other

    def _feed(self, content: list[list[int]], first: int) -> None:
        for row, seen in enumerate(self._rows.feed(content, first=first), first):
            at = self._at[row]
            assert_near(seen, self._texts[row].logits[at : at + len(seen)])
            self._at[row] += len(seen)


def _restore(target: Rows, source: Rows, row: int) -> None:
    """Make a first row of what another table's row is, by the bytes that would be stored."""
    tokens = source.table.lengths[row]
    target.join()
    for new, old in zip(target.layers, source.layers, strict=True):
        new.resemble(old)
        exported: Bytes = np.zeros(old.export_bytes(tokens), np.uint8)
        mx.eval(old.arrays())
        old.export_row(row, 0, tokens, exported)
        new.import_row(0, 0, tokens, exported, tokens)
    target.table.imported(0, tokens)


def assert_near(ours: Logits, theirs: Logits) -> None:
    """Check that logits are the same but for the order in which terms are added up."""
    if len(ours) == 0:
        return
    finite = np.isfinite(theirs)  # ids that stand for nothing may be given -inf
    np.testing.assert_array_equal(ours[~finite], theirs[~finite])
    ours, theirs = np.where(finite, ours, 0), np.where(finite, theirs, 0)
    error = np.abs(ours - theirs).max(-1) / np.abs(theirs).max()
    assert error.max() <= WRONG, f"off by {error.max():.0e}"
    other = ours.argmax(-1) != theirs.argmax(-1)
    assert not (other & (error > OTHER)).any(), f"another token, off by {error.max():.0e}"


def walk(model: nn.Module, lane: Lane) -> None:
    """Walk a model as its lane allows.

    Raises:
        AssertionError: some logits are not those of mlx-lm; or whatever the model's file raises.
    """
    if lane.rows_max is None:
        _walk_together(model, lane)
    else:
        _walk_alone(model, lane)


def _walk_together(model: nn.Module, lane: Lane) -> None:
    expected = texts(model)
    batch = Walk(model, lane)
    batch.join(expected)
    batch.step(STEPS // 2)
    restored = batch.moved(2)
    restored.step(3)
    restored.join(expected[:1])
    restored.step(3)
    batch.step(STEPS // 2)

    batch = Walk(model, lane)
    batch.join(expected[:3], PIECE)
    batch.step(JOINS)
    batch.join(expected[3:], PIECE)
    batch.step(LEAVES - JOINS)
    batch.leave(0)
    batch.step(STEPS - LEAVES)


def _walk_alone(model: nn.Module, lane: Lane) -> None:
    # What mlx-lm gives may depend on the pieces, but then ours must be the same.
    row = Walk(model, lane)
    for piece in (max(PROMPTS), PIECE):
        for text in texts(model, piece):
            row.join([text], piece)
            row.step(STEPS // 2)
            if lane is not Lane.OWN:
                row.moved(0).step(STEPS // 2)
            row.step(STEPS // 2)
            row.leave(0)
