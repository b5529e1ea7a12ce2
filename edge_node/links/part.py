"""Links as a part of the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.edge_node.links.links import Links
from weft.edge_node.part import Part, Undo
from weft.edge_node.timing.clock import seconds
from weft.replication.status import LinkState, LinkStatus


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
            yield Sample("weft_edge_link_attempts_failed", link.attempts_failed, (link.name,))
            if link.certificate_expires is not None:
                end = seconds(link.certificate_expires) or 0
                yield Sample("weft_edge_link_certificate_expires_timestamp_seconds", end, (link.name,))
        yield Sample("weft_edge_conflict", bool(self._links.conflicts.reasons))


def _facts_of(link: LinkStatus) -> dict[str, Any]:
    return {
        "state": str(link.state),
        "url": link.url,
        "cluster_id": link.cluster_id,
        "connected_since": seconds(link.connected_since),
        "alarm": link.alarm,
        "pending_records": link.pending_records,
        "pending_seconds": link.pending_seconds,
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
