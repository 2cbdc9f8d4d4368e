"""The formats by name."""

import pkgutil

import mlx_lm.tool_parsers
import pytest

from bramley.worker.reading.tools.contract import ToolFormat
from bramley.worker.reading.tools.formats import FORMATS


def test_there_is_a_format_of_every_name_that_mlx_lm_has() -> None:
    theirs = {module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)}
    assert set(FORMATS) == theirs
    assert len(FORMATS) == 14


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_is_known_by_its_own_name(name: str) -> None:
    form: ToolFormat = FORMATS[name]
    assert form.name == name
    assert form.opens
    assert form.markers
    assert all(form.markers)
