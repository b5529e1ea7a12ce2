"""Filters on the source of a link: where a receiver of a stream begins, and which topics it wants."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from weft.config.units import parse_duration_ns

OFFSET_SPECS = ("weft:offset-spec", "rabbitmq:stream-offset-spec")
"""Names of the filter that says where to begin; the second is the one that libraries for RabbitMQ's streams send."""
_MS_NS = 1_000_000


class From(enum.Enum):
    """Place at which a receiver begins."""

    NEXT = enum.auto()
    FIRST = enum.auto()
    LAST = enum.auto()
    OFFSET = enum.auto()
    TIME = enum.auto()


class Start(NamedTuple):
    """A place in a stream."""

    place: From = From.NEXT
    value: int = 0
    """Offset, or nanoseconds since 1970."""


class BadFilter(ValueError):
    """A filter that means nothing; the sentence says why."""


def start_of(filters: Any, now_ns: int) -> tuple[Start, str | None]:
    """Return where to begin, and the name of the filter that said so.

    Args:
        filters: the filter set as the engine decoded it: a map of symbols to described values.

    Raises:
        BadFilter: its value means nothing.
    """
    if not isinstance(filters, dict):
        return Start(), None
    for name in OFFSET_SPECS:
        if name in filters:
            value = filters[name]
            return _start(getattr(value, "value", value), now_ns), name
    return Start(), None


def _start(value: Any, now_ns: int) -> Start:
    if isinstance(value, str):
        words = {"next": From.NEXT, "first": From.FIRST, "last": From.LAST}
        if value in words:
            return Start(words[value])
        try:
            return Start(From.TIME, now_ns - parse_duration_ns(value))
        except ValueError:
            pass
    elif type(value).__name__ == "timestamp":
        return Start(From.TIME, int(value) * _MS_NS)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Start(From.OFFSET, int(value))
    raise BadFilter(
        f"a stream begins at first, last or next, an offset, a timestamp, or a duration ago such as 5m; got {value!r}"
    )
