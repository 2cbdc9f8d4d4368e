"""What prompts begin with alike is counted by the model's own template and tokenizer."""

from pathlib import Path
from typing import Any

import pytest

from bramley.bench.serve.head import conversations, shared, shared_tokens
from support.byte_tokenizer import write_byte_tokenizer


def asked(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [
        {"role": roles[place % 2], "content": content} for place, content in enumerate(contents)
    ]
    return {"messages": messages, "max_tokens": 9}


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ([[1, 2, 3], [1, 2, 4], [1, 9]], 2),
        ([[7, 1], [1, 2, 3, 4], [7, 2], [1, 2, 3, 5]], 3),
        ([[1], [2]], 0),
        ([[1, 2]], 0),
        ([], 0),
    ],
)
def test_the_longest_beginning_that_two_have_in_common_counts(
    prompts: list[list[int]], count: int
) -> None:
    assert shared(prompts) == count


def test_what_goes_on_from_the_same_beginning_shares_it_on_purpose() -> None:
    told = [asked("one"), asked("one", "answer", "more"), asked("two")]
    assert [one[0].get("content") for one in conversations(told)] == ["one", "two"]


def test_a_template_s_head_counts_and_what_nonces_have_in_common_by_chance(tmp_path: Path) -> None:
    folder = tmp_path / "a model"
    folder.mkdir()
    write_byte_tokenizer(folder)  # "<|start|>", then a byte a token: "user\n"
    assert shared_tokens(folder, [asked("a1 Hello"), asked("b2 Hello"), asked("c3")]) == 6
    assert shared_tokens(folder, [asked("a1 Hello"), asked("a2 Hello")]) == 7


def test_a_model_that_renders_nothing_has_no_known_head(tmp_path: Path) -> None:
    assert shared_tokens(tmp_path, [asked("a"), asked("b")]) is None
