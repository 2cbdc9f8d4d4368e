"""`bramley inventory` and `bramley fit` as they are run: what they print, and how they end."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster, dummy_cluster
from support.weight_files import safetensors

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 260,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
COLUMNS = 80
Ended = tuple[int, str, str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of a model whose weights are a hole."""
    layer = {
        **{f"self_attn.{name}_proj": (64, 64) for name in "qo"},
        **{f"self_attn.{name}_proj": (32, 64) for name in "kv"},
        **{f"mlp.{name}_proj": (128, 64) for name in ("gate", "up")},
        "mlp.down_proj": (64, 128),
        **{f"{name}_layernorm": (64,) for name in ("input", "post_attention")},
    }
    shapes = {"embed_tokens": (260, 64), "norm": (64,)}
    for number in range(2):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    named = {f"model.{name}.weight": ("BF16", shape) for name, shape in shapes.items()}
    safetensors(folder / "model.safetensors", named)
    return folder


async def _run(state_dir: Path, *arguments: str) -> Ended:
    command = [sys.executable, "-P", "-m", "bramley.client", "--state-dir", str(state_dir)]
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def _json(state_dir: Path, *arguments: str) -> dict[str, Any]:
    code, out, err = await _run(state_dir, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


async def test_an_inventory_for_people_has_units_and_fits_a_terminal(
    tmp_path: Path, model: Path
) -> None:
    code, out, err = await _run(tmp_path / "state", "inventory", str(model))
    assert (code, err) == (0, "")
    narrow = [line for line in out.splitlines() if str(model) not in line]
    assert max(map(len, narrow)) <= COLUMNS
    assert "16.00 bits a parameter" in out
    assert "512 B" in out  # of a token
    assert not (tmp_path / "state").exists()


async def test_an_inventory_lists_tensors_only_when_asked(tmp_path: Path, model: Path) -> None:
    plain, listed = await asyncio.gather(
        _json(tmp_path, "inventory", str(model)),
        _json(tmp_path, "inventory", str(model), "--tensors"),
    )
    assert plain["tensors"] is None
    assert len(listed["tensors"]) == plain["tensor_count"] == 20
    assert plain["config"]["tied_embeddings"] is True


async def test_the_exit_code_tells_whether_it_fits(tmp_path: Path, model: Path) -> None:
    asked = ("fit", str(model), "--budget", "450MiB")  # enough for a row, and not for 64
    fits, not_fits = await asyncio.gather(
        _run(tmp_path, *asked, "--batch", "1", "--context", "100"),
        _run(tmp_path, *asked, "--batch", "64"),
    )
    assert (fits[0], not_fits[0]) == (0, 1)
    assert fits[1].splitlines()[-1].startswith("fits: ")
    assert not_fits[1].splitlines()[-1].startswith("does not fit: ")
    for _, out, err in (fits, not_fits):
        assert err == ""
        assert max(len(line) for line in out.splitlines() if str(model) not in line) <= COLUMNS


async def test_a_torn_file_and_a_wrong_argument_are_one_line(tmp_path: Path, model: Path) -> None:
    torn = model / "model.safetensors"
    asked = [
        ("fit", str(model), "--context", "4097"),
        ("fit", str(model), "--budget", "much"),
        ("inventory", str(tmp_path / "nobody")),
    ]
    ended = await asyncio.gather(*(_run(tmp_path, *each) for each in asked))
    torn.write_bytes(torn.read_bytes()[:1000])
    ended.append(await _run(tmp_path, "inventory", str(model)))
    for code, out, err in ended:
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("bramley: ")
    assert str(torn) in ended[-1][2]


async def test_a_model_of_a_running_cluster_is_known_by_its_name(
    tmp_path: Path, model: Path
) -> None:
    toml = dummy_cluster(tmp_path / "scripts")
    toml = toml.replace('path = "none"', f'path = "{model}"\nmax_rows = 3', 1)
    toml = f"[router]\nmemory_bytes = {5 << 30}\n{toml}"
    cluster = Cluster(tmp_path / "cluster", toml)
    await cluster.up()
    try:
        found = await _json(cluster.state_dir, "fit", "a")
        assert (found["path"], found["batch"]) == (str(model), 3)
        assert (found["budget_bytes"], found["store_bytes"]) == (5 << 30, 0)
        code, _, err = await _run(cluster.state_dir, "fit", "nobody")
        assert (code, "nor a model of the cluster" in err) == (2, True)
    finally:
        await cluster.close()
