"""Every fault of a settings file comes with the path of its key."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from bramley.common.errors import SettingsError
from bramley.common.settings import load, parse


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table."""

    rows: Annotated[int, msgspec.Meta(ge=1)] = 8


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    name: str = "x"
    wait_s: float = 1.0
    bytes: int = 1
    free: dict[str, Any] = {}
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[inner]\nrows = 0", "inner.rows"),
        ("[inner]\nrows = 'many'", "inner.rows"),
        ("[inner]\nrow = 3", "inner.row"),
        ("[innr]\n", "innr"),
        ("name = 3", "name"),
        ("name =", "settings"),
        ("wait_s = inf", "wait_s"),
        ("wait_s = -inf", "wait_s"),
        ("wait_s = nan", "wait_s"),
        ("bytes = 0x1_0000_0000_0000_0000", "bytes"),
        ("[[free.a]]\nb = [1, inf]", "free.a[0].b[1]"),
        (f"bytes = {'9' * 5000}", "settings"),
        (f"free = {'[' * 5000}", "settings"),
    ],
)
def test_a_fault_names_its_key(text: str, key: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse(text, Outer)
    assert raised.value.key == key


def test_an_override_wins_and_a_bare_word_is_a_string() -> None:
    settings = parse("[inner]\nrows = 2", Outer, ["inner.rows=3", "name=llama"])
    assert (settings.inner.rows, settings.name) == (3, "llama")


@pytest.mark.parametrize("override", ["inner.rows", "inner=1", "name.x=2"])
def test_a_bad_override_is_a_settings_error(override: str) -> None:
    with pytest.raises(SettingsError):
        parse("name = 'x'", Outer, [override, "inner.rows=2"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no-such"):
        load(tmp_path / "no-such.toml", Outer)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF\xff\xfe\x80")
    with pytest.raises(SettingsError, match=r"model\.gguf: is not a text file"):
        load(tmp_path / "model.gguf", Outer)
