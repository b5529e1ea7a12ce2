"""The inputs of a derived stream, page by page, as one sequence of rows and gaps."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from operator import attrgetter

from weft.edge_node.functions.chain import FOR_EVER
from weft.edge_node.functions.contract import Gap, Row
from weft.protocols.batch import decode_columns, decode_header
from weft.protocols.columns import read_u32s
from weft.storage.segment_log import PageReader, SegmentLog
from weft.storage.segment_log.state.gaps import reason_name

PAGE_BYTES = 256 << 10
"""Encoded bytes of a page, as for links: a millisecond or two of work for functions is part of it."""
Event = Row | Gap
"""A gap without numbers marks a clock that was set back: the row after it is older than the one before."""
BACK_NS = 60_000_000_000
"""Age difference to the row before from which on, in an ordered input, the clock counts as set back. For smaller
corrections the input waits."""
_TIME = attrgetter("time")


class _Input:
    """One input, with the events that were read and not returned yet."""

    def __init__(self, name: str, stream: int, seq: int, last_time: int) -> None:
        self.name = name
        self.stream = stream
        self.read_to = seq
        """Number of the first unread record."""
        self.events: deque[tuple[int, Event]] = deque()
        """Each with its place in time: the time of the row, or of the latest before it when that is later."""
        self.last_time = last_time
        """Latest time of the rows read; 0 for none."""
        self.settled = 0
        """Time up to which, by the marks, every row was returned."""

    @property
    def seq(self) -> int:
        """Return the number of the first record that was not returned."""
        if not self.events:
            return self.read_to
        _, first = self.events[0]
        return first.seq if isinstance(first, Row) else first.first


class Inputs:
    """The inputs of one derived stream, as one sequence that is the same at any time and for any division into pages.

    Rows of one input come in their order. Among several inputs the row with the least time comes first, at equal times
    the row of the input named first; so a row waits until nothing older can come from the others.

    Streams of functions are not always in the order of time: a row that was held back follows later ones of other keys.
    Such a row is placed at the time of the latest before it, so that the merged order depends on nothing else.
    """

    def __init__(
        self,
        log: SegmentLog,
        pages: PageReader,
        streams: Mapping[str, int],
        positions: Mapping[str, tuple[int, int]],
        wall_clock: Callable[[], int],
        *,
        unordered: Collection[str] = (),
    ) -> None:
        """Resume at some positions.

        Args:
            streams: name -> number, in the order in which the configuration names them.
            positions: name -> (first record to return, latest time of a row before it or 0).
            wall_clock: ns since 1970.
            unordered: names of the inputs whose rows may have times before those of earlier ones.
        """
        self._unordered = unordered
        self._log = log
        self._pages = pages
        self._wall_clock = wall_clock
        self._inputs = [_Input(name, stream, *positions[name]) for name, stream in streams.items()]

    def positions(self) -> dict[str, int]:
        """Return the number of the first record of each input that was not returned."""
        return {each.name: each.seq for each in self._inputs}

    def lag(self) -> int:
        """Return the number of durable records that were not returned."""
        return sum(self._log.durable_end(each.stream) - each.seq for each in self._inputs)

    async def read(self) -> list[Event]:
        """Return the next rows and gaps, some at a time; none when the order of the next is not decided yet.

        Raises:
            OSError, LogFailed: as ``PageReader.read``.
        """
        if len(self._inputs) == 1:
            (only,) = self._inputs
            # A single input needs no ordering, so nothing waits.
            return await self._fill(only) if only.read_to < self._log.durable_end(only.stream) else []
        while True:
            slowest = min(self._inputs, key=self._known_until)
            found = self._merged(self._known_until(slowest))
            if not found and slowest.read_to >= self._log.durable_end(slowest.stream):
                # Nothing of it can be read now. Of others a page is, as their clock may have been set back.
                unread = (each for each in self._inputs if not each.events)
                slowest = next((each for each in unread if each.read_to < self._log.durable_end(each.stream)), slowest)
            if found or slowest.read_to >= self._log.durable_end(slowest.stream):
                return found
            place = slowest.last_time
            for event in await self._fill(slowest):
                if isinstance(event, Row):
                    place = max(place, event.time)
                elif event.first == event.end:
                    place = 0
                slowest.events.append((place, event))

    def times(self) -> dict[str, int]:
        """Return the latest time of the returned rows of each input, for inputs without remaining rows."""
        return {each.name: _time_before(*each.events[0]) if each.events else each.last_time for each in self._inputs}

    def until(self) -> int:
        """Return the time up to which ticks may come: no row that is yet to be returned has an earlier place."""
        return min(self._known_until(each) if not each.events else each.events[0][0] - 1 for each in self._inputs)

    def settled(self) -> int | None:
        """Return the time up to which every row of the unordered inputs was returned; None without such inputs."""
        unordered = [each for each in self._inputs if each.name in self._unordered]
        # By their marks, which lag behind ``until``: the rows read so far prove nothing, as a later row may be older.
        for each in unordered:
            time, seq = self._log.mark(each.stream, self._wall_clock())
            if seq <= each.seq:
                each.settled = max(each.settled, time - 1)
        return min((each.settled for each in unordered), default=None)

    # --- inside

    async def _fill(self, each: _Input) -> list[Event]:
        """Read a page of an input."""
        page = await self._pages.read(each.stream, each.read_to, PAGE_BYTES)
        gone, last, found = deque(page.gone), each.last_time, list[Event]()
        for data in page.batches:
            rows = rows_of(data, each.name, each.read_to)
            while gone and rows and gone[0].first < rows[0].seq:
                found.append(_gap(each.name, *gone.popleft(), last))
            if rows:
                if each.name in self._unordered:
                    found += rows
                    last = max(last, *map(_TIME, rows))
                else:
                    last = _add_with_steps(found, each.name, rows, last)
        found += [_gap(each.name, *left, last) for left in gone]
        each.last_time, each.read_to = last, page.next_seq
        return found

    def _known_until(self, each: _Input) -> int:
        """Return the time before which no unread row can have its place."""
        if each.read_to < self._log.durable_end(each.stream):
            return each.last_time - 1
        time, seq = self._log.mark(each.stream, self._wall_clock())
        # Less one: with a coarse clock the next record may have this same time.
        return (max(time, each.last_time) if seq <= each.read_to else each.last_time) - 1

    def _merged(self, until: int) -> list[Event]:
        found: list[Event] = []
        while True:
            time, first = FOR_EVER, None
            for each in self._inputs:
                if each.events and each.events[0][0] < time:
                    time, first = each.events[0][0], each
            if first is None or time > until:
                return found
            found.append(first.events.popleft()[1])


def _add_with_steps(found: list[Event], name: str, rows: list[Row], last: int) -> int:
    """Add rows, with a gap without numbers before each for which the clock was set back. Return the latest time since
    then; ``last`` is the latest before the rows."""
    if min(map(_TIME, rows)) > max(last, rows[0].time) - BACK_NS // 2:
        found += rows
        return max(last, rows[-1].time)
    for row in rows:
        if row.time < last - BACK_NS:
            found.append(Gap(name, row.seq, row.seq, "clock", last))
            last = row.time
        found.append(row)
        last = max(last, row.time)
    return last


def _time_before(place: int, event: Event) -> int:
    return event.after if isinstance(event, Gap) and event.first == event.end else place


def _gap(name: str, first: int, end: int, reason: int | None, after: int) -> Gap:
    return Gap(name, first, end, reason_name(reason) if reason is not None else "retention", after)


def rows_of(data: bytes, name: str, seq: int) -> list[Row]:
    """Return the rows of a batch of the log from number ``seq`` on, in order. Their payloads are not decoded."""
    header = decode_header(data)
    columns = decode_columns(data, header)
    times = array("q")
    times.frombytes(columns.times)
    keys = columns.keys
    payload = bytes(columns.payload)
    headers = columns.headers
    first = max(0, seq - header.base_seq)
    base = header.base_seq
    rows = [
        Row(time, keys[key], read := payload[start:end], {}, (), at, name, read)
        for at, (time, key, (start, end)) in enumerate(
            zip(times, read_u32s(columns.key_index), pairwise(read_u32s(columns.payload_offsets)), strict=True), base
        )
    ]
    if headers:
        for index, pairs in headers.items():
            rows[index].headers = pairs
    return rows[first:] if first else rows
