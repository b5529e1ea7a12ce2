"""Facts about a node, behind the status page, ``weft edge status`` and the metrics."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from weft.bounds import Owner
from weft.bounds.bound import RefusalCount
from weft.config.log_lines import STABLE_S, Repeats, UpAndDown
from weft.config.metrics import exposition
from weft.config.metrics.edge import EDGE_METRICS
from weft.config.metrics.exposition import AnySample, HistogramSample, Sample, build_info
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.config.units import YEAR_S, approximate_duration, approximate_size
from weft.edge_node.derived.counters import FunctionFacts
from weft.edge_node.part import Part
from weft.edge_node.streams import STATE_STREAMS
from weft.edge_node.timing import seconds
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.lane import format_log_id
from weft.protocols.link import ERROR_CHARACTERS_MAX, FUNCTIONS_MAX, NAME_CHARACTERS_MAX, FunctionReport, NodeReport
from weft.protocols.segment import GapReason
from weft.storage.histogram import Histogram
from weft.storage.segment_log import LogStats, SegmentLog
from weft.storage.segment_log.index import lost_by_reason, reason_name

# Health of a node, and its readiness for work: two different questions.
#
# An unhealthy node must be restarted. A node that is not ready should get no new clients for now; a restart would not
# help, and would disconnect its clients.


class Health:
    """Answers to both questions from the state of the parts. Reasons name no streams, paths or users.

    Args:
        has_lost_state: returns True when the sessions' database has failed.
        is_listening: returns True when every listener is open.
        has_conflict: returns True while the node acknowledges nothing because a hub refuses its identity.
    """

    def __init__(
        self,
        log: SegmentLog,
        has_lost_state: Callable[[], bool],
        is_listening: Callable[[], bool],
        *,
        has_conflict: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log = log
        self._has_lost_state = has_lost_state
        self._is_listening = is_listening
        self._has_conflict = has_conflict

    def unhealthy(self) -> list[str]:
        """Return the reasons to restart the node; empty when there are none.

        The node ends by itself within a second when the log or the database has failed. Any answer shows that the event
        loop runs.
        """
        reasons = []
        if self._log.failed is not None:
            reasons.append("a write to the log failed; the node ends, and recovers the log when it is started again")
        if self._has_lost_state():
            reasons.append("the database of sessions failed; the node ends, and recovers it when it is started again")
        return reasons

    def unready(self) -> list[str]:
        """Return the reasons why the node accepts no work; empty when it does.

        A link that is down is not a reason: a node is meant to accept messages while no hub can be reached. A full log
        is one: devices sent here get no acknowledgement, and another node might send it.
        """
        reasons = self.unhealthy()
        if not self._is_listening():
            reasons.append("the listeners are not open")
        if self._log.failed is None and self._log.shortage() is not None:
            reasons.append("the log is full: devices get no acknowledgements")
        if self._has_conflict():
            reasons.append("another copy of the log has taken over at the hub: devices get no acknowledgements")
        return reasons


# The last hour and the last day of a node in a few figures, for charts. They are lost when the node ends.

FIGURES = (
    "records_per_second",
    "bytes_per_second",
    "ack_p50_seconds",
    "ack_p99_seconds",
    "disk_bytes",
    "waiting_records",
    "waiting_seconds",
    "connections",
)
"""Names of the figures. A rate is that of the interval before its time, and so are percentiles; the rest are values at
that time."""
RATES = frozenset(("records_per_second", "bytes_per_second"))
HOUR_POINTS_MAX, DAY_POINTS_MAX = 360, 288
SAMPLES_OF_POINT = 30
"""Number of samples that make a point of the day: its rates are their mean, all other figures their maximum."""


class Points:
    """A ring of points, each a time and a value of every figure; NaN where there is none."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._values = array("d")
        self._first = 0

    def add(self, time: float, values: Sequence[float]) -> None:
        """Add a point; the oldest leaves a full ring."""
        row = array("d", (time, *values))
        if len(self._values) < self._length * len(row):
            self._values += row
            return
        self._values[self._first : self._first + len(row)] = row
        self._first = (self._first + len(row)) % len(self._values)

    def view(self) -> dict[str, Any]:
        """Return the times, in seconds since 1970, and the values of each figure; None for a value that is missing."""
        values = self._values[self._first :] + self._values[: self._first]
        width = len(FIGURES) + 1
        return {
            "times": list(values[::width]),
            "figures": {
                name: [None if math.isnan(each) else each for each in values[at::width]]
                for at, name in enumerate(FIGURES, 1)
            },
        }


class History:
    """Both rings. Belongs to the event loop's thread.

    Args:
        interval_s: interval at which ``sample`` is called.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._hour, self._day = Points(HOUR_POINTS_MAX), Points(DAY_POINTS_MAX)
        self._gathered: list[list[float]] = []
        self._before: tuple[float, Mapping[str, int], Histogram] | None = None

    def sample(
        self, now: float, wall_time: float, totals: Mapping[str, int], ack: Histogram, present: Mapping[str, float]
    ) -> None:
        """Add a point.

        Args:
            now: monotonic seconds.
            wall_time: seconds since 1970.
            totals: counters of the rates, by ``FIGURES`` names.
            ack: durations of acknowledgements since the start.
            present: values of the other figures.
        """
        figures = dict(present)
        if self._before is not None:
            then, before, ack_before = self._before
            elapsed = now - then
            if elapsed > 0:
                figures |= {name: (total - before[name]) / elapsed for name, total in totals.items()}
            counts = [mine - theirs for mine, theirs in zip(ack.counts, ack_before.counts, strict=True)]
            figures |= {
                "ack_p50_seconds": percentile(ack.bounds, counts, 0.5),
                "ack_p99_seconds": percentile(ack.bounds, counts, 0.99),
            }
        self._before = (now, dict(totals), ack)
        values = [float(figures.get(name, math.nan)) for name in FIGURES]
        self._hour.add(wall_time, values)
        self._gathered.append(values)
        if len(self._gathered) == SAMPLES_OF_POINT:
            columns = zip(*self._gathered, strict=True)
            self._day.add(wall_time, [_joined(name, column) for name, column in zip(FIGURES, columns, strict=True)])
            self._gathered.clear()

    def view(self, *, of_day: bool) -> dict[str, Any]:
        """Return the points of the last hour or of the last day, the oldest first."""
        interval = self._interval_s * (SAMPLES_OF_POINT if of_day else 1)
        return {"interval_seconds": interval, **(self._day if of_day else self._hour).view()}


def percentile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Return a percentile of durations, estimated within its bucket; NaN without durations."""
    wanted, low = sum(counts) * part, 0.0
    if not wanted:
        return math.nan
    for high, count in zip(bounds, counts, strict=False):
        if count and wanted <= count:
            return low + (high - low) * wanted / count
        wanted -= count
        low = high
    return bounds[-1]


def _joined(name: str, values: Sequence[float]) -> float:
    known = [each for each in values if not math.isnan(each)]
    if not known:
        return math.nan
    return sum(known) / len(known) if name in RATES else max(known)


# Estimate of how long an outage of the hub the node survives: the free part of its disk budget over the growth of the
# log.

SAMPLE_INTERVAL_S = 10.0
WINDOW_SAMPLES_MAX = 360
"""Number of samples: an hour, so that devices that report every few minutes still give a rate."""
ELAPSED_S_MIN = 1.0


class OutageEstimate:
    """Samples of the bytes written by the log, and estimates from them. ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=WINDOW_SAMPLES_MAX)

    def sample(self, now: float, bytes_written: int) -> None:
        """Note the number of bytes written by the log since the node started."""
        self._samples.append((now, bytes_written))

    def bytes_per_second(self, now: float, bytes_written: int) -> float | None:
        """Return the growth of the log over the window of samples; None until there are enough."""
        if not self._samples:
            return None
        then, written_then = self._samples[0]
        elapsed = now - then
        return (bytes_written - written_then) / elapsed if elapsed >= ELAPSED_S_MIN else None

    def seconds_left(self, now: float, bytes_written: int, bytes_free: int) -> float | None:
        """Return the seconds until ``bytes_free`` are full at the rate of the last hour, 0 when they are full.

        None when no records come in, or the rate is unknown.
        """
        if bytes_free <= 0:
            return 0.0
        rate = self.bytes_per_second(now, bytes_written)
        return bytes_free / rate if rate else None


def pair_line(pair: dict[str, Any]) -> str:
    """Return with which node this one is a pair, and how they are connected."""
    # Unless the configuration names it, the peer says who it is when it first brings its records.
    name = f"of {pair['node']}: " if pair["node"] else ""
    return f"{name}{pair['state']} to {', '.join(pair['peer'])}, acks: {pair['acks']}"


def outage_left(facts: Mapping[str, Any]) -> str:
    """Return the estimate in the facts of a running node (``NodeStatus.facts``), as text."""
    disk, left = facts["disk"], facts["disk"]["outage_seconds_left"]
    if facts["log_error"]:
        return "none: the log has stopped"
    if facts["log_full"] or left == 0:
        return "none: the log is full"
    if left is None:
        return "unknown yet" if disk["bytes_per_second"] is None else "unlimited while no records arrive"
    return f"{outage_duration(left)} at the rate of the last hour"


def outage_duration(seconds: float) -> str:
    """Return the length of an outage, as text.

    A node that took three messages in its last hour would need centuries to fill its disk. No plan needs such a number,
    and one busy hour makes it wrong: beyond a year it is not shown.
    """
    return "more than a year" if seconds > YEAR_S else approximate_duration(seconds)


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
        """Note what estimates and charts need; called every ``SAMPLE_INTERVAL_S``."""
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
        reports = [_function(name, streams.get(name), facts) for name, facts in sorted(functions.items())]
        return NodeReport(
            stats.bytes_on_disk,
            stats.budget_bytes,
            max(0, stats.usable_bytes - stats.unsafe_bytes),
            None if rate is None else int(rate),
            None if left is None else int(left),
            reports[:FUNCTIONS_MAX],
            len(reports[FUNCTIONS_MAX:]),
        )

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
        name[:NAME_CHARACTERS_MAX],
        ", ".join(kinds)[:NAME_CHARACTERS_MAX],
        facts["rows_in"],
        facts["rows_out"],
        facts["rows_rejected"] + facts["failures"],
        wrong[:ERROR_CHARACTERS_MAX],
    )


def owner_name(owner: Owner | None) -> str:
    """Return an owner's name in status and metrics; owners beyond the named ones are `others`."""
    return "others" if owner is None else str(owner)


def write_amplification(stats: LogStats) -> float | None:
    """Return the bytes of the device's pages written per byte of payload; None before the first payload."""
    return stats.device_bytes / stats.payload_bytes if stats.payload_bytes else None


# Log lines about a segment log that is full or nearly so: at the beginning, at growing intervals, and at the end.

logger = logging.getLogger(__name__)


class ShortageLog:
    """The state of the shortage, updated once a second. ``now`` is monotonic seconds.

    With a link that is slower than the devices, a full log repeatedly has room for a moment: both lines are then
    written ever more rarely, as for links.
    """

    def __init__(self, now: float) -> None:
        self._state = UpAndDown(now)
        self._state.up(now)
        self._is_full = False
        self._full_since = now
        self._low = Repeats()
        self._was_low = False

    def full(self, shortage: str | None, now: float) -> None:
        """Handle the reason why the log refuses records; None while it does not."""
        if shortage is None:
            if self._is_full and (over := self._state.up(now)) is not None:
                after = approximate_duration(over.away_s)
                logger.warning("the log has room again: devices are acknowledged, after %s", after)
        elif not self._is_full or now - self._full_since >= STABLE_S:
            if not self._is_full:
                self._full_since = now
            if (change := self._state.down(shortage, now)) is not None:
                since = "" if change.was_up else f", for {approximate_duration(change.since_s)} now"
                logger.error("devices get no acknowledgements%s: %s", since, shortage)
        self._is_full = shortage is not None

    def low(self, warning: str | None, now: float) -> None:
        """Handle a warning that little space is left; None while there is enough."""
        if warning is not None and not self._was_low and self._low.due("low", now) is not None:
            logger.warning("%s", warning)
        self._was_low = warning is not None


# The node's metrics in Prometheus's text format, by the catalogue of ``config/metrics/``.

_PREFIX = "weft_edge_"
_LOSSES = [reason for reason in GapReason if reason not in (GapReason.RENAMED, GapReason.ABSENT)]
"""Reasons of gap notices in a log. `RENAMED` is for links only, since its records are still in the log."""


def render(status: NodeStatus) -> bytes:
    """Return all metrics now."""
    return exposition.render(EDGE_METRICS, samples(status))


def samples(status: NodeStatus) -> Iterator[AnySample]:
    """Yield the value of every metric of the catalogue."""
    yield from _counters(status)
    yield from _log(status)
    for name, number in status.streams().items():
        yield Sample("weft_edge_stream_next_seq", status.log.next_seq(number), (name,))
        yield Sample("weft_edge_stream_durable_end", status.log.durable_end(number), (name,))
        yield Sample("weft_edge_stream_bytes", status.log.stream_bytes(number), (name,))
        for reason in _LOSSES:
            lost = sum(gap.end - gap.first for gap in status.log.gaps(number) if gap.reason == reason)
            yield Sample("weft_edge_stream_lost_records", lost, (name, reason_name(reason)))
    for part in status.parts:
        yield from part.samples()
    for each in status.refusals:
        yield Sample("weft_edge_refusals_total", each.times, (each.bound, owner_name(each.owner)))
    yield Sample("weft_edge_clock_synchronised", status.is_clock_synchronised)
    yield Sample("weft_edge_start_time_seconds", status.started_ns / 1e9)
    yield build_info("weft_edge_build_info")


def _counters(status: NodeStatus) -> Iterator[Sample]:
    gauges = {metric.name for metric in EDGE_METRICS if metric.kind == "gauge"}
    for field, value in status.counted().items():
        name = _PREFIX + field
        yield Sample(name if name in gauges else f"{name}_total", value)


def _log(status: NodeStatus) -> Iterator[AnySample]:
    stats = status.log.stats()
    yield Sample("weft_edge_log_bytes", stats.bytes_on_disk)
    yield Sample("weft_edge_log_budget_bytes", stats.budget_bytes)
    yield Sample("weft_edge_log_segments", stats.segments)
    yield Sample("weft_edge_log_pending_bytes", stats.pending_bytes)
    yield Sample("weft_edge_log_records_total", stats.records)
    yield Sample("weft_edge_log_commits_total", stats.commits)
    yield Sample("weft_edge_log_written_bytes_total", stats.bytes_written)
    yield Sample("weft_edge_log_sync_seconds_total", stats.sync.seconds)
    yield _histogram("weft_edge_log_sync_latency_seconds", stats.sync)
    yield _histogram("weft_edge_ack_latency_seconds", stats.ack)
    yield Sample("weft_edge_log_unsafe_bytes", stats.unsafe_bytes)
    yield Sample("weft_edge_log_device_written_bytes_total", stats.device_bytes)
    yield Sample("weft_edge_log_payload_bytes_total", stats.payload_bytes)
    yield Sample("weft_edge_log_moved_bytes_total", stats.moved_bytes)
    yield Sample("weft_edge_log_write_amplification", write_amplification(stats) or 0)
    yield Sample("weft_edge_log_card_lifetime_seconds", status.card_lifetime_s(stats) or 0)
    yield Sample("weft_edge_log_full", status.log.shortage() is not None)
    yield Sample("weft_edge_log_low", status.low_water(stats) is not None)
    yield Sample("weft_edge_log_failed", stats.failed is not None)


def _histogram(name: str, counted: Histogram) -> HistogramSample:
    return HistogramSample(name, counted.bounds, counted.counts, counted.seconds)
