"""humaneval: the body of a Python function; its tests are run, caged, on what the model wrote."""

import ast
import re
import secrets

from bramley.bench.eval.cage import Caged, run_caged
from bramley.bench.eval.tasks.contract import Answer, Asked, Item, Setting, Task, Verdict

MAX_TOKENS = 512
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL | re.IGNORECASE)
# In plain text, what comes after the function.
_STOPS = ("\ndef ", "\nclass ", "\nif __name__", "\nprint(", "\n#", "\n```")


class Function(Item, frozen=True, kw_only=True):
    """One function.

    Attributes:
        prompt: imports, signature and docstring.
        test: defines ``check(candidate)``, which raises for a wrong function.
        canonical_solution: the right body, for those who check the item.
    """

    prompt: str
    test: str
    entry_point: str
    canonical_solution: str = ""


def ask(item: Function, setting: Setting) -> Asked:
    """Ask for the function."""
    tokens = setting.limit(MAX_TOKENS)
    if setting.style == "raw":
        return Asked(text=item.prompt, style="raw", max_tokens=tokens, stop=_STOPS)
    text = (
        "Complete this Python function. Answer with the whole function in one code block, "
        f"and nothing else.\n\n```python\n{item.prompt.rstrip()}\n```"
    )
    return Asked(text=text, style="chat", max_tokens=tokens)


def judge(item: Function, answer: Answer, setting: Setting) -> Verdict:
    """Run the tests on the function."""
    code = function_of(item, answer.text, is_body=setting.style == "raw")
    mark = secrets.token_hex(8)  # printed last: a program that ends early has not passed
    program = f"{code}\n\n{item.test}\n\ncheck({item.entry_point})\nprint({mark!r})\n"
    caged = run_caged(program)
    is_right = caged.code == 0 and caged.said.rstrip().endswith(mark)
    return Verdict(is_right=is_right, found=code, why=_why(caged, is_right=is_right))


def _why(caged: Caged, *, is_right: bool) -> str:
    if is_right:
        return "the tests pass"
    if caged.ended:
        return caged.ended
    lines = caged.said.strip().splitlines() or ["it ended without a word"]
    return f"exit code {caged.code}: {lines[-1][:300]}"


def function_of(item: Function, text: str, *, is_body: bool) -> str:
    """Find the function in an answer.

    The first code block that defines it counts, or else the whole text if it is Python that
    defines it; what the item imports is put before it. Anything else is taken for the body, and
    follows the item's own beginning.

    Args:
        item: which.
        text: the answer.
        is_body: the answer goes on where the item ends, whatever it looks like.

    Returns:
        Python.
    """
    if is_body:
        return item.prompt + text
    blocks = [block.group(1) for block in _FENCE.finditer(text)]
    for code in [*blocks, text]:
        if _defines(code, item.entry_point):
            head = item.prompt.partition(f"def {item.entry_point}")[0]
            return f"{head}\n{code}"
    body = blocks[0] if blocks else text
    return item.prompt.rstrip() + "\n" + body


def _defines(code: str, name: str) -> bool:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # A block that defines it wrongly is what the model answered, too.
        return re.search(rf"^(?:async )?def {re.escape(name)}\b", code, re.MULTILINE) is not None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, kinds) and node.name == name for node in tree.body)


TASK = Task(name="humaneval", kind=Function, ask=ask, judge=judge, runs_code=True)
