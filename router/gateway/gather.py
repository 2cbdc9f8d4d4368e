"""What every dialect needs of a request's responses: its counts, its ends, its whole texts (pure).

Both modes count here, streamed or not, so that they cannot differ. Answers of several prompts are
numbered prompt by prompt.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from bramley.common.errors import Aborted, EngineFault
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2


@dataclass(slots=True)
class Totals:
    """Tokens of a request: each prompt counts once, all answers together."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


class Tally:
    """Follows one request.

    Args:
        answers: that were asked for, of each prompt.
        prompts: that were given.

    Attributes:
        request_id: ours, once it was accepted; of several prompts, of the first that was.
        totals: of the answers that have ended.
    """

    def __init__(self, answers: int, prompts: int = 1) -> None:
        self._answers = answers
        self._prompts = prompts
        self._ended = set[int]()
        self.request_id = ""
        self.totals = Totals()

    def add(self, response: router_pb2.GenerateResponse) -> None:
        """Take the next response.

        Raises:
            Aborted: somebody ended the request.
        """
        match response.WhichOneof("event"):
            case "accepted":
                self.request_id = self.request_id or response.accepted.request_id
            case "finished":
                self._end(response.finished)
            case _:
                pass

    def _end(self, finished: generation_pb2.Finished) -> None:
        if finished.reason == types_pb2.FINISH_REASON_ABORTED:
            raise Aborted("the request was ended by an Abort")
        usage = finished.usage
        self._ended.add(finished.index)
        if finished.index % self._answers == 0:
            self.totals.prompt += usage.prompt_tokens
            self.totals.cached += usage.cached.parked + usage.cached.ram + usage.cached.ssd
        self.totals.completion += usage.completion_tokens
        self.totals.reasoning += usage.reasoning_tokens

    def check_ended(self) -> None:
        """Look whether every answer has ended.

        Raises:
            EngineFault: one has not.
        """
        if len(self._ended) != self._answers * self._prompts:
            raise EngineFault("the answer broke off without an end")


@dataclass(slots=True)
class Call:
    """A call of a tool; its arguments are as the model wrote them."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Text:
    """One whole answer.

    Attributes:
        logprobs: of each Delta that had them.
        finished: None until it has ended.
    """

    content: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: defaultdict[int, Call] = field(default_factory=lambda: defaultdict(Call))
    logprobs: list[types_pb2.Logprobs] = field(default_factory=list[types_pb2.Logprobs])
    finished: generation_pb2.Finished | None = None


class Whole:
    """Gathers a request's answers.

    Args:
        answers: that were asked for, of each prompt.
        prompts: that were given.

    Attributes:
        tally: of them.
    """

    def __init__(self, answers: int, prompts: int = 1) -> None:
        self.tally = Tally(answers, prompts)
        self._texts: defaultdict[int, Text] = defaultdict(Text)

    def add(self, response: router_pb2.GenerateResponse) -> None:
        """Take the next response.

        Raises:
            Aborted: somebody ended the request.
        """
        self.tally.add(response)
        match response.WhichOneof("event"):
            case "delta":
                _append(self._texts[response.delta.index], response.delta)
            case "finished":
                self._texts[response.finished.index].finished = response.finished
            case _:
                pass

    def texts(self) -> list[tuple[int, Text]]:
        """Tell every answer by its index.

        Returns:
            Them, in order.

        Raises:
            EngineFault: one has not ended.
        """
        self.tally.check_ended()
        return sorted(self._texts.items())


def _append(text: Text, delta: generation_pb2.Delta) -> None:
    text.content.append(delta.text)
    text.reasoning.append(delta.reasoning_text)
    if delta.HasField("logprobs"):
        text.logprobs.append(delta.logprobs)
    for part in delta.tool_calls:
        call = text.calls[part.index]
        call.id = call.id or part.id
        call.name = call.name or part.name
        call.arguments.append(part.arguments_json)
