"""The stream of one request: what the engine said of its answers in, messages out.

Messages are as few as possible: what gathered while the last one was sent goes together, and
longer than that where the request lets its tokens wait.
"""

import asyncio
from collections.abc import Callable, Sequence

from bramley.common.wire import to_seconds
from bramley.protos.v1 import generation_pb2, types_pb2, worker_pb2
from bramley.worker.answer import Answer
from bramley.worker.engine.outputs import Failed, Output, Prefilled, PromptLogprobs, Seated, Token
from bramley.worker.request import Request
from bramley.worker.text.detokenizer import Detokenizer

Response = worker_pb2.WorkerServiceGenerateResponse


class Inbox:
    """What the engine said of one request, until its stream takes it.

    Attributes:
        root: the namespace that its state is saved in.
        session_key: of its conversation.
    """

    def __init__(self, root: bytes, session_key: str) -> None:
        self.root = root
        self.session_key = session_key
        self._outputs: list[Output] = []
        self._filled = asyncio.Event()

    def put(self, output: Output) -> None:
        """Add an output."""
        self._outputs.append(output)
        self._filled.set()

    def wake(self) -> None:
        """End the wait of ``take``, with nothing if there is nothing."""
        self._filled.set()

    async def take(self) -> Sequence[Output]:
        """Wait until there is something, and take all of it."""
        await self._filled.wait()
        self._filled.clear()
        outputs, self._outputs = self._outputs, []
        return outputs


class Stream:
    """One request's way out.

    Args:
        request: as it was asked for.
        works: its sequences in the engine, by index; all have the same prompt.
        detokenizer: starts the text of an answer.
        inbox: where the engine's outputs arrive.
        cancel: ends a sequence whose answer is complete.

    Attributes:
        cached: prompt tokens that need no computing, by tier.
    """

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        works: Sequence[Request],
        detokenizer: Callable[[], Detokenizer],
        inbox: Inbox,
        cancel: Callable[[str], None],
    ) -> None:
        self.cached = types_pb2.CachedTokens()
        self._prompt_tokens = len(works[0].prompt)
        self._answers = {
            work.id: Answer(request, index, detokenizer(), work.prompt, self.cached)
            for index, work in enumerate(works)
        }
        self._inbox = inbox
        self._cancel = cancel
        self._untold: list[Response] = []
        self._unfinished = list(self._answers.values())
        self._is_started = False
        self._delay_s = to_seconds(request.stream.max_delay)
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Whether every answer's end was told."""
        return not self._unfinished

    async def take(self) -> Sequence[Response]:
        """Wait for news.

        Returns:
            The messages that are due, perhaps none.

        Raises:
            BramleyError: a sequence failed before its answer was complete.
        """
        for output in await self._inbox.take():
            self._note(output)
        if self._delay_s and not self._is_due:
            self._hold()
            return ()
        return self._tell()

    def close(self) -> None:
        """Hold nothing back any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hold(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._delay_s, self._fall_due)

    def _fall_due(self) -> None:
        self._is_due = True
        self._inbox.wake()

    def _note(self, output: Output) -> None:
        answer = self._answers[output.request_id]
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
            case Token() if answer.finished is None:
                self._is_due |= not answer.is_begun
                answer.take(output)
                if answer.finished is not None:
                    self._is_due = True
                    if output.finish is None:
                        self._cancel(output.request_id)
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

    def _tell(self) -> Sequence[Response]:
        self.close()
        self._is_due = False
        told, self._untold = self._untold, []
        for answer in self._unfinished:
            told.extend([Response(delta=delta) for delta in answer.deltas()])
            if answer.finished is not None:
                told.append(Response(finished=answer.finished))
        self._unfinished = [one for one in self._unfinished if one.finished is None]
        return told
