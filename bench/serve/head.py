"""Counts what a run's prompts begin with alike: a chat template's head, and by chance a nonce's.

So much of a prompt may be cached although nobody asked it before. It is counted by the model's own
template and tokenizer, in a process of its own, so that what measures stays small:
``python -m bramley.bench.serve.head MODEL`` reads conversations as JSON, and prints the count.
"""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec

from bramley.bench.asking import common
from bramley.client.requests import Message

WITHIN_S = 120.0
Conversation = Sequence[Message]


def shared(prompts: Iterable[list[int]]) -> int:
    """How many ids two of some prompts have in common from their start, at most."""
    # Of all that begin alike, those that do so longest are neighbours.
    return max((common(*pair) for pair in pairwise(sorted(prompts))), default=0)


def conversations(asked: Iterable[Mapping[str, Any]]) -> list[Conversation]:
    """Choose one of those that begin with the same message: these share it on purpose."""
    found: dict[str, Conversation] = {}
    for each in asked:
        messages: Conversation = each["messages"]
        found.setdefault(str(messages[0].get("content")), messages)
    return list(found.values())


def shared_tokens(model: Path, asked: Iterable[Mapping[str, Any]]) -> int | None:
    """Count, for all that was asked of a model; None where it renders no conversation."""
    try:
        ended = subprocess.run(  # noqa: S603
            [sys.executable, "-P", "-m", "bramley.bench.serve.head", str(model)],
            input=msgspec.json.encode(conversations(asked)),
            check=True,
            capture_output=True,
            timeout=WITHIN_S,
        )
        return int(ended.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def rendered(model: Path, told: Iterable[Conversation]) -> list[list[int]]:
    """Render conversations as a server does; ids."""
    from transformers import AutoTokenizer  # noqa: PLC0415 -- takes seconds

    tokenizer = cast("Any", AutoTokenizer).from_pretrained(model, local_files_only=True)
    return [
        tokenizer.apply_chat_template(list(each), add_generation_prompt=True, return_dict=False)
        for each in told
    ]


def main() -> None:
    """Read, render, and print the count."""
    told = msgspec.json.decode(sys.stdin.buffer.read(), type=list[list[Message]])
    print(shared(rendered(Path(sys.argv[1]), told)))


if __name__ == "__main__":
    main()
