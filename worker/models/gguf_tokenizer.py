"""Writes the tokenizer of a GGUF file, byte-level BPE only, as Hugging Face's files."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from bramley.worker.models.errors import ModelError

Facts = dict[str, Any]

_CONTROL, _USER_DEFINED = 3, 4  # GGUF's token types

# How text is cut before merging, by GGUF's name for it.
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
_CUTS = {
    "smollm": [pre_tokenizers.Digits(individual_digits=True), _BYTES],
    "gpt-2": [_BYTES],
    "default": [_BYTES],
}


def write_tokenizer(facts: Facts, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json from a GGUF's ``tokenizer.*`` facts.

    Raises:
        ModelError: the tokenizer is of a kind that cannot be imported.
    """
    kind, cut = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or cut not in _CUTS:
        raise ModelError(f"the GGUF's tokenizer is of the kind {kind!r} ({cut!r}), not imported")
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    _bpe(facts, tokens, cut).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": facts.get("tokenizer.chat_template"),
        "bos_token": _token(facts, tokens, "bos"),
        "eos_token": _token(facts, tokens, "eos"),
        "unk_token": _token(facts, tokens, "unknown"),
        "pad_token": _token(facts, tokens, "padding"),
    }
    stated = {key: value for key, value in config.items() if value is not None}
    text = json.dumps(stated, indent=1, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _bpe(facts: Facts, tokens: list[str], cut: str) -> Tokenizer:
    left_and_right = [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]]
    merges = [(left, right) for left, right in left_and_right]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_CUTS[cut])
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = facts.get("tokenizer.ggml.token_type", [])
    for token, type_ in zip(tokens, types, strict=False):
        if type_ in (_CONTROL, _USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, special=type_ == _CONTROL, normalized=False)])
    bos = _token(facts, tokens, "bos")
    if facts.get("tokenizer.ggml.add_bos_token") and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])]
        )
    return tokenizer


def _token(facts: Facts, tokens: list[str], role: str) -> str | None:
    number: int | None = facts.get(f"tokenizer.ggml.{role}_token_id")
    return None if number is None else tokens[number]
