"""Parameters of the queries of requests."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from weft.cloud_hub.api import views
from weft.cloud_hub.api.access import ApiError

DIGITS_MAX = 20
"""Longest number. Python refuses numbers of some thousand digits with an error of its own."""


def integer(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """Return a number from the query.

    Raises:
        ApiError: 400.
    """
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > DIGITS_MAX or not least <= int(text) <= most:
        raise ApiError(400, f"{name}={text[: 2 * DIGITS_MAX]!r}", f"expected a number from {least} to {most}")
    return int(text)


def choice(request: web.Request, name: str, known: Sequence[str]) -> str:
    """Return one of several words from the query; the first if it is missing.

    Raises:
        ApiError: 400.
    """
    text = request.query.get(name, known[0])
    if text not in known:
        raise ApiError(400, f"{name}={text[: 2 * DIGITS_MAX]!r}", f"expected {' or '.join(known)}")
    return text


def moment(request: web.Request, name: str) -> int | None:
    """Return a time from the query, nanoseconds since 1970; None if it is missing.

    Raises:
        ApiError: 400.
    """
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return views.parse_moment(text)
    except ValueError:
        found = text[: 2 * DIGITS_MAX]
        raise ApiError(400, f"{name}={found!r} is not a time", "write 2026-01-31T12:00:00Z, or nanoseconds") from None
