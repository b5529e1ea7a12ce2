"""The log's figures, for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapNotice
from weft.storage.histogram import Histogram
from weft.storage.segment_log.errors import LogFailed
from weft.storage.segment_log.room.must_keep import unsafe_bytes
from weft.storage.segment_log.state.log_state import LogState


class StreamSnapshot(NamedTuple):
    """Records and gaps that the log has of one stream at one instant."""

    held: RangeSet
    """Durable records that can be read."""
    next_seq: int
    gaps: list[GapNotice]
    gone: RangeSet
    """Records that were durable and were deleted by retention or after their release: neither held nor under a
    notice."""


@dataclass(frozen=True)
class LogStats:
    """Figures for people and metrics. Sums count from the opening of the log."""

    bytes_on_disk: int
    budget_bytes: int
    segments: int
    pending_bytes: int
    oldest_time: int | None
    """Earliest record time on disk, ns since 1970; None when the log is empty."""
    newest_time: int | None
    commits: int
    records: int
    bytes_written: int
    device_bytes: int
    """Bytes of the device's written pages, which wear flash."""
    payload_bytes: int
    """Bytes of the payloads made durable."""
    moved_bytes: int
    """Bytes of records that were copied into newer segments."""
    unsafe_bytes: int
    """Bytes that must not be deleted, because no hub has them yet or retention keeps them."""
    usable_bytes: int
    """Part of the budget available to records."""
    sync: Histogram
    """Times of one write + sync."""
    sync_seconds_max: float
    ack: Histogram
    """Per commit, the time from its first append until it was durable."""
    failed: LogFailed | None
    """Error because of which the log accepts no more records, or None."""


def take_stats(state: LogState) -> LogStats:
    """Return the current figures."""
    with state.changed:
        spans = [span for segment in state.segments for _, span in segment.index.spans()]
        counters = state.counters
        return LogStats(
            bytes_on_disk=state.bytes_on_disk(),
            budget_bytes=state.settings.budget_bytes,
            segments=len(state.segments),
            pending_bytes=state.queue.raw_bytes,
            oldest_time=min((span.first_time for span in spans), default=None),
            newest_time=max((span.last_time for span in spans), default=None),
            commits=counters.commits,
            records=counters.records,
            bytes_written=counters.bytes_written,
            device_bytes=counters.device_bytes,
            payload_bytes=counters.payload_bytes,
            moved_bytes=counters.moved_bytes,
            unsafe_bytes=unsafe_bytes(state),
            usable_bytes=state.settings.budget_bytes - state.settings.spare_bytes,
            sync=counters.sync.copy(),
            sync_seconds_max=counters.sync_seconds_max,
            ack=counters.ack.copy(),
            failed=state.failed,
        )
