"""Answers by random JSON schemas, at temperature 1: every one of them ends, and validates."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bramley.bench.models import write_models
from bramley.common.rpc import open_channel
from bramley.protos.v1 import generation_pb2, types_pb2
from bramley.protos.v1.router_pb2_grpc import RouterServiceStub
from support.served import Served, serving

AT_ONCE = 8
# Every value has a bound, and so has all white space: no answer comes near it.
MAX_TOKENS = 1_500
ENDS = {types_pb2.FINISH_REASON_GRAMMAR_COMPLETE, types_pb2.FINISH_REASON_STOP}
WORDS = ("name", "size", "é", "a b", 'quote"d', "tags", "x")


def schema(chance: random.Random, depth: int = 2) -> dict[str, Any]:
    """Make a schema whose values are of bounded length."""
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "string", "maxLength": chance.randrange(1, 9)},
        lambda: {"type": "string", "pattern": "^[a-z]{2,4}(-[0-9]{1,3})?$"},
        lambda: {"type": "integer", "minimum": chance.randrange(9), "maximum": 99},
        lambda: {"type": "number", "minimum": -1, "maximum": 1},
        lambda: {"type": chance.choice(["number", "integer"])},
        lambda: {"type": ["boolean", "null"]},
        lambda: {"enum": [1, "two", None, {"three": [3]}]},
        lambda: {"const": chance.choice(WORDS)},
    ]
    if depth:
        kinds += [
            lambda: {
                "type": "array",
                "items": schema(chance, depth - 1),
                "minItems": chance.randrange(2),
                "maxItems": chance.randrange(2, 4),
            },
            lambda: {"anyOf": [schema(chance, depth - 1), schema(chance, depth - 1)]},
            lambda: _object(chance, depth),
            lambda: _object(chance, depth),
        ]
    return chance.choice(kinds)()


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(WORDS, chance.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: schema(chance, depth - 1) for name in names},
        "required": names[: chance.randrange(len(names) + 1)],
        "additionalProperties": False,
    }


async def check(served: Served, model: str, count: int) -> None:
    """Ask for so many, some at a time."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with open_channel(served.cluster.node.addresses["grpc"]) as channel:
        stub = RouterServiceStub(channel)

        async def one(seed: int) -> None:
            wanted = schema(random.Random(seed))  # noqa: S311
            message = types_pb2.ChatMessage(role="user", content="Write some JSON.")
            request = generation_pb2.GenerateRequest(
                model=model,
                chat=types_pb2.ChatInput(messages=[message]),
                constraint=types_pb2.Constraint(json_schema=json.dumps(wanted)),
                sampling=types_pb2.SamplingParams(temperature=1.0, seed=seed),
                stop=types_pb2.StopConditions(max_tokens=MAX_TOKENS),
            )
            text, finished = "", generation_pb2.Finished()
            async with gate:
                async for response in stub.Generate(request, timeout=300.0):
                    text += response.delta.text
                    finished.MergeFrom(response.finished)
            assert finished.reason in ENDS, f"seed {seed}: {wanted} is cut: {text}"
            jsonschema.Draft202012Validator(wanted).validate(json.loads(text))

        await asyncio.gather(*map(one, range(count)))


async def test_answers_of_a_random_model_fit_their_schemas(served: Served) -> None:
    await check(served, "tiny", 40)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_200_answers_of_smollm2_fit_their_schemas(tmp_path: Path) -> None:
    folder = write_models(tmp_path / "models")["smollm2"]
    toml = f'[models.smollm2]\npath = "{folder}"\nmax_rows = {AT_ONCE}\n'
    (tmp_path / "cluster").mkdir()
    async with serving(tmp_path / "cluster", lambda _: toml) as made:
        await check(made, "smollm2", 200)
