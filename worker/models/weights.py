"""Makes sense of tensors: what belongs together, what part of a model it is, what it takes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from bramley.worker.models.headers import BITS, Tensor

_WORD: Final = 32  # bits of a word of packed values
_FLOAT32_BITS: Final = 32
_USUAL_GROUP: Final = 64
_NIBBLES: Final = 2  # in a byte
# Of a quantized matrix: what holds the values, and what else belongs to them.
_BESIDE: Final = {
    "weight": ("scales", "biases", "global_scale"),  # MLX
    "qweight": ("scales", "qzeros", "g_idx"),  # AWQ and GPTQ
}
_INTEGERS: Final = frozenset(
    name for name in BITS if name == "BOOL" or (name[0] in "IU" and name[1:].isdecimal())
)

# The first that a name has decides. Names are those of Hugging Face's files and of GGUF.
_KINDS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("vision and audio", r"vision|visual|audio|multi_modal|mm_projector|image"),
        ("norms", r"norm|(^|\.)ln_"),
        ("embedding", r"embed|(^|\.)wte\b|(^|\.)wpe\b|token_embd"),
        ("head", r"(^|\.)lm_head\b|^output\.|(^|\.)embed_out\b"),
        ("experts", r"expert|switch_mlp|moe|_exps\b|(^|\.)(router|gate)\."),
        ("recurrent", r"linear_attn|mixer|mamba|ssm|conv|temporal_block|rwkv|delta|A_log|dt_bias"),
        ("attention", r"attn|attention|[qkv]_proj|qkv"),
        ("MLP", r"mlp|ffn|feed_forward|(^|\.)fc|gate_proj|up_proj|down_proj|dense"),
    )
)
OTHER: Final = "other"
KINDS: Final = (
    *("embedding", "attention", "recurrent", "MLP", "experts", "norms", "head"),
    *("vision and audio", OTHER),
)

Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Values as a model has them: a tensor, or a quantized one with its scales and biases.

    Attributes:
        parameters: values that it stands for, not how they are packed.
        nbytes: in the files, scales and biases included.
        dtype: of what holds the values.
        bits: of a packed value, without its share of a scale; None where none is packed.
        group: values that share a scale; None where none is packed, or it is not told.
    """

    name: str
    parameters: int
    nbytes: int
    dtype: str
    bits: int | None = None
    group: int | None = None

    @property
    def scheme(self) -> str:
        """How the values are stored, in a word."""
        if self.bits is None:
            return self.dtype
        return f"{self.bits}-bit" + (f", groups of {self.group}" if self.group else "")

    @property
    def float32_bytes(self) -> int:
        """What it takes where all that is not an integer becomes float32."""
        is_integer = self.bits is None and self.dtype in _INTEGERS
        return self.nbytes if is_integer else self.parameters * _FLOAT32_BITS // 8


def kind_of(name: str) -> str:
    """Tell by its name which of KINDS a tensor is of."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), OTHER)


def matrices(tensors: Mapping[str, Tensor], config: Config) -> Iterator[Matrix]:
    """Put scales and biases to the values that they belong to.

    Args:
        tensors: of all files.
        config: config.json, which tells how many values share a scale.

    Yields:
        A matrix for each, in the order of the tensors.
    """
    taken = set[str]()
    packed = dict[str, Matrix]()
    for name, tensor in tensors.items():
        if (found := _packed(tensor, tensors, config)) is not None:
            packed[name], beside = found
            taken.update(beside)
    for name, tensor in tensors.items():
        if name in packed:
            yield packed[name]
        elif name not in taken:
            yield Matrix(name, tensor.size, tensor.nbytes, tensor.dtype)


def loaded_bytes(parts: Iterable[Matrix], *, on_cpu: bool) -> int:
    """Add up what weights take in memory, where a model leaves none out and ties none.

    Args:
        parts: of the model.
        on_cpu: whether MLX computes on the CPU, where all weights become float32.

    Returns:
        Bytes.
    """
    return sum(part.float32_bytes if on_cpu else part.nbytes for part in parts)


def _packed(
    tensor: Tensor, tensors: Mapping[str, Tensor], config: Config
) -> tuple[Matrix, list[str]] | None:
    """Tell a quantized matrix by its main tensor, and name the tensors that belong to it."""
    path, _, leaf = tensor.name.rpartition(".")
    told = _told(config, path)
    if tensor.name.endswith("_blocks") and tensor.dtype == "U8":  # MXFP4 as it is published
        owned = [f"{tensor.name.removesuffix('_blocks')}_scales"]
        parameters, bits, group = tensor.size * _NIBBLES, 4, 32
    else:
        owned = [f"{path}.{part}" for part in _BESIDE.get(leaf, ())]
        group = told.get("group_size", _USUAL_GROUP)
        if leaf == "weight":
            parameters = tensors[owned[0]].size * group if owned[0] in tensors else 0
            bits = tensor.size * _WORD // max(parameters, 1)
        else:
            bits = told.get("bits", 4)
            parameters = tensor.size * _WORD // bits
        if tensor.dtype not in {"U32", "I32"}:
            return None
    if not owned or owned[0] not in tensors:
        return None
    beside = [name for name in owned if name in tensors]
    nbytes = tensor.nbytes + sum(tensors[name].nbytes for name in beside)
    return Matrix(tensor.name, parameters, nbytes, tensor.dtype, bits, group), beside


def _told(config: Config, path: str) -> dict[str, int]:
    """What config.json says of a layer's quantization, as far as these are numbers."""
    table = config.get("quantization") or config.get("quantization_config")
    if not isinstance(table, dict):
        return {}
    usual = cast("dict[str, object]", table)
    own = usual.get(path)
    both = {**usual, **(cast("dict[str, object]", own) if isinstance(own, dict) else {})}
    return {
        key: value
        for key in ("bits", "group_size")
        if isinstance(value := both.get(key), int) and 0 < value <= 1 << 16
    }
