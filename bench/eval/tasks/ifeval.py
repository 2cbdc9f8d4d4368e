"""ifeval: a request with instructions that a program can check; all of them must be followed."""

from typing import Any

from bramley.bench.eval.tasks.contract import Answer, Asked, Item, Setting, Task, Verdict
from bramley.bench.eval.tasks.instructions import CHECKS, KEYWORDS

MAX_TOKENS = 512


class Wish(Item, frozen=True, kw_only=True):
    """One item.

    Attributes:
        instruction_id_list: names of ``CHECKS``.
        kwargs: keywords of each instruction, in the same order; a null is as good as absent.
    """

    prompt: str
    instruction_id_list: list[str]
    kwargs: list[dict[str, Any]]

    def __post_init__(self) -> None:
        if not self.instruction_id_list or len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError("kwargs: one object for each instruction, and at least one")
        for name, keywords in zip(self.instruction_id_list, self.kwargs, strict=True):
            if name not in CHECKS:
                raise ValueError(f"instruction_id_list: {name!r} cannot be checked here")
            for keyword in KEYWORDS.get(name, ()):
                if keywords.get(keyword) is None:
                    raise ValueError(f"kwargs: {name} lacks {keyword}")


def ask(item: Wish, setting: Setting) -> Asked:
    """Ask as the item asks."""
    tokens = setting.limit(MAX_TOKENS)
    if setting.style == "raw":
        return Asked(text=f"{item.prompt}\n\n", style="raw", max_tokens=tokens)
    return Asked(text=item.prompt, style="chat", max_tokens=tokens)


def judge(item: Wish, answer: Answer, _: Setting) -> Verdict:
    """Check every instruction; an empty answer follows none."""
    if not answer.text.strip():
        return Verdict(is_right=False, found="", why="the answer is empty", share=0.0)
    faults = {
        name: CHECKS[name](answer.text, {k: v for k, v in keywords.items() if v is not None})
        for name, keywords in zip(item.instruction_id_list, item.kwargs, strict=True)
    }
    told = "; ".join(f"{name}: {fault}" for name, fault in faults.items() if fault)
    followed = [name for name, fault in faults.items() if not fault]
    return Verdict(
        is_right=not told,
        found=", ".join(followed),
        why=told or "every instruction is followed",
        share=len(followed) / len(faults),
    )


TASK = Task(name="ifeval", kind=Wish, ask=ask, judge=judge)
