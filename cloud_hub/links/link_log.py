"""Log lines of a hub about links: edges that connected, disconnected, were refused, or connected again.

A token's holder chooses the edge's name, and anyone can cause lines with an address. Names are checked before they are
logged, and the log's formatter escapes and bounds every line.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeGuard

from weft.config.log_lines.repeats import Repeats, left_out
from weft.config.log_lines.up_and_down import UpAndDown
from weft.config.units import approximate_duration

logger = logging.getLogger(__name__)

EDGES_MAX = 16_384
"""Maximum number of edges whose last line is remembered, at 2 KiB each; further edges are logged as new."""


CLOCK_DIFFERS_NS = 60 * 10**9
"""Difference of an edge's synchronised clock that is reported: from there on a hub's clock counts as wrong."""


def clock_differs(off: int | None) -> TypeGuard[int]:
    """Return whether an edge's clock is so far from the hub's that one of them is wrong.

    Args:
        off: nanoseconds; None while no time source keeps the edge's clock right.
    """
    return off is not None and abs(off) > CLOCK_DIFFERS_NS


class _Edge:
    def __init__(self, now: float) -> None:
        self.state = UpAndDown(now)
        self.links = 0
        """Number of open links. An edge that lost its network connects again before the hub detects that the old link
        is dead."""


class HubLinkLog:
    """The log lines of one hub node.

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._edges: OrderedDict[str, _Edge] = OrderedDict()
        self._strangers = Repeats()
        """Requests for a link that were answered before the edge's name was known."""
        self._clocks = Repeats()
        """Edges whose clocks differ."""

    def connected(self, edge: str, peer: str, log_id: str, software: str, clock_off: int | None = None) -> None:
        """Log that an edge's link was accepted, and that its clock differs if a time source keeps it right.

        Args:
            edge: tenant and name.
            peer: the edge's address.
            clock_off: nanoseconds by which the edge's clock is ahead of this node's; None while nothing vouches for it.
        """
        if clock_differs(clock_off):
            self._differs(edge, peer, clock_off)
        known = self._edge(edge)
        known.links += 1
        told = known.state.up(self._monotonic())
        if told is None:
            return
        after = f", after {approximate_duration(told.away_s)} away" if told.again or told.failures else ""
        if told.failures:
            after += f", refused {told.failures:,} times" if told.failures > 1 else ", refused once"
        logger.info(
            "edge %s at %s: connected%s, log %s, %s%s",
            edge, peer, " again" if told.again else "", log_id, software, after,
        )  # fmt: skip

    def _differs(self, edge: str, peer: str, clock_off: int) -> None:
        times = self._clocks.say(edge, self._monotonic())
        if times is not None:
            logger.warning(
                "edge %s at %s: its clock, which a time source keeps right, is %s this node's. One of them is wrong%s",
                edge, peer,
                f"{approximate_duration(abs(clock_off) / 1e9)} {'ahead of' if clock_off > 0 else 'behind'}",
                left_out(times),
            )  # fmt: skip

    def has_lost(self, edge: str, stream: str, records: int, first: int) -> None:
        """Log this hub's loss by an edge's account, for the first of its streams."""
        logger.error(
            "edge %s: this hub lacks %d records of stream %s, from seq %d on, that it had acknowledged. Its store was "
            "restored to an earlier state, or lost objects. The edge sends again what it still has; `weft hub status` "
            "names every stream", edge, records, stream, first,
        )  # fmt: skip

    def disconnected(self, edge: str, peer: str, reason: str) -> None:
        """Log the end of an accepted link."""
        known = self._edge(edge)
        known.links = max(0, known.links - 1)
        if known.links:
            self._say_replaced(edge, peer, reason)
            return
        told = known.state.down(reason, self._monotonic())
        if told is not None:
            logger.warning(
                "edge %s at %s: disconnected after %s: %s%s",
                edge, peer, approximate_duration(told.since_s), reason, left_out(told.left_out),
            )  # fmt: skip

    def refused(self, edge: str, peer: str, reason: str) -> None:
        """Log the refusal of a link after the edge has sent its name."""
        known = self._edge(edge)
        if known.links:
            self._say_replaced(edge, peer, reason)
            return
        told = known.state.down(reason, self._monotonic())
        if told is not None:
            logger.warning("edge %s at %s: %s%s", edge, peer, reason, left_out(told.left_out))

    def turned_away(self, peer: str, reason: str) -> None:
        """Log the failure of a request for a link before the edge has sent its name."""
        count = self._strangers.say(f"{peer} {reason}", self._monotonic())
        if count is not None:
            logger.warning("a link from %s: %s%s", peer, reason, left_out(count))

    def _say_replaced(self, edge: str, peer: str, reason: str) -> None:
        # Two nodes with one identity do this in turns; an edge that connects again after a network failure does it
        # once.
        count = self._strangers.say(f"{edge} at {peer}", self._monotonic())
        if count is not None:
            logger.warning(
                "edge %s at %s: %s (another link of this edge is open%s)", edge, peer, reason, left_out(count)
            )

    def _edge(self, edge: str) -> _Edge:
        known = self._edges.get(edge)
        if known is None:
            known = self._edges[edge] = _Edge(self._monotonic())
            if len(self._edges) > EDGES_MAX:
                self._edges.popitem(last=False)
        self._edges.move_to_end(edge)
        return known
