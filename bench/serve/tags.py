"""HTML as nested calls: whatever text goes in is escaped, and only these functions make markup."""

from html import escape

VOID = {"br", "input", "meta"}


class Markup(str):
    """Text that is HTML already; `tag` and `join` make it."""

    __slots__ = ()


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """Make an element.

    Args:
        name: of the element.
        inside: text, which is escaped, and elements.
        attributes: ``class_`` is ``class``, ``data_arm`` is ``data-arm``; True is an attribute
            without a value, None and False are no attribute.

    Returns:
        The element.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if content is True else f'="{escape(str(content))}"')
        for key, content in attributes.items()
        if content is not None and content is not False
    )
    if name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(*inside)}</{name}>")


def join(*inside: object, between: str = "") -> Markup:
    """Put text, which is escaped, and elements one after the other; nothing of None."""
    parts = (
        part if isinstance(part, Markup) else escape(str(part))
        for part in inside
        if part is not None
    )
    return Markup(escape(between).join(parts))


def table(header: list[object], rows: list[list[object]], **attributes: object) -> Markup:
    """Make a table whose rows each begin with what they are of."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = (tag("tr", tag("th", row[0], scope="row"), *_cells(header, row)) for row in rows)
    inner = tag("table", tag("thead", head), tag("tbody", *body), **attributes)
    # Wider than the screen it is scrolled by itself, by keys as well.
    return tag("div", inner, class_="wide", tabindex="0", role="region", aria_label="table")


def _cells(header: list[object], row: list[object]) -> list[Markup]:
    # On a narrow screen a row is a block, and each cell says what it is.
    pairs = zip(header[1:], row[1:], strict=True)
    return [tag("td", cell, data_label=name) for name, cell in pairs]
