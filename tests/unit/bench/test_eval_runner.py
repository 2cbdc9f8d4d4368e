"""Items are asked as they should be, and what comes of it does not depend on who answers first."""

import argparse
import asyncio
from typing import Unpack

import grpc
import pytest

from bramley.bench.eval.record import Record
from bramley.bench.eval.runner import Runner
from bramley.bench.eval.tasks import command, gsm8k, hashhop, mmlu
from bramley.bench.eval.tasks.contract import Setting
from bramley.client.events import Completion, Timings, TokenLogprob, Usage
from bramley.client.requests import Options
from bramley.common.errors import InvalidRequest
from bramley.common.status import RemoteError

ITEMS = [gsm8k.Problem(id=f"{n}", question=f"What is {n} + 0?", answer=f"{n}") for n in range(12)]


class Echo:
    """Says the question's number; the later ones at once, and the third one never."""

    def __init__(self, *, merges: str = "") -> None:
        self.asked: list[tuple[str | None, Options]] = []
        self.now = self.most = 0
        self._merges = merges

    async def complete(
        self,
        model: str,
        prompt: str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Answer."""
        assert model == "m"
        self.asked.append((prompt, options))
        self.now += 1
        self.most = max(self.most, self.now)
        text = prompt or "".join(str(turn.get("content")) for turn in options.get("messages", ()))
        number = int(text.split("What is ")[1].split()[0])
        for _ in range(len(ITEMS) - number):
            await asyncio.sleep(0)
        self.now -= 1
        if number == 3:
            raise RemoteError(grpc.RpcError("too long"))
        return completion(f"It is {number}." if number != 5 else "It is 7.")

    async def tokenize(self, model: str, text: str | None = None) -> list[int]:
        """Give one id a character; a letter after what merges is one with it."""
        assert model == "m"
        assert text is not None
        before = text[:-1]
        if self._merges and text[-1:].isupper() and before.endswith(self._merges):
            return [*map(ord, before.removesuffix(self._merges)), 500 + ord(text[-1])]
        return [*map(ord, text)]


def completion(text: str, *logprobs: TokenLogprob) -> Completion:
    return Completion(
        text=text,
        token_ids=[1],
        finish_reason="stop",
        usage=Usage(prompt_tokens=5, completion_tokens=3, cached_tokens={}),
        timings=Timings(queue_s=0, ttft_s=0, total_s=0),
        logprobs=list(logprobs),
        choices=[],
    )


async def records(together: int) -> tuple[Echo, list[Record]]:
    echo = Echo()
    return echo, await Runner(echo, "m", together).run(gsm8k.TASK, ITEMS, Setting(style="raw"))


async def test_the_records_are_the_same_whatever_runs_beside() -> None:
    one, alone = await records(1)
    many, beside = await records(5)
    assert (one.most, many.most) == (1, 5)
    assert alone == beside
    assert [record.id for record in alone] == [item.id for item in ITEMS]


async def test_right_wrong_and_unanswered_items_are_told_apart() -> None:
    _, found = await records(4)
    verdicts = {record.id: record.verdict for record in found}
    assert verdicts.pop("3") == "error"
    assert verdicts.pop("5") == "wrong"
    assert set(verdicts.values()) == {"right"}
    assert "too long" in found[3].why
    assert (found[5].answer, found[5].found) == ("It is 7.", "7")


async def test_everything_is_asked_greedily_and_plainly_in_style_raw() -> None:
    echo, found = await records(1)
    prompt, options = echo.asked[0]
    assert prompt == "Question: What is 0 + 0?\nAnswer:"
    assert options.get("temperature") == 0
    assert options.get("stop") == ("\nQuestion:",)
    assert "messages" not in options
    chats = Echo()
    other = await Runner(chats, "m", 1).run(gsm8k.TASK, ITEMS[:1], Setting(style="chat"))
    prompt, options = chats.asked[0]
    assert prompt is None
    assert [message["role"] for message in options.get("messages", ())] == ["user"]
    assert other[0].prompt_sha256 != found[0].prompt_sha256
    assert other[0].item_sha256 == found[0].item_sha256


async def test_the_prompt_s_hash_is_of_options_as_well() -> None:
    hot = Runner(Echo(), "m", 1, {"temperature": 1.0})
    (one,) = await hot.run(gsm8k.TASK, ITEMS[:1], Setting(style="raw"))
    assert one.prompt_sha256 != (await records(1))[1][0].prompt_sha256


async def test_progress_is_told_answer_by_answer() -> None:
    told: list[int] = []
    await Runner(Echo(), "m", 3).run(gsm8k.TASK, ITEMS, Setting(style="raw"), told.append)
    assert told == list(range(1, 13))


async def test_letters_are_found_with_the_space_before_them_or_behind_it() -> None:
    gap, letters = await Runner(Echo(merges=" "), "m", 1).letters()
    assert (gap, letters["C"], len(letters)) == ("", 500 + ord("C"), 10)
    gap, letters = await Runner(Echo(), "m", 1).letters()
    assert (gap, letters["C"]) == (" ", ord("C"))
    item = mmlu.Question(id="a", question="?", choices=["x", "y"], answer=1)
    assert mmlu.ask(item, Setting(letters=letters, gap=gap)).text.endswith("Answer: ")


async def test_letters_that_are_no_tokens_of_their_own_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="mmlu generated"):
        await Runner(Echo(merges=": "), "m", 1).letters()


async def test_the_first_token_s_alternatives_choose_the_letter() -> None:
    top = {ord("B"): -0.5, ord("A"): -2.0, ord("q"): -0.1}

    class Choosing(Echo):
        async def complete(
            self,
            model: str,
            prompt: str | None = None,
            *,
            timeout_s: float | None = None,
            **options: Unpack[Options],
        ) -> Completion:
            self.asked.append((prompt, options))
            return completion("q", TokenLogprob(token_id=ord("q"), logprob=-0.1, top=top))

    item = mmlu.Question(id="a", question="What is it?", choices=["x", "y"], answer=1)
    choosing = Choosing()
    runner = Runner(choosing, "m", 1)
    setting = Setting(style="chat", letters=(await runner.letters())[1])
    (found,) = await runner.run(mmlu.TASK, [item], setting)
    assert (found.verdict, found.found) == ("right", "B")
    options = choosing.asked[0][1]
    assert (options.get("logprobs"), options.get("max_tokens")) == (20, 1)
    assert options.get("ignore_eos")


async def test_hashhop_fills_the_context_that_is_wanted_and_no_more() -> None:
    lines = await Runner(Echo(), "m", 1).lines(2000)
    asked = hashhop.ask(hashhop.Hops(id="", seed=1), Setting(style="raw", lines=lines))
    assert 1700 < len(asked.text) < 2000
    with pytest.raises(InvalidRequest, match="no room"):
        await Runner(Echo(), "m", 1).lines(100)


def test_a_file_that_could_not_be_written_is_refused_before_anything_is_asked() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(InvalidRequest, match="--out: no/such is no folder"):
        command.run(parser.parse_args(["gsm8k", "--model", "any", "--out", "no/such/run.json"]))
