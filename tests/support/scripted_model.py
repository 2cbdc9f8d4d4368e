"""A model that says what a test wants, byte by byte, and then ends.

An ordinary llama folder: its attention and MLP add nothing, so the next token follows from the
current one alone. Each byte of a script has an id of its own (several ids read as one byte),
and the last byte of the prompt chooses the script.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx_lm.models import llama

from support import byte_tokenizer
from support.byte_tokenizer import EOS
from support.tiny_models import parameters

_WIDTH = 128


@dataclass(frozen=True)
class Script:
    """What is said, and the end token after it; None starts over for ever."""

    text: bytes
    end: int | None = EOS


def write_script(
    folder: Path,
    text: bytes,
    *,
    end: int | None = EOS,
    config_eos: Sequence[int] = (EOS,),
    tokenizer_eos: int = EOS,
) -> None:
    """Write a model that says ``text`` after any prompt."""
    everywhere = {bytes([value]): Script(text, end) for value in range(256)}
    write_scripts(folder, everywhere, config_eos=config_eos, tokenizer_eos=tokenizer_eos)


def write_scripts(
    folder: Path,
    scripts: Mapping[bytes, Script],
    *,
    config_eos: Sequence[int] = (EOS,),
    tokenizer_eos: int = EOS,
) -> None:
    """Write a model of several scripts; equal ones share their ids.

    Args:
        folder: is made.
        scripts: by the last byte of the prompt. A conversation is its messages' contents, one
            after the other, so one byte can be asked for by text and by chat alike. A prompt
            that ends on another byte is answered with the tokenizer's end token.
        config_eos: end tokens by config.json.
        tokenizer_eos: the end token by the tokenizer's files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    distinct = list(dict.fromkeys(scripts.values()))
    aliases = b"".join(script.text for script in distinct)
    vocabulary = byte_tokenizer.write_byte_tokenizer(
        folder,
        eos=tokenizer_eos,
        chat_template=byte_tokenizer.SCRIPTED,
        aliases=aliases or b"\0",
    )
    successors = _successors(distinct, scripts, vocabulary, tokenizer_eos)
    model_config = _config(vocabulary)
    weights = _weights(model_config, successors)
    config = {**model_config, "eos_token_id": list(config_eos)}
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def _successors(
    distinct: Sequence[Script], scripts: Mapping[bytes, Script], vocabulary: int, eos: int
) -> list[int]:
    follows = [eos] * vocabulary
    first: dict[Script, int] = {}
    place = byte_tokenizer.VOCABULARY
    for script in distinct:
        ids = range(place, place + len(script.text))
        place = ids.stop
        last = ids.start if script.end is None else script.end
        for number in ids:
            follows[number] = number + 1 if number + 1 < ids.stop else last
        first[script] = ids.start if script.text else last
    for last_byte, script in scripts.items():
        for number in (last_byte[0], vocabulary - 256 + last_byte[0]):
            follows[number] = first[script]
    for number in range(byte_tokenizer.END, byte_tokenizer.VOCABULARY):
        follows[number] = number
    return follows


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": _WIDTH,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }


def _weights(config: dict[str, object], successors: Sequence[int]) -> dict[str, mx.array]:
    # Ids with one successor share a direction; other directions are nearly orthogonal.
    targets = sorted(set(successors))
    directions = mx.random.normal((len(targets), _WIDTH), key=mx.random.key(7))
    directions /= mx.linalg.norm(directions, axis=1, keepdims=True)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = parameters(model)
    for name, array in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = mx.zeros_like(array)
    place = {target: number for number, target in enumerate(targets)}
    weights["model.embed_tokens.weight"] = directions[mx.array([place[t] for t in successors])]
    head = mx.zeros((len(successors), _WIDTH))
    head[mx.array(targets)] = directions * 6  # the right one leads by about 30
    weights["lm_head.weight"] = head
    return weights
