"""Which HTTP requests are answered at all: by the name they ask for, and the page they are from.

A browser lends its reach to every page that it shows: one from anywhere could use a router on
loopback that asks for no key, or ask by a name of its own that it has pointed at loopback. Pure.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from bramley.common.errors import BramleyError

SETTING = "router.http_hosts"
_SHOWN = 100


class WrongHost(BramleyError):
    """A server on loopback was asked for by another name."""

    code = "PERMISSION_DENIED"
    default_reason = "WRONG_HOST"


class ForeignOrigin(BramleyError):
    """A page from elsewhere asks."""

    code = "PERMISSION_DENIED"
    default_reason = "FOREIGN_ORIGIN"


def check_host(host: str | None, hosts: Collection[str]) -> None:
    """Look at the name that a server on loopback is asked for.

    Args:
        host: the header; no browser leaves it out.
        hosts: that are served beside loopback's own names.

    Raises:
        WrongHost: it is another one.
    """
    if host is None:
        return
    name = _name_of(host)
    if name not in _lowered(hosts) and not _is_loopback(name):
        raise WrongHost(f"the host {host[:_SHOWN]!r} is not served here: {SETTING} may name it")


def check_origin(origin: str | None, host: str | None, hosts: Collection[str]) -> None:
    """Look which page asks.

    Args:
        origin: the header, which browsers send for what a page of another origin asks, and for
            what changes anything; None without one.
        host: the header.
        hosts: whose pages may ask, beside our own.

    Raises:
        ForeignOrigin: it is from elsewhere.
    """
    if origin is None:
        return
    place = origin.partition("://")[2].lower()
    is_own = host is not None and place == host.lower()
    if not is_own and _name_of(place) not in _lowered(hosts):
        raise ForeignOrigin(
            f"pages of {origin[:_SHOWN]!r} may not ask here: {SETTING} may name their host"
        )


def _name_of(host: str) -> str:
    """A host without its port, in small letters; empty if it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _lowered(hosts: Collection[str]) -> set[str]:
    return {host.lower() for host in hosts if host}


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
