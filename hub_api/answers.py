"""Types that several answers of the API have in common, times as texts, and the error of a request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.config.units import parse_duration_ns

Moment = Annotated[str, Meta(description="RFC 3339 in UTC with nanoseconds; a time outside the calendar is a number.")]


LogId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$", description="Id of an edge's log. A new disk is a new log.")]


Count = Annotated[int, Meta(ge=0)]


NextAfter = Annotated[str | None, Meta(description="`after` of the next page; null at the end of the list.")]


_SECOND = 1_000_000_000


def moment(time: int | None) -> Moment | None:
    """Return nanoseconds since 1970 as text. None remains None; a time outside the calendar remains a number."""
    return None if time is None else moment_of(time)


def moment_of(time: int) -> Moment:
    """Return nanoseconds since 1970 as text; a time outside the calendar remains a number."""
    seconds, rest = divmod(time, _SECOND)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    except (ValueError, OverflowError, OSError):
        return str(time)


def parse_moment(text: str) -> int:
    """Return nanoseconds since 1970 from RFC 3339 text (without an offset: UTC) or from the number itself.

    Raises:
        ValueError: it is neither.
    """
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text)
    time = datetime.fromisoformat(text)
    whole = time.replace(tzinfo=time.tzinfo or UTC, microsecond=0)
    return int(whole.timestamp()) * _SECOND + time.microsecond * 1000


def moment_after(text: str, now: int) -> int:
    """Return the moment that a text gives as a duration from now on, such as ``90d``, or as ``parse_moment`` reads it.

    Args:
        now: nanoseconds since 1970.

    Raises:
        ValueError: it is neither, in the past, or too far away.
    """
    try:
        until = now + parse_duration_ns(text)
    except ValueError:
        try:
            until = parse_moment(text)
        except ValueError:
            raise ValueError(f"expected a duration such as 90d, or a date such as 2030-06-30, got {text!r}") from None
    if until < now and text.isdecimal():
        raise ValueError(f"{text} is a moment of the past. A duration has a unit: {text}d")
    if not now <= until < 1 << 63:
        raise ValueError(f"{text} is in the past, or too far away")
    return until


class ApiError(Exception):
    """An error response: HTTP status, the error, and advice.

    Args:
        retry_s: seconds after which the same request may succeed; None if that is not known.
    """

    def __init__(self, status: int, error: str, advice: str, *, retry_s: float | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.advice = advice
        self.retry_s = retry_s


class Problem(msgspec.Struct, frozen=True):
    """The body of every answer whose status is 400 or above, as RFC 9457 has it."""

    type: str
    """URI of the kind of problem, relative to the hub: the description of the status in this document."""
    title: str
    """The name of the kind, the same for each problem of the type."""
    status: Annotated[int, Meta(ge=400, le=599)]
    """Status of the answer."""
    detail: str
    """The mistake or the failure."""
    advice: str
    """The remedy."""


class MissingShard(msgspec.Struct, frozen=True):
    """A shard that cannot be read. What it holds is not in the answer, and not known."""

    shard: Count
    trouble: str


class OfShards(msgspec.Struct, frozen=True, kw_only=True):
    """An answer about all shards."""

    missing_shards: list[MissingShard] | UnsetType = UNSET
    """Absent when every shard could be read."""
    as_of: Moment | UnsetType = UNSET
    """Oldest moment that a part of the answer is of; absent when it is of now, and in answers about one stream."""


class SeqRange(msgspec.Struct, frozen=True):
    """Sequence numbers from `first` to before `end`."""

    first: Count
    end: Count


class GapView(SeqRange, frozen=True):
    """Sequence numbers whose records can never arrive."""

    reason: str
    """`budget`, `corruption`, `expired`, `absent`, `operator` or `renamed`; a number for one of a later release."""


class OpenGapView(msgspec.Struct, frozen=True):
    """A loss whose number of records is unknown."""

    edge: str
    log: LogId
    first: Count
    """Sequence number from which on records may be missing."""
    records: Count | None
    """Number of lost records; null: unknown."""
    since: Moment | None
    """The records were received after this time; null if no mark ever arrived."""
    until: Moment
    other_lanes: Count
    """Number of further lanes that are joined to this gap."""
    why: str
