"""The status of a source in any state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from weft.edge_node.sources.notices import Gaps
from weft.edge_node.timing import seconds


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
    values: int = 0
    values_per_second: float = 0.0
    """Rate of the last ten seconds or more."""
    exceptions: int = 0
    """Answers that refuse a request."""
    timeouts: int = 0
    bad_answers: int = 0
    """Answers that do not fit their request, or that came too late."""

    def facts(self) -> dict[str, Any]:
        """Return the section of the status."""
        return {
            "requests": self.requests,
            "values": self.values,
            "values_per_second": self.values_per_second,
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

    def facts(self) -> dict[str, Any]:
        """Return the section of the status: times in seconds since 1970."""
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
        }
