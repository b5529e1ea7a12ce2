"""Contents of a log, from its files alone: for ``weft edge status`` of a stopped node, and for queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.edge_node.inspect.view.cursor import DamagedBytes
from weft.edge_node.inspect.view.directory import LogDirectory
from weft.edge_node.inspect.view.segment_view import SegmentView
from weft.protocols.batch import BatchHeader
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import Footer, GapNotice
from weft.storage.segment_log.state.gaps import merged
from weft.storage.segment_log.walk.walker import Damage, Torn

RATE_WINDOW_NS = 3_600 * 10**9
"""Newest part of a log from which its growth is computed: an hour, as on a running node."""
RATE_WINDOW_NS_MIN = 60 * 10**9


@dataclass
class StreamSummary:
    """One stream of a log."""

    number: int
    held: RangeSet = field(default_factory=RangeSet)
    """Number of records present."""
    next_seq: int = 0
    gaps: list[GapNotice] = field(default_factory=list)
    first_time: int | None = None
    """Times of the first and the last present record, ns since 1970."""
    last_time: int | None = None

    def saw(self, first_time: int, last_time: int) -> None:
        """Count records of these times."""
        self.first_time = first_time if self.first_time is None else min(self.first_time, first_time)
        self.last_time = last_time if self.last_time is None else max(self.last_time, last_time)


@dataclass
class LogSummary:
    """Summary of a log from its files."""

    log_id: int | None = None
    """Log id; None when every header is damaged."""
    segments: int = 0
    bytes: int = 0
    """Bytes of all segment files, including reserved space."""
    streams: dict[str, StreamSummary] = field(default_factory=dict)
    damage: list[DamagedBytes] = field(default_factory=list)
    """Damage, only in files without a valid index: of other files only the index was read."""
    torn_bytes: int = 0
    """Bytes at the end that the next start will cut: a commit of which nothing was acknowledged."""
    growth: list[tuple[int, int, int]] = field(default_factory=list)
    """(first time, last time, bytes) of each segment with records."""

    def of(self, name: str, number: int) -> StreamSummary:
        """Return the summary of a stream, created if it is new."""
        return self.streams.setdefault(name, StreamSummary(number))

    def bytes_per_second(self) -> float | None:
        """Return the growth of the log in its last hour with records, or in a shorter history; None if there is too
        little."""
        last = max((end for _, end, _ in self.growth), default=0)
        total, first = 0, last
        for start, end, size in reversed(self.growth):
            begin = max(start, last - RATE_WINDOW_NS)
            if end < begin:
                break
            span = max(end - start, 1)
            total += round(size * (end - begin + 1) / (span + 1))
            first = min(first, begin)
        return total * 1e9 / (last - first) if last - first >= RATE_WINDOW_NS_MIN else None


def summarise(directory: LogDirectory) -> LogSummary:
    """Read the index of every sealed segment, and the whole of segments without one.

    Raises:
        NoLog: there is no log.
        OSError: a file cannot be read.
        UnsupportedVersion: a later release wrote the log.
    """
    summary = LogSummary()
    positions = directory.require()
    for position in positions:
        view = directory.open(position)
        if view is None:
            continue
        try:
            _add(summary, view, is_newest=position == positions[-1])
        finally:
            view.close()
    for stream in summary.streams.values():
        stream.next_seq = max(stream.next_seq, stream.held.end, *(gap.end for gap in stream.gaps), 0)
        # Notices are carried forward when their segment is deleted: a later segment may repeat one.
        stream.gaps = merged(stream.gaps)
        for gap in stream.gaps:
            stream.held.remove(gap.first, gap.end)
    return summary


def _add(summary: LogSummary, view: SegmentView, *, is_newest: bool) -> None:
    summary.segments += 1
    summary.bytes += view.size()
    if view.header is not None:
        summary.log_id = view.header.log_id
    for number, next_seq in view.next_seqs().items():
        stream = summary.of(view.name_of(number), number)
        stream.next_seq = max(stream.next_seq, next_seq)
    spans = [*_by_index(summary, view, view.footer)] if view.footer else [*_by_entries(summary, view, is_newest)]
    if spans:
        first, last = min(first for first, _ in spans), max(last for _, last in spans)
        summary.growth.append((first, last, view.end if view.footer else view.written_end()))


def _by_index(summary: LogSummary, view: SegmentView, footer: Footer) -> Iterator[tuple[int, int]]:
    """Count a sealed segment. Yield first and last time of its streams."""
    for lane in (*footer.lanes, *footer.moved):
        stream = summary.of(view.name_of(lane.stream), lane.stream)
        stream.held.update(lane.ranges)
        stream.saw(lane.first_time, lane.last_time)
        yield lane.first_time, lane.last_time
    for gap in footer.gaps:
        summary.of(view.name_of(gap.stream), gap.stream).gaps.append(gap)


def _by_entries(summary: LogSummary, view: SegmentView, is_newest: bool) -> Iterator[tuple[int, int]]:
    """Count a segment that has no index. Yield first and last time of its batches."""
    for item in view.walk(0, is_newest=is_newest):
        if isinstance(item, Torn):
            summary.torn_bytes = item.end - item.offset
        elif isinstance(item, Damage):
            summary.damage.append(DamagedBytes(view.path, item.offset, item.end))
        elif isinstance(item.value, dict):
            view.learn(item.value)
            for number, named in item.value.items():
                summary.of(named.name, number)
        elif isinstance(item.value, GapNotice):
            summary.of(view.name_of(item.value.stream), item.value.stream).gaps.append(item.value)
        elif isinstance(item.value, BatchHeader):
            header = item.value
            stream = summary.of(view.name_of(header.stream), header.stream)
            stream.held.add(header.base_seq, header.end_seq)
            stream.saw(header.first_time, header.last_time)
            yield header.first_time, header.last_time
