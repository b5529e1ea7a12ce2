"""The log's figures, for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from storage.segment_log.errors import LogFailed
from storage.segment_log.state import LogState


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
    sync_seconds: float
    sync_seconds_max: float
    sync_buckets: tuple[int, ...]
    """Counts per bucket of ``SYNC_BUCKETS_S``, not cumulated; the last one counts what took longer."""
    failed: LogFailed | None
    """Why the log takes nothing more, or None."""


def take_stats(state: LogState) -> LogStats:
    """The figures now."""
    with state.changed:
        spans = [span for segment in state.segments for span in segment.index.lanes.values()]
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
            sync_seconds=counters.sync_seconds,
            sync_seconds_max=counters.sync_seconds_max,
            sync_buckets=tuple(counters.sync_buckets),
            failed=state.failed,
        )
