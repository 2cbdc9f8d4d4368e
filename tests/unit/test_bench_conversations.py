"""What the benchmarks of whole conversations make of what they saw; none of them is run."""

import json

import pytest

from bramley.bench import agent, trace
from bramley.bench.agent import Turn
from bramley.bench.asking import common
from bramley.bench.branching import faults
from bramley.bench.reference import Case, Checks, half, judge, whole
from bramley.client.events import Completion, Timings, Usage

CASE = Case(prompt=[1, 2, 3], greedy=[4, 5, 6, 7], min_margin=0.5)


def answer(token_ids: list[int], prompt: int, *, parked: int = 0, ram: int = 0) -> Completion:
    cached = {"parked": parked, "ram": ram, "ssd": 0}
    usage = Usage(prompt_tokens=prompt, completion_tokens=len(token_ids), cached_tokens=cached)
    timings = Timings(queue_s=0.0, ttft_s=0.0, total_s=0.0)
    return Completion(
        text="",
        token_ids=token_ids,
        finish_reason="length",
        usage=usage,
        timings=timings,
        choices=[],
    )


def test_an_answer_is_compared_from_the_cut_on() -> None:
    assert judge(CASE, whole, answer([4, 5, 6, 7], 3), 0) == []
    assert judge(CASE, half, answer([6, 7], 5, ram=4), 4) == []
    assert judge(CASE, half, answer([6, 8], 5), 0) == ["other tokens from 3 on (margin 0.5)"]
    assert judge(CASE, whole, answer([4, 5], 3), 0) == ["other tokens from 4 on (margin 0.5)"]


def test_what_is_stored_must_be_used_and_leaves_a_token_to_compute() -> None:
    assert len(judge(CASE, whole, answer([4, 5, 6, 7], 3), 2)) == 1
    assert len(judge(CASE, whole, answer([4, 5, 6, 7], 3, ram=3), 2)) == 1


def test_a_failed_check_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    checks = Checks()
    checks.add("good", [], "said")
    checks.add("bad", ["fault"], "said")
    assert checks.failed == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok      good: said",
        "FAILED  bad: fault; said",
    ]


def test_a_conversation_s_answer_is_that_of_a_run_without_a_cache() -> None:
    ids, anew = list(range(100)), answer([1, 2], 100)
    assert faults(answer([1, 2], 100, ram=90), anew, ids, 90) == []
    assert faults(answer([1, 2], 100, parked=95), anew, ids, 90) == []
    wrong = (
        (answer([1, 3], 100, ram=90), anew),
        (answer([1, 2], 99, ram=90), anew),
        (answer([1, 2], 100), anew),
        (answer([1, 2], 100, ram=91), anew),
        (answer([1, 2], 100, ram=90), answer([1, 2], 100, ram=1)),
    )
    assert [len(faults(one, other, ids, 90)) for one, other in wrong] == [1] * len(wrong)


def turn(
    seen: int, cached: int, *, new: int = 10, kept: int | None = None, is_stored: bool = True
) -> Turn:
    return Turn(
        role="tool",
        prompt=seen + new,
        answer=10,
        seen=seen,
        kept=seen if kept is None else kept,
        plain=0,
        cached={"parked": 0, "ram": cached, "ssd": 0},
        is_stored=is_stored,
        written_bytes=0,
        ttft_s=0.1,
    )


def missed(*turns: Turn) -> int:
    checks = agent.judge("store alone", [turn(0, 0), *turns])
    return [check.verdict for check in checks].count("MISSED")


def test_of_what_an_agent_has_seen_no_more_than_a_handful_is_computed_again() -> None:
    assert missed(turn(1000, 999), turn(2000, 1996)) == 0
    assert missed(turn(1000, 999), turn(2000, 1995)) == 1


def test_of_every_prompt_from_the_second_on_all_but_a_twentieth_is_cached() -> None:
    assert missed(turn(951, 950, new=49)) == 0
    assert missed(turn(950, 949, new=50)) == 2  # of this turn, and of all turns
    assert missed(turn(950, 949, new=50), turn(1000, 999)) == 1  # of this turn alone
    assert missed(turn(1000, 940, is_stored=False), turn(9000, 8999)) == 2  # seen tokens, too


def test_a_turn_too_short_to_be_stored_is_excused_but_not_its_share() -> None:
    assert missed(turn(1000, 970, is_stored=False)) == 0
    assert missed(turn(1000, 700, is_stored=False)) == 3


def test_answers_that_come_back_as_other_ids_are_missed() -> None:
    assert missed(turn(1000, 999, kept=500)) == 1


def test_ids_in_common_are_counted_from_the_start() -> None:
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2], [1, 2, 4]) == 2
    assert common([], [1]) == 0


def test_the_agent_s_command_line_takes_a_folder() -> None:
    arguments = agent.parse(["--model", "somewhere", "--turns", "3", "--json"])
    assert (str(arguments.model), arguments.turns, arguments.json) == ("somewhere", 3, True)


def words(text: str) -> int:
    return len(text.split())


def test_an_agent_has_as_many_tools_as_its_tokenizer_needs_and_no_two_of_a_name() -> None:
    content = trace.system(words)["content"]
    assert trace.SYSTEM_TOKENS <= words(content) < trace.SYSTEM_TOKENS + 100
    lines = content.removeprefix(trace.RULES).splitlines()
    names = [json.loads(line)["name"] for line in lines]
    assert len(set(names)) == len(names)
    few = trace.system(len)["content"]
    assert trace.SYSTEM_TOKENS <= len(few) < len(content)
    assert content.startswith(few)


def test_an_agent_is_told_the_same_each_time() -> None:
    told = [trace.message(number, words) for number in range(14)]
    assert told == [trace.message(number, words) for number in range(14)]
    assert [one["role"] for one in told[:6]] == ["user", "tool", "tool", "tool", "user", "tool"]
    results = [words(one["content"]) for one in told if one["role"] == "tool"]
    least, most = trace.RESULT_TOKENS
    assert least <= min(results) < max(results) <= most + 4  # words of a line
