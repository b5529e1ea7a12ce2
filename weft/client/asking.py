"""Paths, queries and bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec


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
