"""Links as a part of the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.edge_node.links.links import Links
from weft.edge_node.part import Part, Undo
from weft.edge_node.timing.clock import seconds
from weft.replication.status import CanaryState, LinkState, LinkStatus


class LinksPart(Part):
    """The node's links as a part that can be reconfigured."""

    name = "links"

    def __init__(self, links: Links) -> None:
        """Wrap these links."""
        self._links = links

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Run the links of ``now``.

        Raises:
            ValueError: as ``Links.adopt``.
        """
        self._links.adopt(now)
        return lambda: self._links.adopt(before)

    @property
    def statuses(self) -> Sequence[LinkStatus]:
        """Return the status of each link."""
        return self._links.statuses

    async def close(self) -> None:
        """Send the last words, and end the links."""
        await self._links.close()

    def facts(self) -> Mapping[str, Any]:
        """Return the sections of the status."""
        return {
            "links": {link.name: _facts_of(link) for link in self.statuses},
            "conflicts": dict(self._links.conflicts.reasons),
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        for link in self.statuses:
            yield Sample("weft_edge_link_connected", link.state is LinkState.CONNECTED, (link.name,))
            yield Sample("weft_edge_link_alarm", bool(link.alarm), (link.name,))
            yield Sample("weft_edge_link_pending_records", link.pending_records, (link.name,))
            yield Sample("weft_edge_link_pending_seconds", link.pending_seconds, (link.name,))
            yield Sample("weft_edge_link_sent_bytes_total", link.bytes_sent, (link.name,))
            yield Sample("weft_edge_link_paused", link.is_paused, (link.name,))
            yield Sample("weft_edge_link_held", bool(link.hold), (link.name,))
            yield Sample("weft_edge_link_canary_overdue", link.canary is CanaryState.OVERDUE, (link.name,))
            for name, value in _estimates(link):
                if value is not None:
                    yield Sample(name, value, (link.name,))
            yield Sample("weft_edge_link_attempts_failed", link.attempts_failed, (link.name,))
            if link.certificate_expires is not None:
                end = seconds(link.certificate_expires) or 0
                yield Sample("weft_edge_link_certificate_expires_timestamp_seconds", end, (link.name,))
        yield Sample("weft_edge_conflict", bool(self._links.conflicts.reasons))


def _estimates(link: LinkStatus) -> Iterator[tuple[str, float | None]]:
    yield "weft_edge_link_pending_bytes", link.pending_bytes
    yield "weft_edge_link_drain_seconds", link.drain_seconds
    yield "weft_edge_link_delivery_seconds", link.delivery_seconds
    yield "weft_edge_link_ping_seconds", link.ping_seconds
    yield "weft_edge_link_canary_seconds", link.canary_seconds
    yield "weft_edge_link_canary_timestamp_seconds", seconds(link.canary_time)
    yield "weft_edge_link_budget_bytes", link.budget_bytes
    yield "weft_edge_link_budget_used_bytes", link.budget_used


def _facts_of(link: LinkStatus) -> dict[str, Any]:
    return {
        "state": str(link.state),
        "url": link.url,
        "cluster_id": link.cluster_id,
        "connected_since": seconds(link.connected_since),
        "alarm": link.alarm,
        "pending_records": link.pending_records,
        "pending_seconds": link.pending_seconds,
        "pending_bytes": link.pending_bytes,
        "drain_seconds": link.drain_seconds,
        "delivery_seconds": link.delivery_seconds,
        "ping_seconds": link.ping_seconds,
        "canary": str(link.canary),
        "canary_seconds": link.canary_seconds,
        "canary_time": seconds(link.canary_time),
        "canary_alarm": link.canary_alarm,
        "pull": link.pull or None,
        "paused": link.is_paused,
        "hold": link.hold,
        "budget_bytes": link.budget_bytes,
        "budget_used_bytes": link.budget_used,
        "budget_ends": seconds(link.budget_ends),
        "unacked_bytes": link.unacked_bytes,
        "bytes_sent": link.bytes_sent,
        "records_acked": link.records_acked,
        "attempts_failed": link.attempts_failed,
        "certificate_expires": seconds(link.certificate_expires),
        "last_ack": seconds(link.last_ack_time),
        "last_error": link.last_error,
        "last_error_time": seconds(link.last_error_time),
        "next_try": seconds(link.next_try),
        "clock_offset_seconds": seconds(link.clock_offset_ns),
    }
