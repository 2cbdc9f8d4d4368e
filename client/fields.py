"""Names the field of a message that cannot hold what a caller gave for it."""

from collections.abc import Generator
from contextlib import contextmanager

from bramley.common.errors import InvalidRequest


@contextmanager
def field(path: str) -> Generator[None]:
    """Name the field that cannot hold what is assigned to it in the block."""
    try:
        yield
    except KeyError as error:
        raise InvalidRequest(path, f"lacks {error}") from error
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(path, str(error)) from error
