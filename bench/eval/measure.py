"""Measures the divergence of two model folders. Imports MLX: load the BLAS first."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bramley.bench.eval.divergence import Compared, compare
from bramley.bench.eval.forwards import Ids, Source, forget, served, whole
from bramley.bench.eval.kept import Kept, widened
from bramley.bench.eval.provenance import Model, describe
from bramley.bench.eval.spread import Told, by_kind, summarize, worst
from bramley.bench.eval.texts import SHIPPED, Text, read_texts
from bramley.common.errors import InvalidRequest
from bramley.worker.loading import Numerics
from bramley.worker.models.blas import Blas
from bramley.worker.models.mlx_lm import load_tokenizer
from bramley.worker.settings import WorkerSettings
from bramley.worker.text.tokenizer import Tokenizer

TOKENS_MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be compared.

    Attributes:
        reference: a model folder.
        candidate: another, or the same.
        texts: a file of texts; those that ship with this program, if there is none.
        limit: so many of the texts; all, if there is none.
        tokens: of each text at most.
        serving: whether the candidate runs as its worker would run it.
        work: folder for the reference's logits; the system's own, if there is none.
    """

    reference: Path
    candidate: Path
    texts: Path | None = None
    limit: int | None = None
    tokens: int = 256
    serving: bool = False
    work: Path | None = None


def measure(wanted: Wanted, blas: Blas) -> Told:
    """Compare two model folders.

    Args:
        wanted: see there.
        blas: that computes.

    Returns:
        What was found.

    Raises:
        InvalidRequest: the two cannot be compared.
    """
    texts = read_texts(wanted.texts, wanted.limit)
    ids = _ids(wanted, texts)
    with tempfile.TemporaryDirectory(prefix="bramley-", dir=wanted.work) as folder:
        kept = _keep(wanted.reference, Path(folder) / "logits", ids)
        if wanted.serving:
            settings = WorkerSettings(path=str(wanted.candidate), import_dir=folder)
            source = served(settings, Numerics(blas.name, blas.sum_panel), ids)
        else:
            source = whole(wanted.candidate, ids)
        if source.vocabulary != kept.vocabulary:
            told = f"has {source.vocabulary} logits, and the reference {kept.vocabulary}"
            raise InvalidRequest("CANDIDATE", told)
        found, first = _compare(source, kept, ids)
        kept_bytes = kept.nbytes
    models = {"reference": wanted.reference, "candidate": wanted.candidate}
    return Told(
        mode="served" if wanted.serving else "whole",
        figures=summarize(found),
        by_kind=by_kind(texts, found),
        by_text={text.id: float(one.kl.mean()) for text, one in zip(texts, found, strict=True)},
        worst=worst(texts, found, first),
        kept_bytes=kept_bytes,
        provenance=describe(
            models={name: Model.of(path) for name, path in models.items()},
            files={"texts": wanted.texts or SHIPPED},
            settings={"tokens": wanted.tokens, "limit": wanted.limit, "blas": blas.name},
        ),
    )


def _keep(folder: Path, file: Path, ids: Sequence[Ids]) -> Kept:
    """Run the reference, and leave of it what is on the disk."""
    source = whole(folder, ids)
    kept = Kept(file, [len(one) - 1 for one in ids], source.vocabulary, source.dtype)
    for piece in source.pieces:
        kept.write(piece.text, piece.first, piece.bits)
        _say("reference", piece.text, len(ids))
    del source
    forget()
    return kept


def _ids(wanted: Wanted, texts: Sequence[Text]) -> list[list[int]]:
    """Tokenize, and make sure that both models do it alike."""
    mine, theirs = (
        Tokenizer(load_tokenizer(folder)) for folder in (wanted.reference, wanted.candidate)
    )
    ids: list[list[int]] = []
    for text in texts:
        one = mine.encode(text.text)[: wanted.tokens]
        if one != theirs.encode(text.text)[: wanted.tokens]:
            raise InvalidRequest("CANDIDATE", f"its tokenizer reads text {text.id!r} otherwise")
        if len(one) < TOKENS_MIN:
            raise InvalidRequest(f"text {text.id}", f"is of fewer than {TOKENS_MIN} tokens")
        ids.append(one)
    return ids


def _compare(source: Source, kept: Kept, ids: Sequence[Ids]) -> tuple[list[Compared], list[int]]:
    """Compare piece by piece; of each text what was found, and its first position."""
    parts: list[dict[int, Compared]] = [{} for _ in ids]
    for piece in source.pieces:
        count = len(piece.bits)
        targets = np.array(ids[piece.text][piece.first + 1 : piece.first + 1 + count], np.int64)
        reference = kept.read(piece.text, piece.first, count)
        candidate = widened(piece.bits, source.dtype)
        parts[piece.text][piece.first] = compare(reference, candidate, targets)
        _say("candidate", piece.text, len(ids))
    return [_joined(some) for some in parts], [min(some) for some in parts]


def _joined(parts: Mapping[int, Compared]) -> Compared:
    some = [parts[first] for first in sorted(parts)]
    return Compared(
        kl=np.concatenate([one.kl for one in some]),
        agrees=np.concatenate([one.agrees for one in some]),
        reference_nll=np.concatenate([one.reference_nll for one in some]),
        candidate_nll=np.concatenate([one.candidate_nll for one in some]),
    )


def _say(who: str, text: int, texts: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{who}: text {text + 1} of {texts} ", end="", file=sys.stderr, flush=True)
