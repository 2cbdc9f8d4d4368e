"""Texts to compare models on: one JSON object a line, ``{"id", "kind", "text"}``."""

from pathlib import Path

import msgspec

from bramley.bench.eval.lines import read_lines

SHIPPED = Path(__file__).with_name("data") / "prompts.jsonl"


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """One text; figures are also told by ``kind``."""

    id: str
    text: str
    kind: str = "text"


def read_texts(file: Path | None, limit: int | None = None) -> list[Text]:
    """Read texts; those that ship with this program unless a file is given.

    With a ``limit`` below their number they are taken at even distances, so that all kinds that
    follow each other are among them.

    Returns:
        The texts, in order.

    Raises:
        InvalidRequest: the file is no such file.
    """
    texts = read_lines(file or SHIPPED, Text)
    if limit is None or limit >= len(texts):
        return texts
    return [texts[place * len(texts) // limit] for place in range(limit)]
