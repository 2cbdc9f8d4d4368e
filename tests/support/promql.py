"""What a PromQL expression names: its metrics, their matchers, the labels that it groups by."""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"|(?P<range>\[[^\]]*\])"
    r"|(?P<number>\d[\w.]*)"
    r"|(?P<name>[a-zA-Z_:][\w:]*)"
    r"|(?P<sign>=~|!~|!=|==|>=|<=|[^\s])"
)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass(frozen=True, slots=True)
class Matcher:
    """One ``label=~"value"``."""

    metric: str
    label: str
    operator: str
    value: str

    def values(self) -> list[str]:
        """List the plain values that it names; none for a pattern like ``.*``."""
        if "~" not in self.operator:
            return [self.value]
        alternatives = self.value.split("|")
        return [] if any(re.search(r"\W", each) for each in alternatives) else alternatives


@dataclass(slots=True)
class Named:
    """All that an expression names."""

    metrics: set[str] = field(default_factory=set[str])
    matchers: list[Matcher] = field(default_factory=list[Matcher])
    grouping: set[str] = field(default_factory=set[str])


def named(expr: str) -> Named:
    """Read an expression that Prometheus takes; of any other the answer means nothing."""
    found = Named()
    tokens = [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(expr)]
    place = 0
    while place < len(tokens):
        kind, text = tokens[place]
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        place += 1
        if kind != "name" or text.lower() in _WORDS:
            continue
        if text in _GROUPING:
            end = _closing(tokens, place, ")")
            found.grouping |= {word for is_a, word in tokens[place:end] if is_a == "name"}
            place = end
        elif following not in {"(", "by", "without"}:  # or it is a function
            found.metrics.add(text)
            if following == "{":
                end = _closing(tokens, place, "}")
                found.matchers += _matchers(text, tokens[place:end])
                place = end
    return found


def _closing(tokens: list[tuple[str, str]], place: int, sign: str) -> int:
    while tokens[place][1] != sign:
        place += 1
    return place + 1


def _matchers(metric: str, tokens: list[tuple[str, str]]) -> list[Matcher]:
    return [
        Matcher(metric, text, tokens[place + 1][1], tokens[place + 2][1][1:-1])
        for place, (kind, text) in enumerate(tokens)
        if kind == "name"
    ]
