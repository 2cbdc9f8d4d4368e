"""Asks a served model a task's items, several at a time, and judges what it says."""

import asyncio
from collections.abc import Callable, Sequence
from string import ascii_uppercase
from typing import Any, Protocol, Unpack

from bramley.bench.eval.record import Record, digest
from bramley.bench.eval.tasks import hashhop, mmlu
from bramley.bench.eval.tasks.contract import Answer, AnyTask, Asked, Item, Setting
from bramley.client.events import Completion
from bramley.client.requests import Message, Options
from bramley.common.errors import InvalidRequest
from bramley.common.status import RemoteError

CHOICES_MAX = 10
# After the prompt of mmlu, a letter with its space is one token as a rule; or else one without.
_GAPS = (("", " "), (" ", ""))
_SAMPLE_LINES = 64


class Client(Protocol):
    """What of an AsyncClient is used here."""

    async def complete(
        self,
        model: str,
        prompt: str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Wait for a whole answer."""
        ...

    async def tokenize(self, model: str, text: str | None = None) -> list[int]:
        """Tell a text's ids."""
        ...


class Runner:
    """Asks one model.

    Args:
        client: of its router.
        model: its name there.
        together: requests that are under way at a time; answers do not depend on it.
        options: of every request; greedy unless they say otherwise.
    """

    def __init__(
        self, client: Client, model: str, together: int, options: Options | None = None
    ) -> None:
        self._client = client
        self._model = model
        self._seats = asyncio.Semaphore(together)
        self._options: Options = {"temperature": 0.0, **(options or {})}

    async def letters(self) -> tuple[str, dict[str, int]]:
        """Find the token that each letter is after the prompt of mmlu.

        Returns:
            What the prompt ends on before it, and ids by letter.

        Raises:
            InvalidRequest: the tokenizer cuts a letter from what is before it in no such way.
        """
        for gap, space in _GAPS:
            before = await self._client.tokenize(self._model, mmlu.END + gap)
            found: dict[str, int] = {}
            for letter in ascii_uppercase[:CHOICES_MAX]:
                text = f"{mmlu.END}{gap}{space}{letter}"
                ids = await self._client.tokenize(self._model, text)
                if ids[:-1] == before:
                    found[letter] = ids[-1]
            if len(set(found.values())) == CHOICES_MAX:
                return gap, found
        problem = "no single token is a letter after the prompt: use --mmlu generated"
        raise InvalidRequest("--mmlu", problem)

    async def lines(self, context_tokens: int) -> int:
        """Tell how many lines of hashhop make a prompt of so many tokens, at most.

        Returns:
            The number.

        Raises:
            InvalidRequest: there is no room for the least of them.
        """

        async def count(lines: int) -> int:
            asked = hashhop.ask(hashhop.Hops(id="", seed=0), Setting(style="raw", lines=lines))
            return len(await self._client.tokenize(self._model, asked.text))

        few, more = await count(hashhop.LINES_MIN), await count(_SAMPLE_LINES)
        per_line = (more - few) / (_SAMPLE_LINES - hashhop.LINES_MIN)
        # A tenth aside: names differ in tokens, and a chat template adds some.
        lines = hashhop.LINES_MIN + int((0.9 * context_tokens - few) / per_line)
        if lines < hashhop.LINES_MIN:
            problem = f"{context_tokens} tokens have no room for {hashhop.LINES_MIN} lines"
            raise InvalidRequest("--context-tokens", problem)
        return lines

    async def run(
        self,
        task: AnyTask,
        items: Sequence[Item],
        setting: Setting,
        told: Callable[[int], object] = lambda _: None,
    ) -> list[Record]:
        """Ask all items, then judge one after the other.

        Args:
            task: theirs.
            items: to be asked.
            setting: of them all.
            told: is told how many answers have come.

        Returns:
            A record each, in their order.
        """
        asked: list[Asked] = [task.ask(item, setting) for item in items]
        done = 0

        async def answered(one: Asked) -> Completion | RemoteError:
            nonlocal done
            async with self._seats:
                answer = await self._answer(one)
            done += 1
            told(done)
            return answer

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(answered(one)) for one in asked]
        answers = [each.result() for each in asking]
        rows = zip(items, asked, answers, strict=True)
        # In a thread: programs that are run take seconds, and the connection wants its answers.
        return [
            await asyncio.to_thread(_record, task, setting, *row, self._options) for row in rows
        ]

    async def _answer(self, asked: Asked) -> Completion | RemoteError:
        options: Options = {**self._options, "max_tokens": asked.max_tokens, "stop": asked.stop}
        if asked.top is not None:
            # The first token's alternatives count, even where it would end the answer.
            options |= {"logprobs": asked.top, "ignore_eos": True}
        prompt = asked.text
        if asked.style == "chat":
            prompt, options["messages"] = None, [Message(role="user", content=asked.text)]
        try:
            return await self._client.complete(self._model, prompt, **options)
        except RemoteError as error:
            return error


def _record(
    task: AnyTask,
    setting: Setting,
    item: Item,
    asked: Asked,
    answer: Completion | RemoteError,
    options: Options,
) -> Record:
    facts: dict[str, Any] = {
        "task": task.name,
        "id": item.id,
        "prompt_sha256": digest([asked, options]),
        "item_sha256": digest(item),
    }
    if isinstance(answer, RemoteError):
        return Record(**facts, verdict="error", why=f"{answer.message} [{answer.reason}]")
    first = answer.logprobs[0].top if answer.logprobs else {}
    said = Answer(text=answer.text, finish=answer.finish_reason, first=first)
    verdict = task.judge(item, said, setting)
    return Record(
        **facts,
        verdict="right" if verdict.is_right else "wrong",
        why=verdict.why,
        answer=answer.text,
        found=verdict.found,
        finish=answer.finish_reason,
        prompt_tokens=answer.usage.prompt_tokens,
        completion_tokens=answer.usage.completion_tokens,
        share=verdict.share,
    )
