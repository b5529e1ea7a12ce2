"""Sources as a part of the node. Their code is loaded once a configuration has some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.edge_node.part import Part, Undo, unchanged
from weft.edge_node.sources.status import Now, SourceState, SourceStatus
from weft.edge_node.timing import seconds
from weft.protocols.batch import ClockReading, ClockState

if TYPE_CHECKING:
    from weft.edge_node.sources.sources import Sources


class SourcesPart(Part):
    """The sources of a node that may have none."""

    name = "sources"

    def __init__(
        self,
        make: Callable[[EdgeConfig], Sources],
        wall_clock: Callable[[], int],
        clock_reading: Callable[[], ClockReading],
    ) -> None:
        """Start with no sources.

        Args:
            make: creates the sources of a configuration.
            wall_clock: nanoseconds since 1970.
        """
        self._make = make
        self._wall_clock = wall_clock
        self._clock_reading = clock_reading
        self._sources: Sources | None = None
        self._is_started = False

    def make(self, config: EdgeConfig) -> None:
        """Create the sources of a configuration.

        Raises:
            ValueError: a source cannot work.
        """
        if config.sources:
            self._sources = self._make(config)

    def start(self) -> None:
        """Connect the sources."""
        self._is_started = True
        if self._sources is not None:
            self._sources.start()

    def statuses(self) -> Sequence[SourceStatus]:
        """Return the status of each source."""
        return self._sources.statuses if self._sources is not None else ()

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status."""
        now = self._now()
        return {"sources": {source.name: source.facts(now) for source in self.statuses()}}

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        now = self._now()
        for source in self.statuses():
            yield from source_samples(source, now)

    def _now(self) -> Now:
        is_synchronised = self._clock_reading().state is ClockState.SYNCED
        return Now(self._wall_clock(), asyncio.get_running_loop().time(), is_synchronised)

    async def close(self) -> None:
        """Stop the sources."""
        if self._sources is not None:
            await self._sources.close()

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Run the sources of ``now``.

        Raises:
            ValueError: as ``Sources.adopt``; nothing has changed.
        """
        if self._sources is None:
            if not now.sources:
                return unchanged
            self.make(now)
            if self._is_started:
                self.start()
        else:
            self._sources.adopt(now)
        return lambda: self._sources.adopt(before) if self._sources is not None else None


def source_samples(source: SourceStatus, now: Now) -> Iterator[Sample]:
    """Yield the values of every metric of a source."""
    prefix, labels = "weft_edge_source_", (source.name,)
    yield Sample(f"{prefix}connected", source.state is SourceState.CONNECTED, labels)
    yield Sample(f"{prefix}messages_total", source.messages, labels)
    yield Sample(f"{prefix}received_bytes_total", source.bytes, labels)
    yield Sample(f"{prefix}acknowledged_total", source.acknowledged, labels)
    yield Sample(f"{prefix}unacknowledged_messages", source.unacknowledged, labels)
    yield Sample(f"{prefix}duplicates_total", source.duplicates, labels)
    yield Sample(f"{prefix}refused_total", source.refused, labels)
    yield Sample(f"{prefix}attempts_failed", source.attempts_failed, labels)
    if (reading := source.reading) is not None:
        yield Sample(f"{prefix}requests_total", reading.requests, labels)
        yield Sample(f"{prefix}exceptions_total", reading.exceptions, labels)
        yield Sample(f"{prefix}timeouts_total", reading.timeouts, labels)
        yield Sample(f"{prefix}bad_answers_total", reading.bad_answers, labels)
        yield Sample(f"{prefix}missed_polls_total", reading.gaps.missed, labels)
        yield Sample(f"{prefix}open_gaps", len(reading.gaps.open), labels)
    counts = {
        "waiting_messages": source.waiting,
        "connected_since_timestamp_seconds": seconds(source.connected_since),
        "values_total": None if source.values is None else source.values.total,
        "values_per_second": None if source.values is None else source.values.per_second(now.monotonic),
        "lag_seconds": source.lag(now)[0],
        "gaps_total": source.gaps,
        "overflows_total": source.overflows,
        "bad_values_total": source.bad_values,
        "nodes": source.nodes,
        "nodes_missing": source.nodes_missing,
    }
    for name, count in counts.items():
        if count is not None:
            yield Sample(f"{prefix}{name}", count, labels)
