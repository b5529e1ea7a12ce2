"""Numbers of a stream's payloads over time, as rows for charts: one row a value, or one an interval."""

from __future__ import annotations

import asyncio
import bisect
import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.views import FoundRecord, Search
from weft.hub_api.answers import ApiError, moment_of, parse_moment
from weft.hub_api.records import SeriesRow
from weft.protocols.chunk_index import StreamKey
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.topics import InvalidTopic, check_filter, matches

SERIES_MAX = 200
"""Number of series of an answer: pairs of edge and key, each with every field."""
FIELDS_MAX = 8
NAMES_MAX = 16
"""Names in the path of a field: each is a pass over the part of the payload that is in it."""
VALUES_MAX = 100_000
"""Number of values that one answer is made of: each takes some 130 bytes until then."""
RECORDS_READ_MAX = 50_000
RECORD_BYTES_READ_MAX = 32 << 20
"""Records, and bytes of their payloads, that one request reads in all shards together."""
READ_AT_ONCE = 2_000
STEP_NS_MAX = 31 * 86_400 * 10**9
ROW_BYTES = 101
"""Bytes of a row in an answer, beside its edge, key and field: a device chooses how long its keys are."""
ITSELF = "value"
"""Name of the number in a payload that is one."""


class Point(NamedTuple):
    """A number of a record."""

    time: int
    """Nanoseconds since 1970."""
    value: float


class SeriesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the request. Times are nanoseconds, those of the span since 1970."""

    since: int
    until: int | None
    late: int
    fields: str
    edge: str | None
    key: str
    step: int
    value: str
    limit: int


class SeriesRequest(NamedTuple):
    """Span, fields and form of a request. Times are nanoseconds since 1970."""

    since: int
    until: int
    received_end: int
    fields: tuple[tuple[str, ...], ...]
    """Paths of numbers; an empty one is the payload itself."""
    edge: str | None
    key_filter: str
    step: int
    """Length of an interval in nanoseconds; 0 for every value."""
    value: str
    rows_max: int

    @classmethod
    def of(cls, query: SeriesQuery) -> SeriesRequest:
        """Return what a query asks for.

        Raises:
            ApiError: 400.
        """
        until = (1 << 62) if query.until is None else query.until
        fields = query.fields.split(",")
        if len(fields) > FIELDS_MAX or any(len(each) > 256 or each.count(".") >= NAMES_MAX for each in fields):
            advice = f"ask for {FIELDS_MAX} at most: fields=celsius,motor.rpm"
            raise ApiError(400, "there are too many fields, or too long ones", advice)
        try:
            check_filter(query.key)
        except InvalidTopic as error:
            raise ApiError(400, str(error), "write key= as a filter of MQTT: plant/+/temperature") from None
        for name, duration in (("late", query.late), ("step", query.step)):
            if duration > STEP_NS_MAX:
                raise ApiError(400, f"{name}= is longer than 31 days", "ask for a shorter one")
        return cls(
            query.since,
            until,
            min(until + query.late, 1 << 62),
            tuple(tuple(filter(None, each.split("."))) for each in fields),
            query.edge,
            query.key,
            query.step,
            query.value,
            query.limit,
        )


class SeriesReading:
    """The values of one answer, which are read shard by shard within one budget.

    Args:
        bytes_max: longest answer; the last row may go beyond.
    """

    def __init__(self, stream: StreamKey, payload: PayloadKind, wanted: SeriesRequest, bytes_max: int) -> None:
        self._stream, self._payload, self._wanted, self._bytes_max = stream, payload, wanted, bytes_max
        self._search = Search(records_bytes=RECORD_BYTES_READ_MAX)
        self._left = RECORDS_READ_MAX
        self._values_left = VALUES_MAX
        self._points: dict[tuple[str, str, str], list[Point]] = {}
        """Numbers by edge, key and field."""
        self._lanes: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """Numbers and times of the records of each edge and log."""
        self.is_whole = True

    def continues(self) -> bool:
        """Return whether more may be read. If not, the answer is not whole."""
        if self._search.looks_left > 0 and not self._search.is_spent and min(self._left, self._values_left) > 0:
            return True
        self.is_whole = False
        return False

    async def read(self, state: ShardState, reader: RecordReader) -> None:
        """Read a shard's part. Raises as ``RecordReader.read``."""
        end, wanted = state.next_offset.get(self._stream, 0), self._wanted
        beginning = await reader.first(state, self._stream, self._search, since=wanted.since)
        if beginning.offset is None:
            self.is_whole = False
            return
        offset, chunk = beginning.offset, beginning.chunk
        while offset < end and self.continues():
            limit = min(READ_AT_ONCE, self._left)
            helping = await reader.read(
                self._stream, offset, end, limit, payload=self._payload, chunk=chunk, search=self._search
            )
            self._left -= max(len(helping.records), 1)
            if await asyncio.to_thread(self._take, helping.records):
                return
            if helping.next_offset == offset and helping.next_chunk is None:
                return  # retention or an erasure has removed the rest
            offset, chunk = helping.next_offset, helping.next_chunk or 0

    def _take(self, records: list[FoundRecord]) -> bool:
        """Add records. Return whether the end of the span is behind them."""
        wanted = self._wanted
        for record, _, long in records:
            if parse_moment(record.received) >= wanted.received_end:
                return True
            time, edge = parse_moment(record.time), record.edge
            if wanted.edge is not None and edge != wanted.edge:
                continue
            self._lanes.setdefault((edge, record.log), []).append((record.seq, time))
            key = record.key
            if not wanted.since <= time < wanted.until or not matches(wanted.key_filter, key):
                continue  # it is there, whatever its clock says: no gap
            if "payload" in long:  # beyond ``PAYLOAD_BYTES_MAX``
                self.is_whole = False
            if record.payload is UNSET:
                continue
            for name, value in numbers(record.payload, wanted.fields):
                series = (edge, key, name)
                if series not in self._points and len(self._points) >= SERIES_MAX * len(wanted.fields):
                    self.is_whole = False
                    continue
                self._values_left -= 1
                self._points.setdefault(series, []).append(Point(time, value))
        return False

    def rows(self) -> list[SeriesRow]:
        """Return the rows by time. A row without a value is where records of the edge are missing."""
        gaps: dict[str, list[tuple[int, int]]] = {}
        for (edge, _), numbered in self._lanes.items():
            gaps.setdefault(edge, []).extend(missing(numbered))
        step, most = self._wanted.step, self._wanted.rows_max
        begins = {edge: gap_begins(found, step) for edge, found in gaps.items()}
        series = [
            zip(joined(points, step, self._wanted.value, begins[edge]), itertools.repeat(at))
            for at, ((edge, _, _), points) in enumerate(self._points.items())
        ]
        labels = list(self._points)
        sizes = [len(msgspec.json.encode(each)) + ROW_BYTES for each in labels]
        found, size = list[SeriesRow](), 0
        # One after the other by time: all rows of all series would be a hundred times as many as are wanted.
        for row, at in heapq.merge(*series, key=lambda each: each[0].time):
            if len(found) >= most or size >= self._bytes_max:
                self.is_whole = False
                break
            found.append(SeriesRow(moment_of(row.time), *labels[at], row.value, row.values))
            size += sizes[at]
        return found


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUMBER = msgspec.json.Decoder(int | float)


def numbers(payload: str, fields: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each wanted field that is a number."""
    opened: dict[tuple[str, ...], Mapping[str, msgspec.Raw]] = {}
    for path in fields:
        part: str | msgspec.Raw = payload
        try:
            # Only what is on the way is made: a megabyte of brackets would be half a million objects.
            for depth, name in enumerate(path):
                if (way := path[:depth]) not in opened:
                    opened[way] = {}  # if it is no object
                    opened[way] = _OBJECT.decode(part)
                part = opened[way][name]
            found = _NUMBER.decode(part)
        except (msgspec.DecodeError, KeyError, RecursionError):  # too deep for a decoder: a device sends what it likes
            continue
        if abs(found) < 1e300:
            yield ".".join(path) or ITSELF, float(found)


def missing(numbered: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the times before and behind each run of missing numbers.

    Args:
        numbered: numbers and times of one lane's records, in any order.
    """
    numbered.sort()
    return [
        (time, later)
        for (number, time), (following, later) in itertools.pairwise(numbered)
        if following > number + 1 and later > time
    ]


def gap_begins(gaps: Iterable[tuple[int, int]], step: int) -> list[int]:
    """Return the times before the gaps that no interval of ``step`` bridges, ascending."""
    if step:
        gaps = ((begin - begin % step, end - end % step) for begin, end in gaps)
    return sorted({begin for begin, end in gaps if begin < end})


class Joined(NamedTuple):
    """A row of one series."""

    time: int
    value: float | None
    """None in a gap."""
    values: int


def joined(points: list[Point], step: int, value: str, begins: list[int]) -> Iterator[Joined]:
    """Yield the rows of a series by time: of each interval of ``step``, or of each point without one. Between two of
    them is a row without a value if a gap begins there, however many do.

    Args:
        begins: times before gaps, ascending.
    """
    points.sort()
    rows: Iterable[Joined] = (Joined(each.time, each.value, 1) for each in points)
    if step:
        grouped = itertools.groupby(points, lambda each: each.time - each.time % step)
        joined_values = ((time, [each.value for each in some]) for time, some in grouped)
        rows = (Joined(time, _one(values, value), len(values)) for time, values in joined_values)
    before: Joined | None = None
    for row in rows:
        if before is not None:
            at = bisect.bisect_left(begins, before.time)
            if at < len(begins) and begins[at] < row.time:
                yield Joined(begins[at] + (step // 2 or 1), None, 0)
        yield row
        before = row


def _one(values: list[float], value: str) -> float:
    if value == "mean":
        return sum(values) / len(values)
    return {"last": values[-1], "min": min(values), "max": max(values)}[value]
