"""Texts whose embeddings are asked for, and which of them go into one forward (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

PADDING_MAX = 2  # how many times its own length a text may be computed
ROWS_MAX = 256

Pooling = Literal["mean", "last"]


@dataclass(slots=True, kw_only=True, eq=False)
class EmbedJob:
    """One call's texts; the engine's thread has it in hand from its submission on.

    Attributes:
        texts: ids of each, at least one.
        pooling: how the vectors of a text's tokens become one.
        values: the vector of each text that is done, float32, little-endian.
    """

    id: str
    texts: Sequence[Sequence[int]]
    pooling: Pooling
    values: dict[int, bytes] = field(default_factory=dict[int, bytes])

    @property
    def is_done(self) -> bool:
        """Whether every text is."""
        return len(self.values) == len(self.texts)


@dataclass(frozen=True, slots=True)
class Text:
    """One of a job's texts that is still to be computed."""

    job: EmbedJob
    index: int

    @property
    def ids(self) -> Sequence[int]:
        """Its tokens."""
        return self.job.texts[self.index]


def texts_of(job: EmbedJob) -> list[Text]:
    """List a job's texts, the longest first."""
    texts = [Text(job, index) for index in range(len(job.texts))]
    return sorted(texts, key=lambda text: -len(text.ids))


def choose(waiting: Sequence[Text], tokens: int) -> list[Text]:
    """Choose the next forward's texts: the first one, and others that are about as long.

    Args:
        waiting: texts of all jobs, of each the longest first.
        tokens: that the forward may compute, padding included.

    Returns:
        The first one, and whom it shares the forward with; all by itself if it is longer.
    """
    columns = len(waiting[0].ids)
    rows_max = max(min(tokens // columns, ROWS_MAX), 1)
    alike = [text for text in waiting[1:] if columns <= PADDING_MAX * len(text.ids)]
    fitting = [text for text in alike if len(text.ids) <= columns]
    fitting.sort(key=lambda text: -len(text.ids))
    return [waiting[0], *fitting[: rows_max - 1]]
