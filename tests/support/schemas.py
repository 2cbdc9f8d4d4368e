"""JSON Schema's public test suite, and what takes an answer through a grammar, for tests."""

import fcntl
import hashlib
import itertools
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import mlx.core as mx
import numpy as np
from mlx_lm import tokenizer_utils
from numpy.typing import NDArray

from bramley.protos.v1 import types_pb2
from bramley.worker.grammar import masks
from bramley.worker.grammar.compiler import Compiled, make
from bramley.worker.grammar.constraint import to_lark
from bramley.worker.grammar.guide import Guide, Reasoning
from bramley.worker.grammar.shapes import is_list, is_object
from bramley.worker.grammar.vocabulary import Vocabulary
from bramley.worker.reading.events import PlainReader
from bramley.worker.reading.reasoning import ReasoningReader
from bramley.worker.text.tokenizer import Tokenizer
from support.byte_tokenizer import write_byte_tokenizer
from support.segmentations import write_smollm2

# The source package of the library that checks our answers has the suite in it.
_PACKAGE = "jsonschema==4.26.0"
_SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
_FOLDER = Path(__file__).parents[2] / "build" / "json-schema-suite"


@cache
def suite() -> Path | None:
    """Return the suite's tests for draft 2020-12, fetched once; None where there is no index."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        archive = _FOLDER / f"{_SHA256}.tar.gz"
        if not archive.exists():
            fetched = _fetch(_FOLDER)
            if fetched is None:
                return None
            fetched.rename(archive)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert digest == _SHA256, f"{archive} is not what was pinned"
        tests = _FOLDER / _SHA256 / "json" / "tests" / "draft2020-12"
        if not tests.exists():
            _unpack(archive, _FOLDER / _SHA256)
    return tests


def _fetch(folder: Path) -> Path | None:
    asked = ["download", _PACKAGE, "--no-deps", "--no-binary", "jsonschema", "--retries", "0"]
    command = [sys.executable, "-m", "pip", "--quiet", *asked, "--dest", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=110)
    return next(folder.glob("jsonschema-*.tar.gz"), None) if done.returncode == 0 else None


def _unpack(archive: Path, into: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir=into.parent) as folder,
        tarfile.open(archive) as opened,
    ):
        opened.extractall(folder, filter="data")
        next(Path(folder).iterdir()).rename(into)


def groups(name: str) -> list[dict[str, Any]]:
    """Read the groups of a file of the suite."""
    folder = suite()
    assert folder is not None
    return json.loads((folder / name).read_text())


def _load(folder: Path) -> Tokenizer:
    load: Any = vars(tokenizer_utils)["load"]
    return Tokenizer(load(folder))


@cache
def byte_tokenizer() -> Tokenizer:
    """Of one token a byte."""
    with tempfile.TemporaryDirectory() as folder:
        write_byte_tokenizer(Path(folder))
        return _load(Path(folder))


@cache
def byte_vocabulary() -> Vocabulary:
    """A vocabulary in which one byte is one token."""
    return Vocabulary(byte_tokenizer())


@cache
def smollm2_tokenizer() -> Tokenizer:
    """A real one, of 49,152 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        write_smollm2(Path(folder))
        return _load(Path(folder))


@cache
def smollm2_vocabulary() -> Vocabulary:
    """A real one, of 49,152 tokens."""
    return Vocabulary(smollm2_tokenizer())


def reasoning(
    tokenizer: Tokenizer,
    *,
    is_open: bool = True,
    budget: int | None = None,
    first: str = "",
    lead: str = "",
) -> Reasoning:
    """One answer's reasoning between plain ``<think>`` and ``</think>``."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, special_tokens=False)

    return Reasoning(
        detokenizer=tokenizer.detokenizer(),
        reader=ReasoningReader("<think>", "</think>", PlainReader(), is_open=is_open),
        is_open=is_open,
        start=b"<think>",
        end=b"</think>",
        closing_ids=ids("\n</think>\n\n" + lead),
        budget=budget,
        start_ids=ids("<think>"),
        first_ids=ids(first),
        lead_ids=ids(lead),
    )


def compiled(schema: object, vocabulary: Vocabulary | None = None) -> Compiled:
    """Compile a schema as a request's would be, and raise what that would."""
    constraint = types_pb2.Constraint(json_schema=json.dumps(schema))
    lark, field = to_lark(constraint), "constraint.json_schema"
    return make(vocabulary or byte_vocabulary(), lark, field, numbers_end=True)


def accepts(grammar: Compiled, text: str) -> bool:
    """Whether a grammar of the byte vocabulary lets exactly this text through."""
    tokens = list(text.encode())
    matcher = grammar.matcher()
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    matcher.consume_tokens(tokens)
    return matcher.is_accepting()


def writings(value: Any) -> Iterator[str]:
    """Yield every compact way to write a value: objects in every order of their keys.

    A whole number is written without a point.
    """
    if isinstance(value, float) and value.is_integer():
        yield str(int(value))
    elif is_list(value):
        for parts in itertools.product(*(list(writings(one)) for one in value)):
            yield f"[{','.join(parts)}]"
    elif is_object(value):
        for entries in itertools.permutations(value.items()):
            keys = [json.dumps(key, ensure_ascii=False) for key, _ in entries]
            for parts in itertools.product(*(list(writings(one)) for _, one in entries)):
                yield "{" + ",".join(map(":".join, zip(keys, parts, strict=True))) + "}"
    else:
        yield json.dumps(value, ensure_ascii=False)


def is_valid(schema: object, text: str) -> bool:
    """Ask another library about JSON text.

    Returns:
        Its word, in exact decimals and with the formats that it knows.
    """
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    library: Any = jsonschema.Draft202012Validator
    validator = library(exact, format_checker=library.FORMAT_CHECKER)
    return bool(validator.is_valid(json.loads(text, parse_float=Decimal)))


def sample(guide: Guide, seed: int, limit: int) -> tuple[list[int], bool]:
    """Draw an answer from random scores, as a model that knows nothing would.

    Returns:
        Its tokens without the end token, and whether it was whole within ``limit`` tokens.
    """
    random = np.random.default_rng(seed)
    width = guide.vocabulary.size
    tokens: list[int] = []
    while len(tokens) < limit:
        packed = masks.fill([guide], width)
        assert guide.error is None, guide.error
        scores = mx.array(random.standard_normal((1, width)).astype(np.float32))
        if packed is not None:
            scores = masks.apply(scores, packed)
        told: Any = scores
        values: NDArray[Any] = np.array(told)
        token = int(values[0].argmax())
        assert values[0, token] > -np.inf
        if token in guide.vocabulary.end_ids:
            return tokens, True
        tokens.append(token)
        if guide.take(token):
            return tokens, True
    return tokens, False
