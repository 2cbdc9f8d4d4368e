"""Grammars that never end, or end their process, are refused: another process tries them."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from bramley.common.errors import EngineFault, InvalidRequest
from bramley.protos.v1 import types_pb2
from bramley.worker.grammar.constraint import to_lark
from bramley.worker.grammar.trial import Trials

LIMIT_S = 0.3


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    one = Trials(LIMIT_S)
    one.ready()
    yield one
    one.close()
    assert not children()


def children() -> list[psutil.Process]:
    own = psutil.Process().children()
    return [one for one in own if "bramley.worker.grammar.trier" in one.cmdline()]


def chain(rules: int) -> str:
    lines = [f'r{at}: "a" r{at + 1}' for at in range(rules)]
    return "\n".join(["start: r0", *lines, f'r{rules}: "z"'])


def schema(value: dict[str, Any]) -> str:
    return to_lark(types_pb2.Constraint(json_schema=json.dumps(value)))


def references(count: int) -> dict[str, Any]:
    definitions = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "null"}}}


HOSTILE = {
    "rules as deep as no stack": chain(30_000),
    "references as deep": schema(references(9_000)),
    "patterns that all hold": schema({"allOf": [{"pattern": f"a{at}"} for at in range(30)]}),
    "expressions that all hold": "start: T\nT: " + " & ".join(f"/.*a{at}.*/" for at in range(40)),
    "many properties": schema({"properties": {f"p{at}": {} for at in range(9_000)}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_never_ends_or_ends_its_process_is_refused_in_time(trials: Trials, name: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(InvalidRequest, match="to compile, or is nested") as refused:
        trials.check(HOSTILE[name], "constraint.grammar")
    assert refused.value.field == "constraint.grammar"
    assert time.monotonic() - began_s < 15.0
    trials.check('start: "a"', "constraint.grammar")  # and the next one is tried
    assert len(children()) == 1


@pytest.mark.parametrize("lark", ['start: "a"', "start: (", "\n", chain(500), 'start: "\\u0000é"'])
def test_what_comes_to_an_end_passes_be_it_good_or_bad(trials: Trials, lark: str) -> None:
    (before,) = children()
    trials.check(lark, "constraint")
    assert children() == [before]


def test_who_closes_them_does_not_wait_for_what_is_tried() -> None:
    before = children()
    trials = Trials(60.0)
    trials.ready()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(trials.check, HOSTILE["expressions that all hold"], "constraint")
        (child,) = (one for one in children() if one not in before)
        while child.cpu_times().user < 0.3:  # it is at it
            time.sleep(0.01)
        began_s = time.monotonic()
        trials.close()
        with pytest.raises(EngineFault):
            waiting.result()
    assert time.monotonic() - began_s < 5.0
    assert not [one for one in children() if one.pid == child.pid]
    with pytest.raises(EngineFault):
        trials.check('start: "a"', "constraint")
