"""Grammars that never end, or end their process, are refused: another process tries them."""

import contextlib
import json
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from bramley.common.errors import EngineFault, InvalidRequest, Overloaded
from bramley.protos.v1 import types_pb2
from bramley.worker.grammar.constraint import to_lark
from bramley.worker.grammar.trial import Trial, Trials

LIMIT_S = 0.3


@pytest.fixture(scope="module")
def others() -> list[psutil.Process]:
    """Processes of other tests, which may still be ending."""
    return children()


@pytest.fixture(scope="module")
def trials(others: list[psutil.Process]) -> Iterator[Trials]:
    one = Trials(LIMIT_S)
    one.ready()
    yield one
    one.close()
    assert not children(others)


def children(but: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if one not in but and is_trier(one)]


def is_trier(child: psutil.Process) -> bool:
    try:
        return "bramley.worker.grammar.trier" in child.cmdline()
    except psutil.NoSuchProcess:  # it has ended, or is about to
        return False


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


def verdict(trials: Trials, lark: str) -> None:
    """Try a grammar until there has been time for it."""
    while True:
        with contextlib.suppress(Overloaded):
            return trials.check(lark, "constraint.grammar", Trial())


LONG = HOSTILE["expressions that all hold"]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_never_ends_or_ends_its_process_is_refused_in_time(
    trials: Trials, others: list[psutil.Process], name: str
) -> None:
    began_s = time.process_time()
    with pytest.raises(InvalidRequest, match="to compile, or is nested") as refused:
        verdict(trials, HOSTILE[name])
    assert refused.value.field == "constraint.grammar"
    assert time.process_time() - began_s < 5.0
    trials.check('start: "a"', "constraint.grammar", Trial())  # and the next one is tried
    assert len(children(others)) == 1


@pytest.mark.parametrize("lark", ['start: "a"', "start: (", "\n", chain(500), 'start: "\\u0000é"'])
def test_what_comes_to_an_end_passes_be_it_good_or_bad(
    trials: Trials, others: list[psutil.Process], lark: str
) -> None:
    (before,) = children(others)
    trials.check(lark, "constraint", Trial())
    assert children(others) == [before]


def until_at_it(child: psutil.Process) -> None:
    start_s = child.cpu_times().user
    while child.cpu_times().user < start_s + 0.1:
        time.sleep(0.01)


def test_one_that_is_given_up_ends_at_once_and_the_next_is_tried() -> None:
    before = children()
    trials, trial = Trials(60.0), Trial()
    trials.ready()
    (child,) = children(before)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(trials.check, LONG, "constraint", trial)
        until_at_it(child)
        assert trial.give_up()
        with pytest.raises(EngineFault):
            waiting.result(10)
    assert child.pid not in [one.pid for one in children()]
    trials.check('start: "a"', "constraint", Trial())
    trials.close()


def test_one_that_was_given_up_before_it_began_is_not_tried(trials: Trials) -> None:
    trial = Trial()
    assert trial.give_up()
    with pytest.raises(EngineFault):
        trials.check(LONG, "constraint", trial)


def test_one_that_is_over_is_not_given_up(trials: Trials) -> None:
    trial = Trial()
    trials.check('start: "a"', "constraint", trial)
    assert not trial.give_up()


def test_who_closes_them_does_not_wait_for_what_is_tried() -> None:
    before = children()
    trials = Trials(60.0)
    trials.ready()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(trials.check, LONG, "constraint", Trial())
        (child,) = children(before)
        until_at_it(child)
        began_s = time.monotonic()
        trials.close()
        with pytest.raises(EngineFault):
            waiting.result()
    assert time.monotonic() - began_s < 5.0
    assert not [one for one in children() if one.pid == child.pid]
    with pytest.raises(EngineFault):
        trials.check('start: "a"', "constraint", Trial())
