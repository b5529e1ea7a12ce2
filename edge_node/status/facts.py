"""Facts about a node, behind the status page, ``weft edge status`` and the metrics."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.bounds import Owner
from weft.bounds.refusals import RefusalCount
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.config.units import approximate_size
from weft.edge_node.functions.runtime.counters import FunctionFacts
from weft.edge_node.part import Part
from weft.edge_node.status.history import History
from weft.edge_node.status.outage import SAMPLE_INTERVAL_S, OutageEstimate
from weft.edge_node.streams import STATE_STREAMS
from weft.edge_node.timing.clock import seconds
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.lane import format_log_id
from weft.protocols.link.report import (
    ERROR_CHARACTERS_MAX,
    FUNCTIONS_MAX,
    NAME_CHARACTERS_MAX,
    FunctionReport,
    NodeReport,
)
from weft.storage.segment_log import LogStats, SegmentLog
from weft.storage.segment_log.state.gaps import lost_by_reason


class NodeStatus:
    """A collector of the facts at each request. Belongs to the event loop's thread; nothing here blocks."""

    def __init__(
        self,
        config: EdgeConfig,
        log: SegmentLog,
        parts: Sequence[Part],
        clock_reading: Callable[[], ClockReading],
        *,
        refusals: Iterable[RefusalCount] = (),
        wall_clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Collect the facts of these parts.

        Args:
            parts: if two have the same counter, the later one is shown.
            refusals: refusals of owners' requests beyond their shares.
        """
        self.config = config
        self.log = log
        self.parts = parts
        self.refusals = refusals
        """Refusals of owners' requests beyond their shares."""
        self.started_ns = wall_clock()
        self._monotonic = monotonic
        self._started = monotonic()
        self._clock_reading = clock_reading
        self._wall_clock = wall_clock
        self._outage = OutageEstimate()
        self.history = History(SAMPLE_INTERVAL_S)

    @property
    def is_clock_synchronised(self) -> bool:
        """Return whether a time source keeps the machine's wall clock right."""
        return self._clock_reading().state is ClockState.SYNCED

    def streams(self) -> dict[str, int]:
        """Return name and number of each stream of the log, except for internal ones."""
        return {name: number for name, number in self.log.streams().items() if name not in STATE_STREAMS}

    def counted(self) -> dict[str, int]:
        """Return every counter of listeners and their clients by its name."""
        counters = [part.counters for part in self.parts if part.counters is not None]
        return {name: value for each in counters for name, value in dataclasses.asdict(each).items()}

    def sample(self) -> None:
        """Note what estimates and charts need; called every ``outage.SAMPLE_INTERVAL_S``."""
        now, stats = self._monotonic(), self.log.stats()
        self._outage.sample(now, stats.bytes_written)
        links = [link for part in self.parts for link in part.facts().get("links", {}).values()]
        present = {
            "disk_bytes": stats.bytes_on_disk,
            "waiting_records": max((link["pending_records"] for link in links), default=0),
            "waiting_seconds": max((link["pending_seconds"] for link in links), default=0),
            "connections": self.counted().get("connections", 0),
        }
        totals = {"records_per_second": stats.records, "bytes_per_second": stats.bytes_written}
        self.history.sample(now, self._wall_clock() / 1e9, totals, stats.ack, present)

    def low_water(self, stats: LogStats | None = None) -> str | None:
        """Return a warning while little space is left for records; None while there is enough."""
        stats, disk = stats or self.log.stats(), self.config.disk
        low = disk.budget_bytes // 10 if disk.low_water_bytes is None else disk.low_water_bytes
        left = stats.usable_bytes - stats.unsafe_bytes
        if left >= low:
            return None
        return (
            f"{approximate_size(max(left, 0))} of the log's {approximate_size(stats.budget_bytes)} is left for "
            "records that no hub has yet. Restore the link, raise disk.budget, or let streams drop their oldest "
            "(when_full)"
        )

    def facts(self) -> dict[str, Any]:
        """Return all facts as plain values: sizes in bytes, times in seconds since 1970, durations in seconds."""
        stats = self.log.stats()
        return {
            "node": self.config.node,
            "tenant": self.config.tenant,
            "log_id": format_log_id(self.log.log_id),
            "started": self.started_ns / 1e9,
            "uptime_seconds": self._monotonic() - self._started,
            "clock": "synchronised" if self.is_clock_synchronised else "not synchronised",
            "log_error": str(stats.failed) if stats.failed else None,
            "log_full": self.log.shortage(),
            "log_low": self.low_water(stats),
            "disk": self._disk(stats),
            "recovery": self._recovery(),
            "streams": {name: self._stream(number) for name, number in self.streams().items()},
            **{section: facts for part in self.parts for section, facts in part.facts().items()},
            "mqtt": self.counted(),
            "refusals": [
                {"bound": each.bound, "owner": owner_name(each.owner), "times": each.times} for each in self.refusals
            ],
        }

    def report(self, streams: Mapping[str, Stream], functions: Mapping[str, FunctionFacts]) -> NodeReport:
        """Return the report of the node for its hubs.

        Args:
            streams: the configured ones.
            functions: facts about derived streams, by name.
        """
        stats = self.log.stats()
        disk = self._disk(stats)
        is_full = stats.failed is not None or self.log.shortage() is not None
        left, rate = 0 if is_full else disk["outage_seconds_left"], disk["bytes_per_second"]
        told = [_function(name, streams.get(name), facts) for name, facts in sorted(functions.items())]
        return NodeReport(
            stats.bytes_on_disk, stats.budget_bytes, max(0, stats.usable_bytes - stats.unsafe_bytes),
            None if rate is None else int(rate), None if left is None else int(left),
            told[:FUNCTIONS_MAX], len(told[FUNCTIONS_MAX:]),
        )  # fmt: skip

    def _recovery(self) -> dict[str, Any]:
        """Return the findings of the node's start on the disk."""
        report = self.log.recovery
        return {
            "seconds": report.seconds,
            "torn_bytes": report.torn_bytes,
            "damaged_files": list(report.damaged),
            "records_lost": sum(gap.end - gap.first for gap in report.gaps),
        }

    def _stream(self, number: int) -> dict[str, Any]:
        gaps = self.log.gaps(number)
        return {
            "next_seq": self.log.next_seq(number),
            "durable_end": self.log.durable_end(number),
            "held": self.log.ranges(number).count(),
            "gaps": len(gaps),
            "records_lost": sum(gap.end - gap.first for gap in gaps),
            "lost": lost_by_reason(gaps),
            "bytes": self.log.stream_bytes(number),
        }

    def _disk(self, stats: LogStats) -> dict[str, Any]:
        now = self._monotonic()
        free = stats.usable_bytes - stats.unsafe_bytes
        return {
            "bytes": stats.bytes_on_disk,
            "budget_bytes": stats.budget_bytes,
            "pending_bytes": stats.pending_bytes,
            "segments": stats.segments,
            "oldest": seconds(stats.oldest_time),
            "newest": seconds(stats.newest_time),
            "commits": stats.commits,
            "records": stats.records,
            "sync_seconds": stats.sync.seconds,
            "sync_seconds_max": stats.sync_seconds_max,
            "bytes_per_second": self._outage.bytes_per_second(now, stats.bytes_written),
            "outage_seconds_left": self._outage.seconds_left(now, stats.bytes_written, free),
            "unsafe_bytes": stats.unsafe_bytes,
            "device_bytes": stats.device_bytes,
            "payload_bytes": stats.payload_bytes,
            "moved_bytes": stats.moved_bytes,
            "write_amplification": write_amplification(stats),
            "card_lifetime_seconds": self.card_lifetime_s(stats),
        }

    def card_lifetime_s(self, stats: LogStats) -> float | None:
        """Return the lifetime of a new card at the rate since the node started; None without
        ``disk.card_endurance``."""
        endurance, seconds = self.config.disk.card_endurance_bytes, self._monotonic() - self._started
        return endurance * seconds / stats.device_bytes if endurance and stats.device_bytes else None


def _function(name: str, stream: Stream | None, facts: FunctionFacts) -> FunctionReport:
    kinds = [] if stream is None else [step.chosen[0] for step in stream.functions]
    wrong = facts["trouble"] or facts["refused"] or facts["warning"]
    return FunctionReport(
        name[:NAME_CHARACTERS_MAX], ", ".join(kinds)[:NAME_CHARACTERS_MAX], facts["rows_in"], facts["rows_out"],
        facts["rows_rejected"] + facts["failures"], wrong[:ERROR_CHARACTERS_MAX],
    )  # fmt: skip


def owner_name(owner: Owner | None) -> str:
    """Return an owner's name in status and metrics; owners beyond the named ones are `others`."""
    return "others" if owner is None else str(owner)


def write_amplification(stats: LogStats) -> float | None:
    """Return the bytes of the device's pages written per byte of payload; None before the first payload."""
    return stats.device_bytes / stats.payload_bytes if stats.payload_bytes else None
