"""gsm8k: a word problem; the last number of the answer counts."""

import re
from decimal import Decimal

from bramley.bench.eval.tasks.contract import Answer, Asked, Item, Setting, Task, Verdict

MAX_TOKENS = 400
# Digits in groups of three with commas, or plain ones; a point counts with digits behind it.
_NUMBER = re.compile(r"(?<![\w.])[-\u2212]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\d)")
_MARK = "####"


class Problem(Item, frozen=True, kw_only=True):
    """One problem.

    Attributes:
        answer: the number, or a solution that ends in "#### number".
    """

    question: str
    answer: str

    def __post_init__(self) -> None:
        if last_number(self.answer.rpartition(_MARK)[2]) is None:
            raise ValueError("answer: holds no number")


def ask(item: Problem, setting: Setting) -> Asked:
    """Ask for a solution that ends in the number."""
    tokens = setting.limit(MAX_TOKENS)
    if setting.style == "raw":
        text = f"Question: {item.question}\nAnswer:"
        return Asked(text=text, style="raw", max_tokens=tokens, stop=("\nQuestion:",))
    text = f"{item.question}\n\nThink step by step. End with the answer: a number alone."
    return Asked(text=text, style="chat", max_tokens=tokens)


def judge(item: Problem, answer: Answer, _: Setting) -> Verdict:
    """Compare the last number with the right one."""
    right = last_number(item.answer.rpartition(_MARK)[2])
    found = last_number(answer.text)
    if found is None:
        return Verdict(is_right=False, found="", why="no number in the answer")
    why = f"{_plain(found)} is right"
    if found != right:
        cut = " (the answer was cut off)" if answer.finish == "length" else ""
        why = f"{_plain(found)} instead of {_plain(right or Decimal(0))}{cut}"
    return Verdict(is_right=found == right, found=_plain(found), why=why)


def last_number(text: str) -> Decimal | None:
    """Read the last number of a text: "$1,234.50." is 1234.5; None without one."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    return Decimal(found[-1].replace(",", "").replace("$", "").replace("\u2212", "-"))


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


TASK = Task(name="gsm8k", kind=Problem, ask=ask, judge=judge)
