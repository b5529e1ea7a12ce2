"""The inputs of a derived stream, page by page, as one sequence of rows and gaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from weft.edge_node.functions.chain import FOR_EVER
from weft.edge_node.functions.contract import Gap, Row
from weft.edge_node.functions.runtime.rows import rows_of
from weft.protocols.segment import GapReason
from weft.storage.segment_log.read.pages import LogPage

PAGE_BYTES = 256 << 10
"""Encoded bytes of a page, as those of links are: a millisecond or two of work for functions is part of it."""
Event = Row | Gap


class Pages(Protocol):
    """Method of ``PageReader`` that inputs use."""

    async def read(self, stream: int, seq: int, bytes_max: int, records_max: int | None = None) -> LogPage:
        """Return the next page."""
        ...


class Log(Protocol):
    """Methods of the segment log that inputs use."""

    def durable_end(self, stream: int) -> int:
        """Return the number after the last durable record."""
        ...

    def mark(self, stream: int, now: int) -> tuple[int, int]:
        """Return (T, N): every record of the stream taken in up to time T has a seq below N."""
        ...


class _Input:
    """One input: what was read of it and not handed out."""

    def __init__(self, name: str, stream: int, seq: int, last_time: int) -> None:
        self.name = name
        self.stream = stream
        self.read_to = seq
        """Number of the first record that was not read."""
        self.events: deque[Event] = deque()
        self.last_time = last_time
        """Time of the last row that was read; 0 for none."""

    @property
    def seq(self) -> int:
        """Return the number of the first record that was not handed out."""
        if not self.events:
            return self.read_to
        first = self.events[0]
        return first.seq if isinstance(first, Row) else first.first


class Inputs:
    """The inputs of one derived stream. What it hands out is the same whenever it is asked, however pages are cut.

    Rows of one input come in their order. Of several inputs the row with the least time comes first, at the same time
    that of the input that is named first; so a row waits until nothing older can come from the others.
    """

    def __init__(
        self,
        log: Log,
        pages: Pages,
        streams: Mapping[str, int],
        positions: Mapping[str, tuple[int, int]],
        wall_clock: Callable[[], int],
    ) -> None:
        """Go on at some positions.

        Args:
            streams: name -> number, in the order in which the configuration names them.
            positions: name -> (first record to hand out, time of the row before it or 0).
            wall_clock: ns since 1970.
        """
        self._log = log
        self._pages = pages
        self._wall_clock = wall_clock
        self._inputs = [_Input(name, stream, *positions[name]) for name, stream in streams.items()]

    def positions(self) -> dict[str, int]:
        """Return the number of the first record of each input that was not handed out."""
        return {each.name: each.seq for each in self._inputs}

    def lag(self) -> int:
        """Return how many numbers that are durable were not handed out."""
        return sum(self._log.durable_end(each.stream) - each.seq for each in self._inputs)

    async def read(self) -> list[Event]:
        """Return the next rows and gaps, some at a time; none when nothing more can be said now.

        Raises:
            OSError, LogFailed: as ``PageReader.read``.
        """
        if len(self._inputs) == 1:
            (only,) = self._inputs
            if only.read_to < self._log.durable_end(only.stream):
                await self._fill(only)
            found = list(only.events)
            only.events.clear()
            return found
        while True:
            slowest = min(self._inputs, key=self._known_until)
            found = self._merged(self._known_until(slowest))
            if found or slowest.read_to >= self._log.durable_end(slowest.stream):
                return found
            await self._fill(slowest)

    def until(self) -> int:
        """Return the time up to which every row of all inputs was handed out."""
        return min(self._known_until(each) if not each.events else _time(each.events[0]) - 1 for each in self._inputs)

    # --- inside

    async def _fill(self, each: _Input) -> None:
        page = await self._pages.read(each.stream, each.read_to, PAGE_BYTES)
        gone = deque(page.gone)
        for data in page.batches:
            rows = rows_of(data, each.name, each.read_to)
            while gone and rows and gone[0].first < rows[0].seq:
                self._add_gap(each, *gone.popleft())
            if rows:
                each.events.extend(rows)
                each.last_time = rows[-1].time
        for left in gone:
            self._add_gap(each, *left)
        each.read_to = page.next_seq

    def _add_gap(self, each: _Input, first: int, end: int, reason: int | None) -> None:
        name = GapReason(reason).name.lower() if reason is not None else "retention"
        each.events.append(Gap(each.name, first, end, name, each.last_time))

    def _known_until(self, each: _Input) -> int:
        """Return the time up to which all rows of an input were read."""
        if each.read_to < self._log.durable_end(each.stream):
            return each.last_time - 1
        time, seq = self._log.mark(each.stream, self._wall_clock())
        # Less one: the next record may be taken in at this very time, if the clock is coarse.
        return (time if seq <= each.read_to else each.last_time) - 1

    def _merged(self, until: int) -> list[Event]:
        found: list[Event] = []
        while True:
            time, first = FOR_EVER, None
            for each in self._inputs:
                if each.events and (own := _time(each.events[0])) < time:
                    time, first = own, each
            if first is None or time > until:
                return found
            found.append(first.events.popleft())


def _time(event: Event) -> int:
    return event.time if isinstance(event, Row) else event.after
