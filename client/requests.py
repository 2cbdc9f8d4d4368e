"""Keywords to GenerateRequest: what cannot be said on the wire is refused by its field's name."""

from collections.abc import Mapping, Sequence
from typing import Literal, cast, get_args, get_type_hints

from bramley.client.fields import field
from bramley.client.turns import (
    Message,
    PromptOptions,
    Tool,
    Turn,
    TurnOptions,
    chat_of,
    put_prompt_options,
    put_turn_options,
)
from bramley.common.choices import none_of
from bramley.common.errors import InvalidRequest
from bramley.common.wire import to_duration
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2

__all__ = [
    "CacheOptions",
    "Message",
    "Options",
    "Priority",
    "PromptOptions",
    "Tool",
    "Turn",
    "TurnOptions",
]

Priority = Literal["bulk", "default", "interactive", "system"]


class Options(TurnOptions, total=False):
    """What a generation may be asked for, beside what TurnOptions has.

    An absent one is the model's own default.

    Attributes:
        messages: a conversation, rendered by the model's chat template, instead of a prompt.
        token_ids: exact ids instead of a prompt; nothing is added to them.
        n: answers to the same prompt.
        max_tokens: longest answer; absent, as many as the context has room for.
        min_tokens: tokens before the first that may end it.
        temperature: 0 is greedy.
        seed: same seed, prompt and parameters: same tokens.
        penalty_window: tokens that the penalties look back on; 0 is all.
        logit_bias: added to the scores of these ids.
        stop: string or strings that end the answer.
        stop_token_ids: ids that do.
        include_stop: leave what ended it in the text.
        bad_words: texts that the answer may not contain.
        ignore_eos: go on past the model's own end.
        logprobs: ask for the log-probability of each token, and of so many alternatives.
        prompt_logprobs: and for those of the prompt.
        priority: "bulk", "default", "interactive" or "system".
        fairness_key: names the client: of one class, clients take turns, and each has its limits.
        max_queue_s: longest wait for a place on a worker.
        labels: for logs and tools; they change nothing.
        request_id: the caller's name for it, unique among those in flight.
        session_key: names the conversation; what is cached of it is kept longest.
        salt: requests with different ones share nothing that is cached.
        skip_lookup: compute the whole prompt, whatever is cached of it.
        skip_store: keep nothing of prompt and answer in the cache.
        progress: ask for Progress events during a long prefill.
        max_delay_s: how long tokens may be held back to share a Delta.
    """

    messages: Sequence[Message | Turn]
    token_ids: Sequence[int]
    n: int | None
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    xtc_probability: float | None
    xtc_threshold: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    penalty_window: int | None
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop: bool
    bad_words: Sequence[str]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: bool
    priority: Priority
    fairness_key: str
    max_queue_s: float | None
    labels: Mapping[str, str]
    request_id: str
    session_key: str
    salt: str
    skip_lookup: bool
    skip_store: bool
    progress: bool
    max_delay_s: float


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "penalty_window",
)
_NAMES = ("request_id", "session_key", "fairness_key")
_CACHE = ("salt", "skip_lookup", "skip_store")
_STOP = ("max_tokens", "min_tokens", "ignore_eos", "include_stop")


def generate_request(
    model: str, prompt: str | None, options: Options
) -> generation_pb2.GenerateRequest:
    """Build the request; ``prompt`` is raw text, without a template.

    Returns:
        The message.

    Raises:
        InvalidRequest: not exactly one input, or a value that its field cannot hold.
    """
    check_names(options, Options)
    request = generation_pb2.GenerateRequest()
    with field("model"):
        request.model = model
    for name in _NAMES:
        with field(name):
            setattr(request, name, options.get(name, ""))
    with field("labels"):
        request.labels.update(options.get("labels", {}))
    for name in _CACHE:
        if value := options.get(name):
            with field(f"cache.{name}"):
                setattr(request.cache, name, value)
    if (wait_s := options.get("max_queue_s")) is not None:
        with field("max_queue_time"):
            request.max_queue_time.CopyFrom(to_duration(wait_s))
    if (count := options.get("n")) is not None:
        with field("n"):
            request.n = count
    _put_input(request, prompt, options)
    _put_sampling(request.sampling, options)
    _put_stop(request.stop, options)
    _put_logprobs(request, options)
    put_turn_options(request, options)
    with field("priority"):
        request.priority = priority_of(options.get("priority"))
    _put_stream(request.stream, options)
    return request


def priority_of(name: Priority | None) -> types_pb2.PriorityClass.ValueType:
    """Say a class.

    Returns:
        It; UNSPECIFIED for none.

    Raises:
        InvalidRequest: there is no such class.
    """
    if not name:
        return types_pb2.PRIORITY_CLASS_UNSPECIFIED
    if name not in get_args(Priority):
        raise InvalidRequest("priority", none_of(name, get_args(Priority)))
    return types_pb2.PriorityClass.Value(f"PRIORITY_CLASS_{name}".upper())


def _put_sampling(sampling: types_pb2.SamplingParams, options: Options) -> None:
    for name in _SAMPLING:
        if (value := options.get(name)) is not None:
            with field(f"sampling.{name}"):
                setattr(sampling, name, value)
    if bias := options.get("logit_bias"):
        with field("sampling.logit_bias"):
            sampling.logit_bias.update(bias)


def _put_stop(stop: types_pb2.StopConditions, options: Options) -> None:
    for name in _STOP:
        if (value := options.get(name)) is not None:
            with field(f"stop.{name}"):
                setattr(stop, name, value)
    with field("stop.strings"):
        strings = options.get("stop", ())
        stop.strings.extend([strings] if isinstance(strings, str) else strings)
    with field("stop.token_ids"):
        stop.token_ids.extend(options.get("stop_token_ids", ()))
    with field("stop.bad_words"):
        stop.bad_words.extend(options.get("bad_words", ()))


def _put_logprobs(request: generation_pb2.GenerateRequest, options: Options) -> None:
    top, prompt = options.get("logprobs"), options.get("prompt_logprobs", False)
    if top is None and not prompt:
        return
    with field("logprobs.prompt"):
        request.logprobs.prompt = prompt
    if top is not None:
        with field("logprobs.top"):
            request.logprobs.top = top


def _put_stream(stream: types_pb2.StreamOptions, options: Options) -> None:
    stream.progress = options.get("progress", False)
    if delay_s := options.get("max_delay_s"):
        with field("stream.max_delay"):
            stream.max_delay.CopyFrom(to_duration(delay_s))


def tokenize_request(
    model: str, text: str | None, messages: Sequence[Message | Turn] | None, options: PromptOptions
) -> router_pb2.TokenizeRequest:
    """Build the request.

    Returns:
        The message.

    Raises:
        InvalidRequest: not exactly one input, or one that cannot be sent.
    """
    if (text is None) == (messages is None):
        raise InvalidRequest("input", "give either text or messages")
    check_names(options, PromptOptions)
    request = router_pb2.TokenizeRequest(model=model)
    if text is not None:
        with field("text"):
            request.text = text
    if messages is not None:
        request.chat.CopyFrom(chat_of(messages, options))
    put_prompt_options(request, options)
    return request


class CacheOptions(PromptOptions, total=False):
    """Which stored prefixes count, beside the prompt itself.

    Attributes:
        messages: a conversation instead of a prompt, as in ``Options``.
        token_ids: exact ids instead of a prompt.
        adapter: as a generation would name it.
        salt: the cache salt that a generation would have.
    """

    messages: Sequence[Message | Turn]
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
    check_names(options, CacheOptions)
    request = router_pb2.ExplainCacheRequest()
    with field("model"):
        request.model = model
    _put_input(request, prompt, options)
    put_prompt_options(request, options)
    for name in ("adapter", "salt"):
        with field(name):
            setattr(request, name, options.get(name, ""))
    return request


def close_session_request(
    model: str, session_key: str, salt: str
) -> router_pb2.CloseSessionRequest:
    """Build the request.

    Returns:
        The message.

    Raises:
        InvalidRequest: a value that its field cannot hold.
    """
    request = router_pb2.CloseSessionRequest()
    for name, value in (("model", model), ("session_key", session_key), ("salt", salt)):
        with field(name):
            setattr(request, name, value)
    return request


def unload_request(model: str, drain_timeout_s: float | None) -> router_pb2.UnloadModelRequest:
    """Build the request.

    Returns:
        The message.

    Raises:
        InvalidRequest: a value that its field cannot hold.
    """
    request = router_pb2.UnloadModelRequest()
    with field("model"):
        request.model = model
    if drain_timeout_s is not None:
        with field("drain_timeout"):
            request.drain_timeout.CopyFrom(to_duration(drain_timeout_s))
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
        with field("text"):
            request.text = prompt
    elif messages is not None:
        request.chat.CopyFrom(chat_of(messages, cast("PromptOptions", options)))
    elif token_ids is not None:
        with field("token_ids"):
            request.token_ids.CopyFrom(types_pb2.TokenIds(ids=token_ids))


def check_names(options: Mapping[str, object], known: type) -> None:
    """Refuse options that ``known`` does not have.

    Raises:
        InvalidRequest: names one.
    """
    for name in options.keys() - get_type_hints(known).keys():
        raise InvalidRequest(name, "is no option")
