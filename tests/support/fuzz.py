"""Requests that are wrong in every way that a seed finds: mutations of good ones (pure).

A table of endpoints is all that differs between dialects: a new one is one more line.
"""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HELLO = [{"role": "user", "content": "hello"}]
_FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@dataclass(frozen=True)
class Endpoint:
    """One way to ask.

    Attributes:
        body: that is answered with 200; None of a GET.
        shape: of the dialect's errors.
    """

    path: str
    body: dict[str, Any] | None
    shape: str


CHAT: dict[str, Any] = {
    "model": "fake",
    "messages": [
        {"role": "system", "content": "be brief"},
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
    ],
    "tools": [{"type": "function", "function": _FUNCTION}],
    "tool_choice": "auto",
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 1,
    "stop": ["x", "y"],
    "seed": 1,
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1.5},
    "max_completion_tokens": 4,
    "user": "somebody",
    "metadata": {"a": "b"},
    "stream": True,
    "stream_options": {"include_usage": True},
}
COMPLETION: dict[str, Any] = {
    "model": "fake",
    "prompt": "hello",
    "max_tokens": 4,
    "temperature": 0,
    "stop": "x",
    "logprobs": 1,
    "bad_words": ["no"],
    "guided_json": _SCHEMA,
}
MESSAGES: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        *HELLO,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"x": "y"}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}],
        },
    ],
    "tools": [{"name": "f", "description": "does", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "disabled"},
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "metadata": {"user_id": "somebody"},
    "stream": True,
}
COUNTED = {name: MESSAGES[name] for name in ("model", "system", "messages", "tools")}
RESPONSE: dict[str, Any] = {
    "model": "fake",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ],
    "instructions": "be brief",
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "tool_choice": "auto",
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "max_output_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "metadata": {"a": "b"},
    "store": True,
    "stream": True,
}
EMBEDDING: dict[str, Any] = {
    "model": "fake",
    "input": ["hello", "there"],
    "encoding_format": "float",
    "dimensions": 2,
    "user": "somebody",
}
ENDPOINTS = (
    Endpoint("/v1/chat/completions", CHAT, "openai"),
    Endpoint("/v1/completions", COMPLETION, "openai"),
    Endpoint("/v1/messages", MESSAGES, "anthropic"),
    Endpoint("/v1/messages/count_tokens", COUNTED, "anthropic"),
    Endpoint("/v1/responses", RESPONSE, "openai"),
    Endpoint("/v1/embeddings", EMBEDDING, "openai"),
    Endpoint("/v1/models", None, "openai"),
    Endpoint("/v1/models/fake", None, "openai"),
)


@dataclass(frozen=True)
class Sent:
    """A request, and what may come of it.

    Attributes:
        data: to be written, to the byte.
        how: the seed's way of being wrong, for who reads of a failure.
        statuses: that are right.
        is_http: whether it is a request at all, whose answer is the dialect's.
    """

    data: bytes
    how: str
    endpoint: Endpoint
    statuses: frozenset[int]
    is_http: bool = True


# What may come of a body: some mutations of a good one are good.
_OF_BODIES = frozenset({200, 400, 404, 413})
_RAW = "@raw@"
_LONG = 5000
_WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**31, 2**63, -(2**63) - 1, 2**64, 1e308, 5e-324),
    *("", "x", "x" * 70_000, "\0", "\ud83d", "\udc00x", "é😀", "NaN", "4"),
    *([], {}, [None], [[]], {"": 0}, {"type": "text"}, {"\ud83d": 1}, ["x"] * 70),
)
_RAWS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400, "9" * _LONG, "-" + "9" * 400),
    *("01", ".5", "0x10", "1_000", "'x'", "undefined", "", "[" * 100_000, '{"a":' * 2000),
    *("[" * 3000 + "]" * 3000, '{"a":' * 500 + "1" + "}" * 500, '"\\ud83d"', '"\\x"', '"\t"'),
)


def bad_request(rng: random.Random) -> Sent:
    """Make a request that is wrong, or looks so."""
    endpoint = rng.choice(ENDPOINTS)
    if endpoint.body is None or rng.random() < 0.1:
        return rng.choice((_method, _path))(rng, endpoint)
    return rng.choice(_WAYS)(rng, endpoint)


def good_request(endpoint: Endpoint) -> bytes:
    """Make the endpoint's good request."""
    if endpoint.body is None:
        return written(endpoint.path, b"", method="GET", kind="")
    return written(endpoint.path, json.dumps(endpoint.body).encode())


def written(
    path: str,
    body: bytes,
    *,
    method: str = "POST",
    kind: str = "application/json",
    length: int | None = None,
    headers: tuple[str, ...] = (),
) -> bytes:
    """Write a request down; ``length`` is a lie."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", *headers]
    if kind:
        lines.append(f"content-type: {kind}")
    if body or length is not None:
        lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _value(rng: random.Random, endpoint: Endpoint) -> Sent:
    body, holder, key = _picked(rng, endpoint)
    holder[key] = rng.choice(_WRONG)
    return _sent(endpoint, json.dumps(body).encode(), f"{key} = {str(holder[key])[:40]!r}")


def _raw(rng: random.Random, endpoint: Endpoint) -> Sent:
    body, holder, key = _picked(rng, endpoint)
    holder[key] = _RAW
    raw = rng.choice(_RAWS)
    text = json.dumps(body).replace(json.dumps(_RAW), raw)
    return _sent(endpoint, text.encode(), f"{key} = {raw[:40]}")


def _missing(rng: random.Random, endpoint: Endpoint) -> Sent:
    body, holder, key = _picked(rng, endpoint)
    del holder[key]
    return _sent(endpoint, json.dumps(body).encode(), f"no {key}")


def _added(rng: random.Random, endpoint: Endpoint) -> Sent:
    body = copy.deepcopy(endpoint.body or {})
    holder = rng.choice([one for one in _holders(body) if _is(one, dict)])
    key = rng.choice(("speed", "", "\0", "__class__", "é", "x" * 10_000, "\ud83d"))
    holder[key] = rng.choice(_WRONG)
    return _sent(endpoint, json.dumps(body).encode(), f"and {key[:20]!r}")


def _twice(rng: random.Random, endpoint: Endpoint) -> Sent:
    key, value = rng.choice(list((endpoint.body or {}).items()))
    text = f"{{{json.dumps(key)}: {json.dumps(value)}, " + json.dumps(endpoint.body)[1:]
    return _sent(endpoint, text.encode(), f"{key} twice")


def _cut(rng: random.Random, endpoint: Endpoint) -> Sent:
    data = json.dumps(endpoint.body).encode()
    return _sent(endpoint, data[: rng.randrange(len(data))], "cut JSON")


def _flipped(rng: random.Random, endpoint: Endpoint) -> Sent:
    data = bytearray(json.dumps(endpoint.body).encode())
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return _sent(endpoint, bytes(data), "flipped bytes")


def _noise(rng: random.Random, endpoint: Endpoint) -> Sent:
    data = rng.choice((b"", b"\xef\xbb\xbf{}", b"null", b"[]", b'"x"', rng.randbytes(100)))
    return _sent(endpoint, data, f"{data[:20]!r} for a body")


_HEADERS: tuple[tuple[str, int], ...] = (
    ("x-request-timeout: soon", 400),
    ("x-request-timeout: nan", 400),
    ("x-request-timeout: -1", 400),
    ("x-request-id: " + "x" * 300, 400),
    ("content-encoding: gzip", 415),
    ("origin: https://elsewhere.example", 403),
    ("authorization: Bearer " + "x" * 3000, 200),
    ("authorization: Basic eDp5", 200),
    ("traceparent: 00-zz-zz-01", 200),
    ("traceparent: \xff\xfe", 200),
    ("accept: application/xml", 200),
    ("expect: nonsense", 200),
)


def _header(rng: random.Random, endpoint: Endpoint) -> Sent:
    header, status = rng.choice(_HEADERS)
    if header.startswith("x-request-id") and endpoint.path.endswith("/count_tokens"):
        status = 200  # a count has no name
    data = written(endpoint.path, json.dumps(endpoint.body).encode(), headers=(header,))
    return Sent(data, header[:40], endpoint, frozenset({status}))


def _kind(rng: random.Random, endpoint: Endpoint) -> Sent:
    kinds = ("", "text/plain", "application/json; charset=latin-1", "multipart/form-data", "\xff")
    kind = rng.choice(kinds)
    data = written(endpoint.path, json.dumps(endpoint.body).encode(), kind=kind)
    return Sent(data, f"of the type {kind!r}", endpoint, frozenset({415}))


def _framed(rng: random.Random, endpoint: Endpoint) -> Sent:
    """Break what HTTP itself is made of: nobody's body, and at times nobody's answer."""
    body = json.dumps(endpoint.body).encode()
    head = written(endpoint.path, b"", headers=("transfer-encoding: chunked",))
    data = rng.choice(
        (
            written(endpoint.path, body, length=len(body) + 10),  # and leaves
            written(endpoint.path, body, length=max(len(body) - 10, 0)),
            written(endpoint.path, body, headers=("content-length: 5",)),
            head + b"zz\r\n" + body,
            head + b"5\r\n{}\r\n0\r\n\r\n",
            head + b"ffffffffffffffffffffff\r\n" + body,
            head + b"%x\r\n" % len(body) + body[: len(body) // 2],
            head + b"-1\r\n\r\n",
            b"\0" * rng.randrange(1, 100),
            b"GET",
            b"POST " + endpoint.path.encode() + b"\r\n\r\n",
            b"POST /\x80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
            written(endpoint.path, body).replace(b"HTTP/1.1", b"HTTP/9.9"),
            written(endpoint.path, body).replace(b"host: localhost\r\n", b""),
            written(endpoint.path, body).replace(b"\r\n", b"\n", 2),
            written(endpoint.path, body, headers=("x: " + "y" * 70_000,)),
        )
    )
    statuses = frozenset({200, 400, 404, 413, 415, 421})
    return Sent(data, f"framing {data[:60]!r}", endpoint, statuses, is_http=False)


def _method(rng: random.Random, endpoint: Endpoint) -> Sent:
    own = {"GET", "HEAD"} if endpoint.body is None else {"POST"}
    others = sorted({"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "X"} - own)
    method = rng.choice(others)
    data = written(endpoint.path, b"{}", method=method)
    return Sent(data, method, endpoint, frozenset({404, 405}))


def _path(rng: random.Random, endpoint: Endpoint) -> Sent:
    path = endpoint.path
    paths = ("/v1/", "/v1/nothing", f"{path}x", f"{path}%00", f"/v1/models/{'x' * 2000}", "/v1/%ff")
    chosen = rng.choice(paths)
    shape = "anthropic" if chosen.startswith("/v1/messages/") else "openai"
    asked = Endpoint(chosen, None, shape)
    data = written(chosen, b"", method="GET", kind="")
    return Sent(data, f"at {chosen[:40]}", asked, frozenset({400, 404, 405}))


_WAYS: tuple[Callable[[random.Random, Endpoint], Sent], ...] = (
    *(_value, _value, _value, _raw, _raw, _missing, _added),
    *(_twice, _cut, _flipped, _noise, _header, _kind, _framed),
)


def _sent(endpoint: Endpoint, body: bytes, how: str) -> Sent:
    return Sent(written(endpoint.path, body), how, endpoint, _OF_BODIES)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind)


def _keys(holder: Any) -> list[Any]:
    return [*holder] if _is(holder, dict) else [*range(len(holder))]


def _holders(value: Any) -> list[Any]:
    """Every object and list of a body that has something in it."""
    if not value or not (_is(value, dict) or _is(value, list)):
        return []
    return [value, *(one for key in _keys(value) for one in _holders(value[key]))]


def _picked(rng: random.Random, endpoint: Endpoint) -> tuple[Any, Any, Any]:
    """Copy a good body, and pick one of its places."""
    body = copy.deepcopy(endpoint.body)
    holder = rng.choice(_holders(body))
    return body, holder, rng.choice(_keys(holder))
