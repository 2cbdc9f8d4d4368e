"""Pieces of Lark grammars (llguidance's) that formats of tool calls are made of. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bramley.common.errors import InvalidRequest
from bramley.worker.grammar.constraint import json_rule


def quoted(text: str) -> str:
    """Write a text as a grammar has it."""
    return json.dumps(text, ensure_ascii=False)


def arguments_rule(schema: Mapping[str, Any]) -> str:
    """Write what a tool's arguments as JSON are: an object, if its schema says so or not."""
    return json_rule({"type": "object", **schema})


def grammar(start: str, choices: Sequence[str], rules: Mapping[str, str]) -> str:
    """Put a grammar together: ``call`` in the first rule stands for any of the choices."""
    lines = [f"start: {start}", "call: " + " | ".join(choices)]
    return "\n".join([*lines, *(f"{name}: {body}" for name, body in rules.items())]) + "\n"


def listed(members: Sequence[tuple[str, bool]], comma: str) -> str:
    """Write members in their order with commas between; each is a rule and whether it must be."""
    ways: list[str] = []
    for at, (rule, is_required) in enumerate(members):
        others = "".join(
            f" ({comma} {one}){'' if must else '?'}" for one, must in members[at + 1 :]
        )
        ways.append(f"{rule}{others}")
        if is_required:
            return f"({' | '.join(ways)})"
    return f"({' | '.join(ways)})?" if ways else ""


def text_rule(schema: Mapping[str, Any], delimiter: str, path: str) -> str:
    """Write a terminal of the texts that a string's schema allows and that lack its delimiter."""
    terms = [f"/(?s:.*)/ & ~/(?s:.*){_regex(re.escape(delimiter))}(?s:.*)/"]
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if least or most != "":
        terms.append(f"/(?s:.{{{least},{most}}})/")
    if isinstance(pattern := schema.get("pattern"), str):
        begins, ends = pattern.startswith("^"), re.search(r"(?<!\\)(\\\\)*\$$", pattern) is not None
        if (begins or ends) and "|" in pattern:
            raise InvalidRequest("tools", f"{path}: a pattern with anchors and alternatives")
        middle = _regex(pattern[begins : len(pattern) - ends])
        terms.append(f"/{'' if begins else '(?s:.*)'}(?:{middle}){'' if ends else '(?s:.*)'}/")
    return " & ".join(terms)


def ended_text(name: str, text: str, end: str, rules: dict[str, str]) -> str:
    """Write a terminal and the marker that ends it, which the lexer would else take for text."""
    if not end.startswith('"'):  # a token of its own is never text
        rules[name.upper()] = text
        return f"{name.upper()} {end}"
    rules[name.upper()] = text
    rules[f"{name}[suffix={end}]"] = name.upper()
    return name


def _regex(pattern: str) -> str:
    return re.sub(r"\\?/", r"\/", pattern).replace("\n", r"\n")
