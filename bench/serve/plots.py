"""Drawings of a report, in SVG: when each token came, how times are spread, where samples lie."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bramley.bench.serve import wording
from bramley.bench.serve.record import Request
from bramley.bench.serve.tags import Markup, tag

ARMS = 6  # looks that can be told apart; after that they come again
_STEPS_MAX = 240
_WIDE, _HIGH = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 14, 10, 34
_LABEL = 56  # width that the label of a time has, with some air
_LONG = 1000  # of a strip, in its own units


@dataclass(frozen=True, slots=True)
class Curve:
    """Times of one arm.

    Attributes:
        look: number of the arm, for its colour and its dashes.
        values: seconds, above 0.
    """

    name: str
    look: int
    values: Sequence[float]


def gaps_s(request: Request) -> list[float]:
    """Seconds from each event to the next."""
    return [later.at_s - event.at_s for event, later in pairwise(request.events)]


def ttft_s(request: Request) -> float | None:
    """Seconds to the first event, if one came."""
    return request.events[0].at_s - request.sent_s if request.events else None


def spread(title: str, curves: Sequence[Curve]) -> Markup | None:
    """Draw for each arm which share of its times is below a time; time on a log scale.

    Returns:
        A figure with its legend; nothing if there is nothing to draw.
    """
    drawn = [
        Curve(curve.name, curve.look, sorted(value for value in curve.values if value > 0))
        for curve in curves
    ]
    drawn = [curve for curve in drawn if curve.values]
    if not drawn:
        return None
    scale = Scale(min(curve.values[0] for curve in drawn), max(curve.values[-1] for curve in drawn))
    lines = [
        tag("path", d=_steps(curve.values, scale), class_=f"curve arm{curve.look}")
        for curve in drawn
    ]
    svg = tag(
        "svg",
        tag("title", f"{title}: share of times at or below a time, for each arm"),
        *_grid(scale),
        *lines,
        viewBox=f"0 0 {_WIDE} {_HIGH}",
        role="img",
        class_="spread",
    )
    legend = tag("ul", *(_legend(curve) for curve in drawn), class_="legend")
    return tag("figure", tag("figcaption", title), svg, legend)


class Scale:
    """Places times on a log scale, from a round time below all to one above.

    Args:
        low: the shortest.
        high: the longest.
    """

    def __init__(self, low: float, high: float) -> None:
        self.marks = _round_times(low, high)
        self._low, self._high = math.log(self.marks[0]), math.log(self.marks[-1])

    def x(self, value: float) -> float:
        """Of a time."""
        share = (math.log(value) - self._low) / (self._high - self._low)
        return _LEFT + share * (_WIDE - _LEFT - _RIGHT)


def _round_times(low: float, high: float) -> list[float]:
    """Find round times, of which the first and the last have all others between them."""
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1.0, 2.0, 5.0) if high > 5 * low else (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    every = [digit * 10.0**ten for ten in tens for digit in digits]
    below = max((one for one in every if one <= low * (1 + 1e-9)), default=every[0])
    above = min((one for one in every if one >= high and one > below), default=every[-1] * 2)
    marks = [one for one in every if below <= one < above] + [above]
    while len(marks) > 8:
        marks = [*marks[:-1:2], marks[-1]]
    return marks


def _y(share: float) -> float:
    return _TOP + (1 - share) * (_HIGH - _TOP - _BOTTOM)


def _steps(values: Sequence[float], scale: Scale) -> str:
    """Walk up the sorted values; of very many, every so manieth."""
    count = len(values)
    every = max(count // _STEPS_MAX, 1)
    places = [*range(every - 1, count, every)]
    if places[-1] != count - 1:
        places.append(count - 1)
    path = [f"M{scale.x(values[0]):.1f} {_y(0):.1f}"]
    path += [f"H{scale.x(values[place]):.1f}V{_y((place + 1) / count):.1f}" for place in places]
    return "".join([*path, f"H{_WIDE - _RIGHT}"])


def _grid(scale: Scale) -> list[Markup]:
    parts: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        y = f"{_y(share):.1f}"
        parts.append(tag("path", d=f"M{_LEFT} {y}H{_WIDE - _RIGHT}", class_="grid"))
        words = f"{share:.0%}"
        parts.append(
            tag("text", words, x=_LEFT - 6, y=y, class_="tick", text_anchor="end", dy="0.35em")
        )
    named_x = math.inf  # of the label to the right
    for mark in reversed(scale.marks):
        at_x = scale.x(mark)
        x = f"{at_x:.1f}"
        parts.append(tag("path", d=f"M{x} {_y(1):.1f}V{_y(0):.1f}", class_="grid"))
        if named_x - at_x < _LABEL:
            continue
        named_x = at_x - (_LABEL / 2 if mark == scale.marks[-1] else 0)
        words = wording.value(mark, "s")
        place = "end" if mark == scale.marks[-1] else "middle"
        parts.append(tag("text", words, x=x, y=_HIGH - 12, class_="tick", text_anchor=place))
    return parts


def _legend(curve: Curve) -> Markup:
    middle = curve.values[(len(curve.values) - 1) // 2]
    worst = curve.values[math.ceil(0.99 * len(curve.values)) - 1]
    said = (
        f"{wording.value(middle, 's')}, p99 {wording.value(worst, 's')}, {len(curve.values)} times"
    )
    return tag("li", key(curve.look), " ", tag("b", curve.name), f": p50 {said}")


def key(look: int) -> Markup:
    """Draw a short piece of an arm's line."""
    line = tag("path", d="M0 6H34", class_=f"curve arm{look}")
    return tag("svg", line, viewBox="0 0 34 12", class_="key", aria_hidden="true")


def strips(requests: Sequence[Request], span_s: float, look: int, from_s: float | None) -> Markup:
    """Draw a strip a request: a thin line until the first token, then a tick a token.

    Args:
        requests: in the order of the strips.
        span_s: length of every strip, so that those of several arms can be compared.
        look: number of the arm.
        from_s: where strips begin; without it each begins when its own request was sent.

    Returns:
        The strips, as rows of a list.
    """
    return tag(
        "ol",
        *(_strip(one, span_s, look, one.sent_s if from_s is None else from_s) for one in requests),
        class_="strips",
    )


def _strip(request: Request, span_s: float, look: int, from_s: float) -> Markup:
    def x(at_s: float) -> str:
        return f"{min(max((at_s - from_s) / span_s, 0.0), 1.0) * _LONG:.1f}"

    first_s = request.events[0].at_s if request.events else request.ended_s
    # A tick of several tokens is taller.
    ticks = "".join(
        f"M{x(event.at_s)} {4 if event.tokens == 1 else 1}V{12 if event.tokens == 1 else 15}"
        for event in request.events
        if event.tokens
    )
    tokens = sum(event.tokens for event in request.events)
    said = f"{tokens} tokens in {len(request.events)} events"
    if request.events:
        said += f", the first after {wording.value(first_s - request.sent_s, 's')}"
    failed = f"✕ {request.error}" if request.error is not None else None
    svg = tag(
        "svg",
        tag("title", f"{request.phase} {request.index}: {said}"),
        tag("path", d=f"M{x(request.sent_s)} 8H{x(first_s)}", class_="waiting"),
        tag("path", d=ticks, class_=f"ticks arm{look}") if ticks else None,
        viewBox=f"0 0 {_LONG} 16",
        preserveAspectRatio="none",
        role="img",
    )
    label = tag("span", f"{request.index}", class_="label", title=said)
    words = tag("span", failed, class_="bad") if failed else None
    return tag("li", label, svg, words)


def axis(span_s: float) -> Markup:
    """Draw the times below strips."""
    marks = (wording.value(span_s * share, "s") for share in (0.0, 0.25, 0.5, 0.75, 1.0))
    return tag("div", *(tag("span", mark) for mark in marks), class_="axis", aria_hidden="true")


def dots(values: Sequence[float], low: float, high: float, look: int) -> Markup:
    """Draw where an arm's samples lie between the lowest and the highest of all arms."""
    span = high - low or 1.0
    marks = "".join(f"M{4 + 112 * (value - low) / span:.1f} 2v8" for value in values)
    line = tag("path", d="M0 6H120", class_="grid")
    path = tag("path", d=marks, class_=f"ticks arm{look}")
    return tag("svg", line, path, viewBox="0 0 120 12", class_="dots", aria_hidden="true")
