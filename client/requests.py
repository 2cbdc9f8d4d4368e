"""Keywords to GenerateRequest: what cannot be said on the wire is refused by its field's name."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TypedDict

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


class Options(TypedDict, total=False):
    """What a generation may be asked for; an absent one is the model's own default.

    Attributes:
        messages: a conversation, rendered by the model's chat template, instead of a prompt.
        token_ids: exact ids instead of a prompt; nothing is added to them.
        max_tokens: longest answer; absent, as many as the context has room for.
        temperature: 0 is greedy.
        seed: same seed, prompt and parameters: same tokens.
        stop: string or strings that end the answer, themselves left out.
        ignore_eos: go on past the model's own end.
        request_id: the caller's name for it, unique among those in flight.
        progress: ask for Progress events during a long prefill.
    """

    messages: Sequence[Message]
    token_ids: Sequence[int]
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str]
    ignore_eos: bool
    request_id: str
    progress: bool


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")
_STOP = ("max_tokens", "ignore_eos")


def generate_request(
    model: str, prompt: str | None, options: Options
) -> generation_pb2.GenerateRequest:
    """Build the request; ``prompt`` is raw text, without a template.

    Returns:
        The message.

    Raises:
        InvalidRequest: not exactly one input, or a value that its field cannot hold.
    """
    request = generation_pb2.GenerateRequest()
    with _field("model"):
        request.model = model
    with _field("request_id"):
        request.request_id = options.get("request_id", "")
    _put_input(request, prompt, options)
    for name in _SAMPLING:
        if (value := options.get(name)) is not None:
            with _field(f"sampling.{name}"):
                setattr(request.sampling, name, value)
    for name in _STOP:
        if (value := options.get(name)) is not None:
            with _field(f"stop.{name}"):
                setattr(request.stop, name, value)
    with _field("stop.strings"):
        stop = options.get("stop", ())
        request.stop.strings.extend([stop] if isinstance(stop, str) else stop)
    request.stream.progress = options.get("progress", False)
    return request


def tokenize_request(
    model: str, text: str | None, messages: Sequence[Message] | None
) -> router_pb2.TokenizeRequest:
    """Build the request.

    Returns:
        The message.

    Raises:
        InvalidRequest: not exactly one input, or one that cannot be sent.
    """
    if (text is None) == (messages is None):
        raise InvalidRequest("input", "give either text or messages")
    request = router_pb2.TokenizeRequest(model=model)
    if text is not None:
        with _field("text"):
            request.text = text
    if messages is not None:
        request.chat.CopyFrom(_chat(messages))
    return request


class CacheOptions(TypedDict, total=False):
    """Which stored prefixes count, beside the prompt itself.

    Attributes:
        messages: a conversation instead of a prompt, as in ``Options``.
        token_ids: exact ids instead of a prompt.
        adapter: as a generation would name it.
        salt: the cache salt that a generation would have.
    """

    messages: Sequence[Message]
    token_ids: Sequence[int]
    adapter: str
    salt: str


def explain_request(
    model: str, prompt: str | None, options: CacheOptions
) -> router_pb2.ExplainCacheRequest:
    """Build the request; ``prompt`` is raw text, without a template.

    Returns:
        The message.

    Raises:
        InvalidRequest: not exactly one input, or a value that its field cannot hold.
    """
    request = router_pb2.ExplainCacheRequest()
    with _field("model"):
        request.model = model
    _put_input(request, prompt, options)
    for name in ("adapter", "salt"):
        with _field(name):
            setattr(request, name, options.get(name, ""))
    return request


def _put_input(
    request: generation_pb2.GenerateRequest | router_pb2.ExplainCacheRequest,
    prompt: str | None,
    options: Options | CacheOptions,
) -> None:
    messages, token_ids = options.get("messages"), options.get("token_ids")
    if sum(given is not None for given in (prompt, messages, token_ids)) != 1:
        raise InvalidRequest("input", "give one of prompt, messages and token_ids")
    if prompt is not None:
        with _field("text"):
            request.text = prompt
    elif messages is not None:
        request.chat.CopyFrom(_chat(messages))
    elif token_ids is not None:
        with _field("token_ids"):
            request.token_ids.CopyFrom(types_pb2.TokenIds(ids=token_ids))


def _chat(messages: Sequence[Message]) -> types_pb2.ChatInput:
    chat = types_pb2.ChatInput()
    for position, message in enumerate(messages):
        with _field(f"chat.messages[{position}]"):
            chat.messages.add(role=message["role"], content=message["content"])
    return chat


@contextmanager
def _field(path: str) -> Generator[None]:
    """Name the field that cannot hold what is assigned to it."""
    try:
        yield
    except KeyError as error:
        raise InvalidRequest(path, f"lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise InvalidRequest(path, str(error)) from error
