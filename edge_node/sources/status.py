"""The status of a source in any state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from weft.edge_node.sources.notices import Gaps
from weft.edge_node.timing import seconds

GAPS_SHOWN = 3
"""Devices and registers without values that the trouble of a source names; `reading` has all."""
CLOCKS_DIFFER_S = 1.0
"""Time by which a server's clock may be ahead of the node's: values from the future count as new."""
RATE_S = 10.0
"""Time after which a rate forgets what it counted, twice: it is that of the last ten to twenty seconds."""


class Now(NamedTuple):
    """The present of the node's clocks."""

    wall_ns: int
    """Nanoseconds since 1970."""
    monotonic: float
    """Seconds by the event loop's clock."""
    is_synchronised: bool
    """True while a time source keeps the wall clock right."""


class Rate:
    """A count of values, and how many of them came a second of late. Times in seconds by the event loop's clock."""

    def __init__(self) -> None:
        self.total = 0
        self._marks: list[tuple[float, int]] = []
        """Times, and the totals then: two at most, the older one first."""

    def count(self, values: int, now: float) -> None:
        """Add values."""
        self._mark(now)
        self.total += values

    def per_second(self, now: float) -> float:
        """Return the rate; 0 before the first value."""
        self._mark(now)
        since, total = self._marks[0]
        return (self.total - total) / (now - since) if now > since else 0.0

    def _mark(self, now: float) -> None:
        if not self._marks or now - self._marks[-1][0] >= RATE_S:
            self._marks = [*self._marks[-1:], (now, self.total)]


class SourceState(StrEnum):
    """States of a source."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    """Connected, and subscribed or consuming."""
    WAITING = "waiting"
    """The connection has ended, or the last attempt failed; the next one is at ``next_try``."""
    STOPPED = "stopped"


@dataclass(slots=True)
class Reading:
    """Figures of a source that reads values of devices. Counts are totals since the start."""

    gaps: Gaps
    requests: int = 0
    exceptions: int = 0
    """Answers that refuse a request."""
    timeouts: int = 0
    bad_answers: int = 0
    """Answers that do not fit their request, or that came too late."""

    def facts(self) -> dict[str, Any]:
        """Return the section of the status."""
        return {
            "requests": self.requests,
            "exceptions": self.exceptions,
            "timeouts": self.timeouts,
            "bad_answers": self.bad_answers,
            "missed": self.gaps.missed,
            "gaps": {
                key: {"since": seconds(gap.since), "reason": gap.reason, "missed": gap.missed}
                for key, gap in self.gaps.open.items()
            },
        }


@dataclass(slots=True)
class SourceStatus:
    """The status of a source. Times in ns since 1970; counts are totals since the start, except for values described as
    "now"."""

    name: str
    protocol: str
    """``mqtt``, ``amqp``, ``modbus`` or ``opcua``."""
    reading: Reading | None = None
    """Figures of a source that polls devices; None for another."""
    state: SourceState = SourceState.STOPPED
    url: str = ""
    """URL of the broker's node, or line of devices, that is connected or was tried last."""
    connected_since: int | None = None
    connections: int = 0
    attempts_failed: int = 0
    """Failed attempts in a row, now."""
    next_try: int | None = None
    last_error: str = ""
    """Last error, with the remedy; kept after the source is connected again, until the next error."""
    last_error_time: int | None = None
    messages: int = 0
    """Messages received; the log may refuse some, which come again."""
    bytes: int = 0
    """Payload bytes of these."""
    acknowledged: int = 0
    """Messages acknowledged to the broker, each after it was on disk."""
    unacknowledged: int = 0
    """Messages that wait for the disk, now."""
    duplicates: int = 0
    """Messages flagged as suspected duplicates."""
    refused: int = 0
    """Messages that could not be stored and are not kept: `unrouted: refuse`, or messages that do not fit a record."""
    waiting: int | None = None
    """Messages that wait at the broker, now; None where that is unknown."""
    last_message: int | None = None
    gaps: int | None = None
    """Gap notices that say of values that they may be lost; None for a broker, which has its own word for that."""
    overflows: int | None = None
    """Values before which the server dropped others; likewise."""
    bad_values: int | None = None
    """Values with a status that is not good; likewise."""
    nodes: int | None = None
    """Variables that are monitored, now; likewise."""
    nodes_missing: int | None = None
    """Nodes of the settings that the server does not have, or refuses, now; likewise."""
    values: Rate | None = None
    """Values of a server or of devices; None for a broker, whose messages are counted."""
    value_time: int | None = None
    """Source time of the newest value: of a server's clock, or the time at which a device was read."""
    implausible_time: datetime | None = None
    """Source time of the last value if no clock that was set can have given it; None if one can."""

    def lag(self, now: Now) -> tuple[float | None, str]:
        """Return the seconds since the source time of the newest value; or None, and why they are not known."""
        if self.reading is None:  # what the node reads itself has the time of its own clock
            if self.implausible_time is not None:
                return None, f"the server's clock is not set: {self.implausible_time:%Y-%m-%d}"
            if self.value_time is not None and not now.is_synchronised:
                return None, "no time source vouches for the node's clock"
        if self.value_time is None:
            return None, ""
        lag_s = (now.wall_ns - self.value_time) / 1e9
        if lag_s < -CLOCKS_DIFFER_S:
            return None, f"the server's clock is {timedelta(seconds=round(-lag_s))} ahead of the node's"
        return max(0.0, lag_s), ""

    def trouble(self) -> str:
        """Return what stops the source, or a part of it, now; empty if nothing does."""
        if self.state is not SourceState.CONNECTED or self.nodes_missing:
            return self.last_error
        gaps = self.reading.gaps.open if self.reading is not None else {}
        named = [f"{key}: {gap.reason}, {gap.missed} polls missed" for key, gap in islice(gaps.items(), GAPS_SHOWN)]
        if len(gaps) > GAPS_SHOWN:
            named.append(f"and {len(gaps) - GAPS_SHOWN} more")
        return "; ".join(named)

    def facts(self, now: Now) -> dict[str, Any]:
        """Return the section of the status: times in seconds since 1970."""
        lag_s, why_unknown = self.lag(now)
        return {
            "protocol": self.protocol,
            "state": str(self.state),
            "url": self.url,
            "connected_since": seconds(self.connected_since),
            "connections": self.connections,
            "attempts_failed": self.attempts_failed,
            "next_try": seconds(self.next_try),
            "last_error": self.last_error,
            "last_error_time": seconds(self.last_error_time),
            "messages": self.messages,
            "bytes": self.bytes,
            "acknowledged": self.acknowledged,
            "unacknowledged": self.unacknowledged,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "waiting": self.waiting,
            "last_message": seconds(self.last_message),
            "reading": self.reading.facts() if self.reading is not None else None,
            "gaps": self.gaps,
            "overflows": self.overflows,
            "bad_values": self.bad_values,
            "nodes": self.nodes,
            "nodes_missing": self.nodes_missing,
            "values": None if self.values is None else self.values.total,
            "values_per_second": None if self.values is None else round(self.values.per_second(now.monotonic), 1),
            "lag_seconds": lag_s,
            "lag_unknown": why_unknown,
            "trouble": self.trouble(),
        }
