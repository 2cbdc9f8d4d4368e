"""A tokenizer for tests: one byte is one token.

Ids 0 to 255 are the bytes, then come four special tokens. Written as the files of an ordinary
model folder, with a byte-level decoder and a chat template.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import Unigram

SPECIALS = ("<|end|>", "<|eos|>", "<|start|>", "<|stop|>")
END, EOS, START, STOP = range(256, 260)
VOCABULARY = 260

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CONTENT_ONLY = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
# The same of a model that reasons and calls tools; it ends on its last byte whatever it opens.
SCRIPTED = CONTENT_ONLY + (
    "{# <tool_call> tool_call.name <think> </think> #}{% set last = messages[-1].content[-1:] %}"
    "{% if enable_thinking is true %}<think>{{ last }}"
    "{% elif enable_thinking is false %}<think></think>{{ last }}{% endif %}"
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ last }}"
    "{% endif %}"
)


def byte_characters() -> list[str]:
    """How byte-level vocabularies write the bytes 0 to 255."""
    shown = set("".join(map(chr, [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])))
    stand_ins = iter(range(0x100, 0x200))
    return [chr(v) if chr(v) in shown else chr(next(stand_ins)) for v in range(256)]


def write_byte_tokenizer(
    folder: Path,
    *,
    eos: int = EOS,
    chat_template: str | None = CHAT_TEMPLATE,
    aliases: bytes = b"",
    more: Sequence[str] = (),
) -> int:
    """Write tokenizer.json and tokenizer_config.json.

    Args:
        folder: an existing folder.
        eos: the tokenizer's own end token.
        chat_template: None for a model without.
        aliases: ids from 260 on decode to these bytes. Text is then tokenized into the 256 ids
            after them, which stand for the bytes 0 to 255 once more.
        more: special tokens beside the four, with the ids behind all others.

    Returns:
        How many ids there are.
    """
    bytes_ = byte_characters()
    pieces = [*bytes_, *SPECIALS]
    if aliases:
        pieces += [bytes_[value] for value in aliases] + bytes_
    pieces += more
    # Of pieces that read the same, this model encodes into the last one.
    tokenizer = Tokenizer(Unigram([(piece, -1.0) for piece in pieces]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token in (*SPECIALS, *more)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIALS[eos - END],
        **({"chat_template": chat_template} if chat_template else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(pieces)
