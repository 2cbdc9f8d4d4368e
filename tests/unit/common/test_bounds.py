"""Every field of every public request has its bound, and is refused by its path outside it."""

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration

from bramley.common import bounds
from bramley.common.bounds import TABLE, Free, Many
from bramley.common.errors import InvalidRequest
from bramley.protos.v1 import generation_pb2, router_pb2, types_pb2
from support.odd_requests import as_struct, bound_of, is_map, kind_of, odd

SERVICE = router_pb2.DESCRIPTOR.services_by_name["RouterService"]
REQUESTS = [method.input_type for method in SERVICE.methods]

# What the model decides: there a bound of its own would only be a second opinion.
BY_THE_WORKER = {
    "TokenIds.ids": "worker/intake.py: ids of the vocabulary",
    "StopConditions.token_ids": "worker/intake.py: ids of the vocabulary",
    "SamplingParams.logit_bias": "worker/intake.py: ids of the vocabulary",
    "DetokenizeRequest.token_ids": "worker/server.py: ids of the vocabulary",
}
# Nothing that they can hold is wrong, or too much.
FREE = {
    "SamplingParams.seed": "any seed is one",
    "SamplingParams.penalty_window": "a window beyond the sequence is the whole of it",
    "StreamOptions.max_tokens_per_message": "only joins what waits: nothing is made for it",
}


def kinds(of: list[Descriptor]) -> Iterator[Descriptor]:
    """Every kind of message that requests are made of."""
    seen: set[str] = set()
    queue = list(of)
    while queue:
        kind = queue.pop()
        if kind.full_name in seen or kind.file.package.startswith("google."):
            continue
        seen.add(kind.full_name)
        yield kind
        queue += [field.message_type for field in kind.fields if field.message_type is not None]


FIELDS = [
    field
    for kind in sorted(kinds(REQUESTS), key=lambda kind: kind.full_name)
    if not kind.GetOptions().map_entry
    for field in kind.fields
]


def needs_a_bound(field: FieldDescriptor) -> bool:
    if field.is_repeated:
        return True
    if field.message_type is not None:
        return field.message_type.file.package.startswith("google.")
    return field.type not in {FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM}


def key_of(field: FieldDescriptor) -> str:
    return f"{bounds.name_of(kind_of(field))}.{field.name}"


@pytest.mark.parametrize("field", FIELDS, ids=key_of)
def test_every_field_has_its_bound_or_a_reason_to_have_none(field: FieldDescriptor) -> None:
    bound = bound_of(field)
    assert (bound is not None) == needs_a_bound(field)
    if isinstance(bound, Free):
        assert key_of(field) in FREE
    if isinstance(bound, Many):
        if is_map(field):
            assert (bound.key, bound.each) != (None, None)
        is_message = field.message_type is not None and not is_map(field)
        assert (bound.each is None) == is_message
        if Free in {type(bound.each), type(bound.key)}:
            assert key_of(field) in BY_THE_WORKER


def test_the_table_names_nothing_that_is_not_there() -> None:
    named = {f"{kind}.{field}" for kind, fields in TABLE.items() for field in fields}
    assert named <= {key_of(field) for field in FIELDS}
    assert {*BY_THE_WORKER, *FREE} <= named


@pytest.mark.parametrize("request_", REQUESTS, ids=bounds.name_of)
def test_what_is_outside_is_refused_by_its_path(request_: Descriptor) -> None:
    for path, message in odd(request_):
        with pytest.raises(InvalidRequest) as refused:
            bounds.check(message)
        assert refused.value.field == path


def test_every_bounded_field_has_been_wrong_once() -> None:
    wrong = {path.rpartition(".")[2] for kind in REQUESTS for path, _ in odd(kind)}
    bounded = {field.name for field in FIELDS if bound_of(field) and key_of(field) not in FREE}
    assert wrong == bounded


def test_a_path_leads_to_the_very_message() -> None:
    good = types_pb2.ChatMessage(role="user", content="hi")
    bad = types_pb2.ChatMessage(tool_calls=[types_pb2.ToolCall(), types_pb2.ToolCall(id="x" * 257)])
    chat = types_pb2.ChatInput(messages=[good, good, bad])
    with pytest.raises(InvalidRequest) as refused:
        bounds.check(generation_pb2.GenerateRequest(chat=chat))
    assert refused.value.field == "chat.messages[2].tool_calls[1].id"


@pytest.mark.parametrize("field", ["priority", "tool_choice.mode"])
def test_an_enum_value_that_is_not_known_is_refused(field: str) -> None:
    request = generation_pb2.GenerateRequest()
    if field == "priority":
        request.priority = 99  # pyright: ignore[reportAttributeAccessIssue]
    else:
        request.tool_choice.mode = 99  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InvalidRequest) as refused:
        bounds.check(request)
    assert refused.value.field == field


def test_what_people_ask_passes() -> None:
    bounds.check(
        generation_pb2.GenerateRequest(
            request_id="a/b c\U0001f600",
            model="smollm2",
            chat=types_pb2.ChatInput(
                messages=[types_pb2.ChatMessage(role="user", content="hi")],
                template_kwargs=as_struct({"enable_thinking": False, "deep": [1, {"x": None}]}),
            ),
            n=16,
            sampling=types_pb2.SamplingParams(temperature=0, top_k=-1, seed=2**64 - 1),
            stop=types_pb2.StopConditions(strings=["a"], max_tokens=1),
            priority=types_pb2.PRIORITY_CLASS_SYSTEM,
            cache=types_pb2.CacheHints(salt="x" * 256),
            max_queue_time=Duration(seconds=86400),
            labels={"team": "blue"},
        )
    )
