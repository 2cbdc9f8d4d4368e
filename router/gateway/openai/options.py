"""What OpenAI's bodies have in common: fields, and what becomes of them (pure).

Fields that OpenAI has not are those of vLLM, by its names.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, cast

import msgspec

from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.router.gateway.bodies import as_json
from bramley.router.gateway.names import Names

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Effort = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
ServiceTier = Literal["auto", "default", "flex", "priority"]

_SEEDS = 1 << 64
_CLASSES: Final = {
    "flex": types_pb2.PRIORITY_CLASS_BULK,
    "priority": types_pb2.PRIORITY_CLASS_INTERACTIVE,
}
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a stream is told."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the content has to be, as vLLM is asked."""

    json_schema: dict[str, Any] | str | None = msgspec.field(default=None, name="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of both bodies.

    Attributes:
        ONLY: fields that are served with these values alone, which change nothing.
    """

    ONLY: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Int32 | None = None
    max_tokens: Int32 | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[TokenId, float] | None = None
    user: str | None = None
    # vLLM's
    top_k: Int32 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Int32 | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: list[str] | None = None
    cache_salt: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    # OpenAI's of chat alone; they mean the same here
    service_tier: ServiceTier | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer is told as it comes."""
        return bool(self.stream)

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with its counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def answers(self) -> int:
        """How many are asked for."""
        return 1 if self.n is None else self.n


def start(options: Options) -> generation_pb2.GenerateRequest:
    """Begin a request with what both bodies have.

    Returns:
        It, without an input and unconstrained.

    Raises:
        InvalidRequest: a field is not served; names it.
    """
    _check_only(options)
    request = generation_pb2.GenerateRequest(
        model=options.model,
        n=options.n,
        session_key=options.prompt_cache_key or "",
        fairness_key=options.user or "",
        labels=options.metadata or {},
        priority=class_of(options.service_tier),
    )
    if options.cache_salt:
        request.cache.salt = options.cache_salt
    # What is told are texts: ids are for nobody.
    request.stream.omit_token_ids = True
    _put_sampling(request.sampling, options)
    _put_stop(request.stop, options)
    if options.max_tokens is not None:
        request.stop.max_tokens = options.max_tokens
    return request


def class_of(tier: ServiceTier | None) -> types_pb2.PriorityClass.ValueType:
    """Tell a tier's class."""
    return _CLASSES.get(tier or "", types_pb2.PRIORITY_CLASS_UNSPECIFIED)


def put_effort(request: generation_pb2.GenerateRequest, effort: str | None) -> None:
    """Say how much is to be thought."""
    if effort == "none":
        request.reasoning.enabled = False
    elif effort is not None:
        request.reasoning.effort = effort


def _check_only(options: Options) -> None:
    for name, allowed in options.ONLY.items():
        value = getattr(options, name)
        if value is not None and value not in allowed:
            raise InvalidRequest(name, "is not supported")
    stream_options = options.stream_options
    if stream_options is None:
        return
    if not options.streams:
        raise InvalidRequest("stream_options", "is of streams, and stream is not true")
    if stream_options.include_obfuscation:
        raise InvalidRequest("stream_options.include_obfuscation", "is not supported")


def _put_sampling(sampling: types_pb2.SamplingParams, options: Options) -> None:
    for name in _SAMPLING:
        if (value := getattr(options, name)) is not None:
            setattr(sampling, name, value)
    if options.seed is not None:
        if not -_SEEDS // 2 <= options.seed < _SEEDS:
            raise InvalidRequest("seed", "is over 64 bits")
        sampling.seed = options.seed % _SEEDS  # a negative one is as good as any
    sampling.logit_bias.update(options.logit_bias or {})


def _put_stop(stop: types_pb2.StopConditions, options: Options) -> None:
    if options.min_tokens is not None:
        stop.min_tokens = options.min_tokens
    strings = options.stop or ()
    stop.strings.extend([strings] if isinstance(strings, str) else strings)
    stop.token_ids.extend(options.stop_token_ids or ())
    stop.bad_words.extend(options.bad_words or ())
    stop.ignore_eos = bool(options.ignore_eos)
    stop.include_stop = bool(options.include_stop_str_in_output)


Constraints = Iterable[tuple[str, str, object]]


def constraints_of(options: Options) -> Constraints:
    """Tell of each constraint the field, the kind and the value."""
    yield "guided_json", "json_schema", options.guided_json
    yield "guided_regex", "regex", options.guided_regex
    yield "guided_choice", "choice", options.guided_choice
    yield "guided_grammar", "grammar", options.guided_grammar
    if (outputs := options.structured_outputs) is not None:
        path = "structured_outputs"
        yield f"{path}.json", "json_schema", outputs.json_schema
        yield f"{path}.json_object", "json_object", outputs.json_object or None
        yield f"{path}.regex", "regex", outputs.regex
        yield f"{path}.choice", "choice", outputs.choice
        yield f"{path}.grammar", "grammar", outputs.grammar


def constrain(request: generation_pb2.GenerateRequest, constraints: Constraints) -> dict[str, str]:
    """Set what the content has to be.

    Returns:
        How the body names it, by the router's name; empty where it says nothing of it.

    Raises:
        InvalidRequest: it is said twice; names the second field.
    """
    names: dict[str, str] = {}
    for field, kind, value in constraints:
        if value is None:
            continue
        if request.HasField("constraint"):
            raise InvalidRequest(field, "is a second constraint: give one")
        names["constraint"] = field
        constraint = request.constraint
        if kind == "choice" and isinstance(value, list):
            constraint.choice.values.extend(cast("list[str]", value))
            constraint.choice.SetInParent()
        elif kind == "json_schema":
            constraint.json_schema = value if isinstance(value, str) else as_json(value)
        else:
            setattr(constraint, kind, value)
    return names


renamed: Final = Names(
    (r"chat\.(messages\[\d+\])\.parts(.*)", r"\1.content\2"),
    (r"chat\.(messages\[\d+\]\.tool_calls\[\d+\])\.(name|arguments).*", r"\1.function.\2"),
    (r"chat\.template_kwargs(.*)", r"chat_template_kwargs\1"),
    (r"chat", "messages"),
    (r"chat\.(.*)", r"\1"),
    (r"constraint.*", "response_format"),
    (r"text|token_ids.*", "prompt"),
    (r"sampling\.(.*)", r"\1"),
    (r"stop\.strings(.*)", r"stop\1"),
    (r"stop\.token_ids(.*)", r"stop_token_ids\1"),
    (r"stop\.include_stop", "include_stop_str_in_output"),
    (r"stop\.(.*)", r"\1"),
    (r"tools\[(\d+)\]\.parameters_json_schema", r"tools[\1].function.parameters"),
    (r"tools\[(\d+)\]\.(.*)", r"tools[\1].function.\2"),
    (r"tool_choice\.name", "tool_choice.function.name"),
    (r"tool_choice\.mode", "tool_choice"),
    (r"reasoning\.budget_tokens", "thinking_token_budget"),
    (r"reasoning\..*", "reasoning_effort"),
    (r"logprobs\.top", "top_logprobs"),
    (r"cache\.salt", "cache_salt"),
    (r"session_key", "prompt_cache_key"),
    (r"fairness_key", "user"),
    (r"labels", "metadata"),
    (r"priority", "service_tier"),
)
