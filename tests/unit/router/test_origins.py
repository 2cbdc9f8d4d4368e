"""Whose HTTP requests are answered: by the name they ask for, and the page they come from."""

import pytest

from bramley.router.origins import ForeignOrigin, WrongHost, check_host, check_origin

OWN = "127.0.0.1:7411"


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "127.0.0.1:7411",
            "127.8.9.1:1",
            "localhost",
            "LOCALHOST:7411",
            "localhost.",
        ),
        *("[::1]", "[::1]:7411", "mac.localhost:7411", "models.example", "MODELS.example:443"),
        None,
    ],
)
def test_a_server_on_loopback_answers_to_its_own_names(host: str | None) -> None:
    check_host(host, ["models.example"])


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7411", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("evillocalhost", "10.0.0.1", "[::]", "", ":7411", "[", "user@evil.example"),
        *("localhost@evil.example", "models.example.evil.example", "a.models.example", "\udce9"),
    ],
)
def test_a_name_that_was_pointed_at_loopback_is_refused(host: str) -> None:
    with pytest.raises(WrongHost, match=r"router\.http_hosts"):
        check_host(host, ["models.example", ""])


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, OWN),
        (None, None),
        (f"http://{OWN}", OWN),
        ("http://LocalHost:7411", "localhost:7411"),
        ("https://models.example", OWN),
        ("https://models.example:8443", "models.example"),
    ],
)
def test_our_own_pages_and_those_that_are_named_may_ask(
    origin: str | None, host: str | None
) -> None:
    check_origin(origin, host, ["models.example"])


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "https://evil.example", "http://127.0.0.1:8080", "http://localhost:7411"),
        *("http://127.0.0.1", "127.0.0.1:7411", "http://127.0.0.1:7411.evil.example", "file://"),
        *("http://models.example.evil.example", "http://models.example@evil.example"),
    ],
)
def test_pages_from_elsewhere_may_not(origin: str) -> None:
    with pytest.raises(ForeignOrigin, match="may not ask here"):
        check_origin(origin, OWN, ["models.example"])
