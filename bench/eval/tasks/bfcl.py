"""bfcl: calls of functions, written as JSON; names and arguments count, equal up to their types."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from bramley.bench.eval.tasks.contract import Answer, Asked, Item, Setting, Task, Verdict

MAX_TOKENS = 256
_SPACE = re.compile(r"\s+")


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that is right.

    Attributes:
        arguments: of each, the values that count.
        optional: names of arguments that may be left out.
    """

    name: str
    arguments: dict[str, list[Any]]
    optional: list[str] = []


class Situation(Item, frozen=True, kw_only=True):
    """One item.

    Attributes:
        functions: as JSON schemas: name, description and parameters.
        calls: all that are to be made, in any order; none where no function fits.
    """

    question: str
    functions: list[dict[str, Any]]
    calls: list[Call]


def ask(item: Situation, setting: Setting) -> Asked:
    """Ask for the calls as a JSON array."""
    functions = "\n".join(json.dumps(one, ensure_ascii=False) for one in item.functions)
    text = (
        "You may call these functions:\n"
        f"{functions}\n\n"
        'Answer with a JSON array of the calls to make and nothing else, like [{"name": "f", '
        '"arguments": {"x": 1}}]. If no function fits, answer [].\n\n'
        f"{item.question}"
    )
    tokens = setting.limit(MAX_TOKENS)
    if setting.style == "raw":
        return Asked(text=f"{text}\nCalls:", style="raw", max_tokens=tokens, stop=("\n\n",))
    return Asked(text=text, style="chat", max_tokens=tokens)


def judge(item: Situation, answer: Answer, _: Setting) -> Verdict:
    """Match every call of the answer with one that is right."""
    made = read_calls(answer.text)
    if made is None:
        return Verdict(is_right=False, found="", why="no call in JSON in the answer")
    found = json.dumps(made, ensure_ascii=False)
    if len(made) != len(item.calls):
        why = f"{len(made)} calls instead of {len(item.calls)}"
        return Verdict(is_right=False, found=found, why=why)
    if _match(item.calls, made):
        return Verdict(is_right=True, found=found, why="every call is right")
    faults = [fault(right, one) for right, one in zip(item.calls, made, strict=True)]
    why = next((told for told in faults if told), "the calls do not pair up")
    return Verdict(is_right=False, found=found, why=why)


def read_calls(text: str) -> list[dict[str, Any]] | None:
    """Read the calls of an answer, whatever stands around them.

    The first array of calls counts, or else all objects that are calls, in order. A call is
    ``{"name", "arguments"}``; "parameters" is taken for "arguments", and a call within
    "function" for itself.

    Returns:
        Each with "name" and "arguments"; None where there is no such JSON.
    """
    values = list(_values(text))
    for value in values:
        if isinstance(value, list):
            calls = [_call(one) for one in cast("list[object]", value)]
            if None not in calls:
                return cast("list[dict[str, Any]]", calls)
    calls = [call for value in values if (call := _call(value)) is not None]
    return calls or None


def _values(text: str) -> Iterator[object]:
    """Find every JSON array and object that stands in a text by itself."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place] in "[{":
            try:
                value, place = decoder.raw_decode(text, place)
            except (ValueError, RecursionError):
                place += 1
                continue
            yield value
        else:
            place += 1


def _call(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    told = cast("dict[str, Any]", value)
    if isinstance(inner := told.get("function"), dict):
        told = cast("dict[str, Any]", inner)
    name, arguments = told.get("name"), told.get("arguments", told.get("parameters", {}))
    if isinstance(arguments, str):  # as some formats nest it
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return {"name": name, "arguments": arguments}


def _match(rights: Sequence[Call], made: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the calls can be paired, each with one that it fits."""
    if not rights:
        return True
    first, rest = rights[0], rights[1:]
    return any(
        not fault(first, one) and _match(rest, [*made[:place], *made[place + 1 :]])
        for place, one in enumerate(made)
    )


def fault(right: Call, made: Mapping[str, Any]) -> str:
    """Say what is wrong with a call; empty if nothing is."""
    if made["name"] != right.name:
        return f"calls {made['name']} instead of {right.name}"
    arguments: dict[str, Any] = made["arguments"]
    for name, accepted in right.arguments.items():
        if name not in arguments:
            if name not in right.optional:
                return f"{name} is missing"
        elif not any(same(value, arguments[name]) for value in accepted):
            return f"{name} is {json.dumps(arguments[name])}"
    extra = arguments.keys() - right.arguments.keys()
    return f"{min(extra)} is no argument of the right call" if extra else ""


def same(right: object, made: object) -> bool:
    """Whether two values are equal up to their types: 2, 2.0 and "2" are, and true and "True".

    Args:
        right: what counts.
        made: what the model wrote.

    Returns:
        Whether; strings are compared without their case and the width of their spaces, arrays
        in order.
    """
    if isinstance(right, dict) and isinstance(made, dict):
        a, b = cast("dict[str, object]", right), cast("dict[str, object]", made)
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(right, list) and isinstance(made, list):
        some, others = cast("list[object]", right), cast("list[object]", made)
        return len(some) == len(others) and all(map(same, some, others))
    return _scalar(cast("object", right)) == _scalar(made)


def _scalar(value: object) -> object:
    match value:
        case bool() | None:
            return str(value).casefold()
        case int() | float():
            return value
        case str():
            text = _SPACE.sub(" ", value.strip()).casefold()
            return text if (number := _number(text)) is None else number
        case _:
            return json.dumps(value, sort_keys=True)


def _number(text: str) -> float | None:
    if text[:1] not in set("-0123456789"):
        return None
    try:
        number = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_number = isinstance(number, int | float) and math.isfinite(number)
    return number if is_number else None


TASK = Task(name="bfcl", kind=Situation, ask=ask, judge=judge)
