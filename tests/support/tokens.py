"""A tokens file for tests."""

import os
from pathlib import Path

from bramley.common.auth import digest_of, metadata_of, new_token
from bramley.router.access import AuthSettings

Metadata = tuple[tuple[str, str], ...]


class Tokens:
    """A tokens file and the tokens of its names."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokens.toml"
        self.settings = AuthSettings(tokens_file=str(self.file))
        self.of: dict[str, str] = {}
        self._tables: dict[str, str] = {}
        self._write()

    def add(self, name: str, *lines: str) -> Metadata:
        """Make a token whose table has these lines, and answer with what its calls carry."""
        token = self.of.setdefault(name, new_token())
        self._tables[name] = "\n".join([f'sha256 = "{digest_of(token)}"', *lines])
        self._write()
        return metadata_of(token)

    def remove(self, name: str) -> None:
        """Take a token back."""
        del self._tables[name]
        self._write()

    def write(self, text: str) -> None:
        """Replace the file."""
        new = self.file.with_suffix(".new")
        new.touch(0o600)
        new.write_text(text)
        os.replace(new, self.file)

    def _write(self) -> None:
        self.write("\n".join(f"[tokens.{name}]\n{table}" for name, table in self._tables.items()))
