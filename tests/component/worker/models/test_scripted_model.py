"""The scripted model that other tests rest on says exactly its script."""

from pathlib import Path

from bramley.worker.models import mlx_lm
from bramley.worker.text import chat
from bramley.worker.text.tokenizer import Tokenizer
from support.scripted_model import Script, write_script, write_scripts
from support.tiny_models import greedy

FAMILY = "a😀b👩\u200d👩\u200d👧é".encode()


def said(folder: Path, prompt: str, count: int) -> tuple[bytes, int]:
    """The bytes before the end token, and that token."""
    model = mlx_lm.load_model(folder, dequantize=True).model
    tokenizer = Tokenizer(mlx_lm.load_tokenizer(folder))
    ids = tokenizer.encode(prompt)
    conversation = chat.render(tokenizer, [{"role": "user", "content": prompt}])
    assert conversation[: len(ids)] == ids
    assert conversation[-1] == ids[-1]  # whatever the template adds for reasoning
    *text, last = greedy(model, ids, count + 1)
    assert all(len(tokenizer.token_bytes(number)) == 1 for number in text)
    assert not tokenizer.eos_token_ids.intersection(text)
    return b"".join(map(tokenizer.token_bytes, text)), last


def test_each_prompt_gets_its_script_one_byte_a_token(tmp_path: Path) -> None:
    scripts = {
        b"\x01": Script(FAMILY),
        b"\x02": Script(b"hi", end=256),
        b"\x03": Script(b"hi", end=259),
        b"\x04": Script(b"\0\0"),
        b"\x05": Script(b"\xff\xf0\x9f"),
        b"\x06": Script(b""),
    }
    write_scripts(tmp_path, scripts, config_eos=(256, 259))
    for prompt, script in scripts.items():
        heard = said(tmp_path, prompt.decode(), len(script.text))
        assert heard == (script.text, script.end)
    assert said(tmp_path, "before\x02", 2) == (b"hi", 256)
    assert said(tmp_path, "?", 0) == (b"", 257)


def test_an_endless_script_starts_over(tmp_path: Path) -> None:
    write_script(tmp_path, b"abc", end=None)
    assert said(tmp_path, "anything", 7)[0] == b"abcabca"
