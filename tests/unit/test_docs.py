"""The generated pages are those that the code would write now."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_generated_pages_are_current() -> None:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    stale = [name for name, page in generate.PAGES.items() if (DOCS / name).read_text() != page()]
    assert not stale, f"run `make docs` for {stale}"
