"""The wire stays as released: standard lint, and no breaking change since the golden image."""

import subprocess
import sys
from pathlib import Path

from support.protos import GOLDEN, write_image

BUF = str(Path(sys.executable).with_name("buf"))
CONFIG = (
    '{"version": "v1", "lint": {"use": ["STANDARD"], "ignore": ["google"]},'
    ' "breaking": {"use": ["FILE"]}}'
)


def buf(*arguments: str) -> str:
    done = subprocess.run(
        [BUF, *arguments, "--config", CONFIG], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_protos_pass_the_standard_lint(tmp_path: Path) -> None:
    image = write_image(tmp_path / "now.binpb", source=True)
    assert buf("lint", str(image)) == ""


def test_protos_break_nothing_that_was_released(tmp_path: Path) -> None:
    image = write_image(tmp_path / "now.binpb")
    assert buf("breaking", str(image), "--against", str(GOLDEN)) == ""


def test_a_renumbered_field_would_be_noticed(tmp_path: Path) -> None:
    image = write_image(tmp_path / "now.binpb").read_bytes()
    broken = image.replace(b"prompt_tokens_done\x18\x01", b"prompt_tokens_done\x18\x07")
    assert broken != image
    changed = tmp_path / "broken.binpb"
    changed.write_bytes(broken)
    assert "prompt_tokens_done" in buf("breaking", str(changed), "--against", str(GOLDEN))
