"""Times at which a sender tells the receiver of its disk and functions.

A report goes with a message that is sent anyway, so that an idle link costs no packet more.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.protocols.link import Frame, Welcome
from weft.protocols.link.report import REPORT, FunctionReport, NodeReport
from weft.replication.liveness import SECOND

INTERVAL = 30 * SECOND
"""Least time between two reports of a connection."""
COUNTS_INTERVAL = 300 * SECOND
"""Time after which rows that functions have read and written are reason enough for a report."""
SPACE_PARTS = 50
"""Part of the budget, as one in this many, by which space must have changed."""
OUTAGE_FACTOR = 1.25
OUTAGE_S_MAX = 30 * 86_400
"""Seconds beyond which it makes no difference how long an outage the sender could bear."""


class LatestReport:
    """The report that a node's owner keeps up to date, for all links of the node."""

    def __init__(self) -> None:
        self.report: NodeReport | None = None
        """None while the node tells nothing."""


class ReportRide:
    """The reports of one connection. All times are monotonic nanoseconds.

    Args:
        latest: what the sender tells of itself.
        now: beginning of the connection.
    """

    def __init__(self, latest: LatestReport, now: int) -> None:
        self._latest = latest
        self._is_known = False
        self._sent: NodeReport | None = None
        self._due = self._counts_due = now

    def welcome(self, welcome: Welcome) -> None:
        """Note what the receiver's release knows."""
        self._is_known = REPORT in welcome.features

    def rides(self, frames: Sequence[Frame], now: int) -> list[Frame]:
        """Look at the frames of a message that is sent now. Return the report that goes with them, if one is due."""
        newest, sent = self._latest.report, self._sent
        if not frames or newest is None or not self._is_known or now < self._due:
            return []
        if sent is not None and not differs(newest, sent, counts=now >= self._counts_due):
            return []
        self._sent, self._due, self._counts_due = newest, now + INTERVAL, now + COUNTS_INTERVAL
        return [newest]


def differs(newest: NodeReport, sent: NodeReport, *, counts: bool) -> bool:
    """Return whether a report says something that people who know another one would want to know.

    Args:
        counts: whether rows that were read and written are that.
    """
    if newest is sent:
        return False
    part = newest.budget_bytes // SPACE_PARTS
    return (
        newest.budget_bytes != sent.budget_bytes
        or abs(newest.used_bytes - sent.used_bytes) > part
        or abs(newest.free_bytes - sent.free_bytes) > part
        or (newest.bytes_per_second is None) != (sent.bytes_per_second is None)
        or _outage_differs(newest.outage_seconds, sent.outage_seconds)
        or newest.functions_more != sent.functions_more
        or (counts and newest.functions != sent.functions)
        or list(map(_without_counts, newest.functions)) != list(map(_without_counts, sent.functions))
    )


def _outage_differs(one: int | None, two: int | None) -> bool:
    if one is None or two is None:
        return one is not two
    low, high = sorted((min(one, OUTAGE_S_MAX), min(two, OUTAGE_S_MAX)))
    return high > low * OUTAGE_FACTOR


def _without_counts(function: FunctionReport) -> tuple[str, str, int, str]:
    return function.stream, function.kinds, function.errors, function.last_error
