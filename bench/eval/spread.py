"""What the divergences at many positions have in common: of all texts, of each kind, the worst."""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from bramley.bench.eval.divergence import Compared, Floats
from bramley.bench.eval.provenance import Provenance
from bramley.bench.eval.sure import Interval, interval
from bramley.bench.eval.texts import Text


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What many positions have in common. Divergences are in nats.

    Attributes:
        agreement: share of the positions where both find the same token likeliest.
        mean_interval: of the mean, by drawing texts anew.
        agreement_interval: of the agreement, likewise.
        reference_perplexity: of the texts' own tokens.
        candidate_perplexity: likewise.
    """

    texts: int
    positions: int
    mean: float
    median: float
    p95: float
    max: float
    agreement: float
    reference_perplexity: float
    candidate_perplexity: float
    mean_interval: Interval | None = None
    agreement_interval: Interval | None = None


class Worst(msgspec.Struct, frozen=True, kw_only=True):
    """The position with the largest divergence: of a text, counted from 0."""

    text: str
    position: int
    kl: float


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """All that a comparison gave.

    Attributes:
        mode: "whole" forwards on both sides, or the candidate "served" by decode steps.
        kept_bytes: that the reference's logits took on the disk meanwhile.
        by_text: mean divergence of each.
    """

    mode: str
    figures: Figures
    by_kind: dict[str, Figures]
    by_text: dict[str, float]
    worst: Worst
    kept_bytes: int
    provenance: Provenance


def summarize(found: Sequence[Compared]) -> Figures:
    """Sum up what was found in each text.

    Returns:
        Figures over all positions; the bootstrap draws texts.
    """
    kl = np.concatenate([one.kl for one in found])
    agrees = np.concatenate([one.agrees for one in found])
    counts = [len(one.kl) for one in found]
    return Figures(
        texts=len(found),
        positions=len(kl),
        mean=float(kl.mean()),
        median=float(np.median(kl)),
        p95=float(np.quantile(kl, 0.95, method="inverted_cdf")),
        max=float(kl.max()),
        agreement=float(agrees.mean()),
        reference_perplexity=_perplexity([one.reference_nll for one in found]),
        candidate_perplexity=_perplexity([one.candidate_nll for one in found]),
        mean_interval=interval([float(one.kl.sum()) for one in found], counts),
        agreement_interval=interval([float(one.agrees.sum()) for one in found], counts),
    )


def _perplexity(nll: Sequence[Floats]) -> float:
    mean = float(np.concatenate(nll).mean())
    return math.exp(mean) if mean < 700 else math.inf


def by_kind(texts: Iterable[Text], found: Sequence[Compared]) -> dict[str, Figures]:
    """Sum up the texts of each kind, in the order of their first."""
    groups: dict[str, list[Compared]] = {}
    for text, one in zip(texts, found, strict=True):
        groups.setdefault(text.kind, []).append(one)
    return {kind: summarize(some) for kind, some in groups.items()}


def worst(texts: Sequence[Text], found: Sequence[Compared], first: Sequence[int]) -> Worst:
    """Find the largest divergence; ``first`` is where each text's positions begin."""
    number = max(range(len(found)), key=lambda text: float(found[text].kl.max()))
    place = int(found[number].kl.argmax())
    return Worst(
        text=texts[number].id,
        position=first[number] + place,
        kl=float(found[number].kl[place]),
    )
