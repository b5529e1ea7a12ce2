"""Names that can only be this machine's own, and names that a stranger may have resolved to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.bounds.browsers import Origin, is_misdirected, is_own_name, parse_origin, served_origin


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "127.1.2.3",
        "[::1]:8080",
        "[fe80::1]",
        "192.0.2.7:80",
        "localhost",
        "LOCALHOST:8080",
        "localhost.:8080",
        "edge.example.com",
        "Edge.Example.com:8080",
    ],
)
def test_names_of_the_server(host: str) -> None:
    assert not is_misdirected([host], ["edge.example.com"])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "edge.example.com.evil",
        "evil@127.0.0.1",
        "127.0.0.1/evil.example",
        "",
        ":8080",
        "[::1",
        "127.0.0.1:port",
        "127.0.0.1:99999",
        "127.1",
        "2130706433",
        "0x7f.1",
    ],
)
def test_names_that_strangers_may_have(host: str) -> None:
    assert is_misdirected([host], ["edge.example.com"])


def test_two_names_are_none_and_no_name_is_no_browser() -> None:
    assert is_misdirected(["127.0.0.1", "127.0.0.1"], ())
    assert not is_misdirected([], ())


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("http://localhost", Origin("http", "localhost", 80)),
        ("https://Dash.Example.com", Origin("https", "dash.example.com", 443)),
        ("https://dash.example.com:8443/", Origin("https", "dash.example.com", 8443)),
        ("http://[::1]:3000", Origin("http", "::1", 3000)),
        ("null", None),
        ("file://", None),
        ("app://localhost", None),
        ("http://", None),
        ("http://a:b", None),
        ("http://user@localhost", None),
        ("http://localhost/page", None),
        ("http://[x", None),
    ],
)
def test_origins(text: str, origin: Origin | None) -> None:
    assert parse_origin(text) == origin


@given(st.text(max_size=40))
def test_any_text_is_an_origin_or_none(text: str) -> None:
    for origin in (parse_origin(text), served_origin("http", [text])):
        assert origin is None or (origin.scheme in ("http", "https") and origin.host == origin.host.lower())
    assert isinstance(is_own_name(text), bool)
