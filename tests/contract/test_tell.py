"""What a node in the foreground says of its models."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from bramley.deploy import tell
from bramley.deploy.changes import Changes
from bramley.protos.v1 import router_pb2, types_pb2
from support.fake_router import MODEL, serving

WAIT_S = 10.0


@dataclass
class Kept:
    """A keeper whose router runs."""

    router_addresses: dict[str, str]
    changes: Changes = field(default_factory=Changes)

    def is_running(self, _key: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (types_pb2.MODEL_STATE_READY, [f"bramley: model {MODEL} is ready"]),
        (types_pb2.MODEL_STATE_FAILED, [f"bramley: model {MODEL} has failed: worn out"]),
        (types_pb2.MODEL_STATE_UNLOADED, []),
    ],
)
async def test_it_says_what_became_of_a_load_and_asks_no_more(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    state: types_pb2.ModelState.ValueType,
    said: list[str],
) -> None:
    monkeypatch.setattr(tell, "_POLL_S", 0.01)
    with serving() as (router, target):
        router.model = router_pb2.Model(name=MODEL, state=types_pb2.MODEL_STATE_LOADING)
        keeper: Any = Kept({"grpc": target})
        telling = asyncio.create_task(tell.tell(keeper))
        done, _ = await asyncio.wait({telling}, timeout=0.1)
        assert not done  # there is something to come yet
        router.model = router_pb2.Model(name=MODEL, state=state, reason="worn out")
        await asyncio.wait_for(telling, WAIT_S)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"bramley: serving gRPC at {target}", *said]
