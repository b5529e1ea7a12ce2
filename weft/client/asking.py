"""Parts of requests, which both clients share."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UnsetType

from weft.client.errors import HubUnreachable

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 256 << 20
"""Longest answer: the hub's bound, which a setting may raise, and a record of the largest size."""


class Listed(Protocol):
    """An answer that may have a next page."""

    @property
    def next_after(self) -> str | UnsetType | None:
        """Argument ``after`` of the next request."""


def path_of(stream: str, below: str = "") -> str:
    """Return the path of a stream, or of something below it."""
    return f"/v1/streams/{quote(stream, safe='')}{below}"


def with_query(path: str, query: Mapping[str, str | int | None]) -> str:
    """Return a path with those values of a query that are not None."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def json_of(body: Mapping[str, Any]) -> bytes:
    """Return a body with those fields that are not None."""
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def checked(url: str, token: str | None, token_file: str | None) -> str:
    """Return a hub's URL without a slash at its end. ``ValueError`` says what is wrong with what a client is given."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no address of a hub: write https://hub.example.com")
    if token is not None and token_file is not None:
        raise ValueError("there is a token and a token_file: give one of them")
    if token is not None and not (token.isascii() and token.isprintable() and token.split() == [token]):
        raise ValueError("the token is empty, or has characters that no token has: give the word alone")
    return url.rstrip("/")


def trusting(ca_file: str) -> ssl.SSLContext:
    """Return the context of a client that trusts the authorities of a PEM file. ``OSError`` and ``ValueError`` say what
    is wrong with it."""
    from weft.network.tls.contexts import client_context
    from weft.network.tls.files import ClientTlsFiles

    return client_context(ClientTlsFiles(ca_file=ca_file))


def after_page(page: Listed, after: str | None) -> str | None:
    """Return ``after`` of the next page; None behind the last one.

    Args:
        after: that of this page.

    Raises:
        HubUnreachable: the list stands still.
    """
    if not isinstance(page.next_after, str):
        return None
    if page.next_after == after:
        raise HubUnreachable(f"the list does not go on after {after!r}; is a hub at that address?")
    return page.next_after
