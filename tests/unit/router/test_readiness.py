"""Ready, draining, failed, loading and exhausted are told apart."""

import pytest

from bramley.common.ids import ModelName
from bramley.router.readiness import ModelReport, readiness

READY = ModelReport(state="READY")
FULL = ModelReport(state="READY", full=True)
LOADING = ModelReport(state="LOADING", progress=0.5)
FAILED = ModelReport(state="FAILED", reason="no such file")
ASLEEP = ModelReport(state="UNLOADED", load="demand")
BROKEN = ModelReport(state="FAILED", load="manual")


@pytest.mark.parametrize(
    ("models", "status"),
    [
        ([], "ready"),
        ([READY], "ready"),
        ([ModelReport(state="DEGRADED")], "ready"),
        ([READY, LOADING], "loading"),
        ([LOADING, FAILED], "failed"),
        ([READY, ModelReport(state="STARTING")], "loading"),
        ([READY, ModelReport(state="UNLOADED")], "ready"),  # its next request loads it
        ([ModelReport(state="DRAINING")], "ready"),
        ([ASLEEP], "ready"),
        ([READY, BROKEN], "ready"),
        ([FULL, READY], "ready"),
        ([FULL, FULL], "exhausted"),
        ([FULL, ASLEEP], "exhausted"),
        ([FULL, LOADING], "loading"),
    ],
)
def test_each_state_has_its_word(models: list[ModelReport], status: str) -> None:
    named = {ModelName(f"m{number}"): model for number, model in enumerate(models)}
    told = readiness(named, is_draining=False)
    assert (told.status, told.ready) == (status, status == "ready")
    assert told.models == named


@pytest.mark.parametrize("model", [READY, FULL, LOADING, FAILED])
def test_a_draining_router_is_nothing_else(model: ModelReport) -> None:
    told = readiness({ModelName("m"): model}, is_draining=True)
    assert (told.status, told.ready) == ("draining", False)
