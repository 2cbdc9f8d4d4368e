"""What a model's weights will take in memory, by the headers of its files."""

import sys
from pathlib import Path

import msgspec

from bramley.worker.models.errors import ModelError
from bramley.worker.models.gguf_header import made_of, read_gguf_header
from bramley.worker.models.headers import Tensor, read_folder
from bramley.worker.models.weights import Config, loaded_bytes, matrices

# MLX keeps the groups of a GGUF as they are.
_OF_GGUF: Config = {"quantization": {"group_size": 32}}


def weights_bytes(path: Path, *, on_cpu: bool | None = None) -> int:
    """Tell what the weights of a model folder, or of a GGUF file, take once loaded.

    Args:
        path: of the folder or the file.
        on_cpu: whether MLX will compute on the CPU, where all weights become float32; on
            anything but macOS, if not given.

    Returns:
        The bytes; 0 where the files are not there or cannot be read.
    """
    on_cpu = sys.platform != "darwin" if on_cpu is None else on_cpu
    try:
        tensors, config = _of_gguf(path) if path.suffix == ".gguf" else _of_folder(path)
    except (ModelError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return loaded_bytes(matrices(tensors, config), on_cpu=on_cpu)


def _of_folder(path: Path) -> tuple[dict[str, Tensor], Config]:
    config = msgspec.json.decode((path / "config.json").read_bytes(), type=dict[str, object])
    return dict(read_folder(path).tensors), config


def _of_gguf(path: Path) -> tuple[dict[str, Tensor], Config]:
    made = (each for one in read_gguf_header(path).tensors.values() for each in made_of(one))
    return {each.name: each for each in made}, _OF_GGUF
