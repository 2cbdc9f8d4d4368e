"""The stream of one request: what the engine said of its answers in, messages out.

Messages are as few as possible: a token that can wait is sent with others once the stream is
told to (worker/telling.py), or when the time is over for which the request lets its tokens wait.
The first of an answer and its end cannot wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bramley.common.together import may_call_many
from bramley.common.wire import to_seconds
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2
from bramley.worker.answer import Answer, Reading
from bramley.worker.engine.outputs import (
    Failed,
    Output,
    Preempted,
    Prefilled,
    PromptLogprobs,
    Seated,
    Token,
)
from bramley.worker.request import Phase, Request

Response = worker_pb2.WorkerServiceGenerateResponse


class Stream:
    """One request's way out.

    Args:
        request: as it was asked for.
        works: its sequences in the engine, by index; all have the same prompt.
        read: starts the reading of an answer.
        cancel: ends a sequence whose answer is complete.
        resume: hands a sequence that lost its seat to the engine again.

    Attributes:
        request: as above.
        cached: prompt tokens that need no computing, by tier.
    """

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        works: Sequence[Request],
        read: Callable[[], Reading],
        cancel: Callable[[str], None],
        resume: Callable[[Request], Awaitable[None]],
    ) -> None:
        self.request = request
        self.cached = types_pb2.CachedTokens()
        self._prompt_tokens = len(works[0].prompt)
        self._answers = {
            work.id: Answer(request, index, read(), work.prompt, self.cached)
            for index, work in enumerate(works)
        }
        self._ids = [work.id for work in works]
        self._cancel = cancel
        self._resume = resume
        self._arrived: list[Output] = []
        self._news = asyncio.Event()
        self._preempted: list[Request] = []
        self._untold: list[Response] = []
        self._by_index = list(self._answers.values())
        self._unfinished = self._by_index
        self._is_started = False
        self._looks_for_ends = bool(request.stop.strings) or not may_call_many(request)
        self._delay_s = to_seconds(request.stream.max_delay)
        self._is_due = False
        self._has_gathered = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Whether every answer's end was told."""
        return not self._unfinished

    def put(self, output: Output) -> None:
        """Add what the engine said."""
        self._arrived.append(output)
        can_wait = self._can_wait(output)
        if can_wait:
            self._gather()
        if self._looks_for_ends or not can_wait:
            self._news.set()

    def tell(self) -> None:
        """Tell what gathered, unless the request lets it wait for longer."""
        if self._has_gathered and not self._delay_s:
            self._fall_due()

    async def take(self) -> Sequence[Response]:
        """Wait for news.

        Returns:
            The messages that are due, perhaps none.

        Raises:
            BramleyError: a sequence failed before its answer was complete.
        """
        await self._news.wait()
        self._news.clear()
        while self._arrived or self._preempted:  # more may come while one is resumed
            arrived, self._arrived = self._arrived, []
            for output in arrived:
                self._note(output)
            for answer in self._unfinished:
                self._read(answer)
            while self._preempted:
                await self._resume(self._preempted.pop())
        return self._tell() if self._is_due else ()

    def token_ids(self, index: int) -> Sequence[int]:
        """An answer so far."""
        return self._by_index[index].token_ids

    @property
    def unfinished(self) -> Sequence[int]:
        """Indexes of the answers whose end was not told."""
        return [answer.index for answer in self._unfinished]

    def close(self) -> None:
        """Hold nothing back any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _can_wait(self, output: Output) -> bool:
        if not isinstance(output, Token) or output.finish is not None:
            return False
        return self._answers[output.request_id].is_begun

    def _gather(self) -> None:
        self._has_gathered = True
        if self._delay_s and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._delay_s, self._fall_due)

    def _fall_due(self) -> None:
        self._is_due = True
        self._news.set()

    def _note(self, output: Output) -> None:
        answer = self._answers[output.request_id]
        if isinstance(output, Token):
            self._is_due |= not answer.is_begun
            answer.take(output)
            return
        self._read(answer)  # what comes now may depend on whether it is complete
        match output:
            case Seated():
                self._seated(answer, output)
            case Prefilled(tokens=done) if not answer.is_begun:
                progress = generation_pb2.Progress(
                    prompt_tokens_done=done, prompt_tokens=self._prompt_tokens
                )
                self._untold.append(Response(progress=progress))
                self._is_due = True
            case PromptLogprobs(logprobs=logprobs):
                answer.take_prompt(logprobs)
            case Preempted(request=work) if answer.finished is None:
                self._preempted.append(work)
            case Preempted(request=work):
                work.enter(Phase.ENDED)  # or those that follow it would wait for ever
            case Failed() if answer.finished is None:
                raise output.error
            case _:
                pass

    def _seated(self, answer: Answer, seated: Seated) -> None:
        answer.seated(seated)
        if self._is_started:  # others copy what the first one computes; a row may be seated again
            return
        self._is_started = self._is_due = True
        if not seated.restored:
            self.cached.Clear()
        self.cached.parked = seated.parked
        started = generation_pb2.Started(prompt_tokens=self._prompt_tokens, cached=self.cached)
        self._untold.append(Response(started=started))

    def _read(self, answer: Answer) -> None:
        if answer.read():
            self._is_due = True
            if answer.is_cut:
                self._cancel(self._ids[answer.index])

    def _tell(self) -> Sequence[Response]:
        self.close()
        self._is_due = self._has_gathered = False
        told, self._untold = self._untold, []
        for answer in self._unfinished:
            told.extend([Response(delta=delta) for delta in answer.deltas()])
            if answer.finished is not None:
                told.append(Response(finished=answer.finished))
        self._unfinished = [one for one in self._unfinished if one.finished is None]
        return told
