"""Tiny tokenizers in SentencePiece's way, as files of a model: a blank is a sign before a word."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE


def as_model(path: Path) -> None:
    """Write what a folder of a model has besides its tokenizer."""
    (path / "config.json").write_text('{"model_type": "llama", "eos_token_id": [256, 259]}')
    (path / "model.safetensors").touch()


def write_with_normalizer(path: Path) -> None:
    """As SentencePiece's models were turned into files first: by a normalizer."""
    _save(_with_normalizer(), path)


def write_with_pre_tokenizer(path: Path) -> None:
    """As they are turned into files now: by a pre-tokenizer."""
    backend = _pieces()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    _save(backend, path)


def write_with_two_marks(path: Path) -> None:
    """With one more special token, and one for what is unknown."""
    _save(_with_normalizer(), path, ("<s>", "<mark>", "<unk>"))


def _pieces() -> Tokenizer:
    pieces = ["<s>", "▁", "a", "b", "▁a", "ab", *(f"<0x{value:02X}>" for value in range(256))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return Tokenizer(BPE(vocabulary, [("▁", "a"), ("a", "b")], byte_fallback=True))


def _with_normalizer() -> Tokenizer:
    backend = _pieces()
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


def _save(backend: Tokenizer, path: Path, specials: Sequence[str] = ("<s>",)) -> None:
    path.mkdir()
    backend.add_special_tokens([AddedToken(each, normalized=False) for each in specials])
    backend.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<s>",
        **({"unk_token": "<unk>"} if "<unk>" in specials else {}),
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    as_model(path)
