"""Reading answers in tests: in pieces of any size, and what they come to."""

from collections.abc import Callable, Iterable, Iterator

from bramley.worker.reading.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Reader,
    Reasoning,
    Text,
)

MakeReader = Callable[[], Reader]


def read(reader: Reader, pieces: Iterable[str]) -> list[Event]:
    """Read pieces to the end; equal neighbours are joined."""
    events = [event for piece in pieces for event in reader.push(piece)]
    return joined([*events, *reader.finish()])


def joined(events: Iterable[Event]) -> list[Event]:
    """Join neighbours that say the same kind of thing."""
    made: list[Event] = []
    for event in events:
        match (made[-1] if made else None, event):
            case (Text(first), Text(second)):
                made[-1] = Text(first + second)
            case (Reasoning(first), Reasoning(second)):
                made[-1] = Reasoning(first + second)
            case (CallArguments(index, first), CallArguments(other, second)) if index == other:
                made[-1] = CallArguments(index, first + second)
            case _:
                made.append(event)
    return made


def cuttings(text: str) -> Iterator[list[str]]:
    """A text by the character, in two pieces at every place, and in threes."""
    yield list(text)
    for place in range(1, len(text)):
        yield [text[:place], text[place:]]
    yield [text[start : start + 3] for start in range(0, len(text), 3)]


def read_every_way(make: MakeReader, text: str) -> list[Event]:
    """Read a text whole; fails where some other cutting says something else."""
    whole = read(make(), [text])
    for pieces in cuttings(text):
        assert read(make(), pieces) == whole, pieces
    return whole


def shown(events: Iterable[Event]) -> tuple[str, str]:
    """All the reasoning and all the content of an answer."""
    found = list(events)
    return (
        "".join(event.text for event in found if isinstance(event, Reasoning)),
        "".join(event.text for event in found if isinstance(event, Text)),
    )


def check_order(events: Iterable[Event]) -> None:
    """Calls are numbered from 0 and come one behind the other: a start, arguments, an end."""
    started, is_open = 0, False
    for event in events:
        match event:
            case CallStart(index):
                assert index == started
                started, is_open = started + 1, True
            case CallArguments(index, text):
                assert is_open
                assert index == started - 1
                assert text
            case CallEnd(index):
                assert is_open
                assert index == started - 1
                is_open = False
            case Text(text) | Reasoning(text):
                assert text
