"""JSON views of shard states. Times are RFC 3339 text, UTC, with nanoseconds."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from weft.hub_api.answers import GapView, Moment, OpenGapView, SeqRange, moment, moment_of
from weft.hub_api.records import RecordOfStream
from weft.hub_api.streams import (
    HeldBackReason,
    LaneCompleteness,
    LaneOfStream,
    MarkView,
    RetiredView,
    SkippedOffsets,
    SkippedRun,
    StreamOf,
    TableColumn,
    TableOfStream,
)
from weft.protocols import batch as batches
from weft.protocols.batch import Flag, header_json
from weft.protocols.chunk import CLOCKS, BatchTimes
from weft.protocols.chunk_index import GapRange, Mark, StreamKey
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PAYLOAD_BYTES_MAX, PayloadKind, keeps, label_of, strictest
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import (
    Behind,
    HeldBack,
    LostOf,
    has_spoken,
    held_back,
    is_heard,
    late,
    never_came,
    not_started,
    severity,
)
from weft.protocols.shard.completeness import moment_of as moment_of_lane
from weft.protocols.shard.lane_state import LaneState, OpenGap, RetiredBy, new_name, open_gap, renamed
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import Forgotten
from weft.storage.hub_keys import latest_key, table_key

if TYPE_CHECKING:
    from weft.storage.table_writer.service import TableStatus


# Summaries of streams for their list: a part for each shard, counted in slices, so that any number of lanes never
# blocks the event loop.
#
# Ten thousand edges with twenty streams are 200,000 lanes, and a walk over them takes a good part of a second.

SLICE_LANES = 2_000
"""Number of lanes walked without a pause: some milliseconds."""
REASONS_MAX = 3
"""Maximum number of reasons in a summary."""


class LaneFacts(NamedTuple):
    """Knowledge of a process beside the states of lanes, at one moment."""

    now: int
    """Nanoseconds since 1970 by the hub's clock."""
    peers: bool
    """True if another cluster may have records that this one lacks."""
    behind: Behind = lambda _: None
    lost: LostOf = lambda *_: None
    """Lost records, and like ``behind`` of lanes whose edges are linked to this node (``completeness``)."""

    def held_back(self, lane: Lane, held: LaneState) -> HeldBack | None:
        """Return the reason why a lane that counts does not advance; None if it does."""
        return held_back(lane, held, self.now, peers=self.peers, behind=self.behind, lost=self.lost)


class StreamPart(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a stream in one shard. A list of them is in the store, so fields are only added, at the end."""

    tenant: str
    stream: str
    shard: int
    is_there: bool
    """True if the shard has records or lanes of it, and it is not deleted."""
    end: int | None
    """Offset after its last record; None without records."""
    fields: list[str]
    skipped: int
    """Number of records that operators skipped in its table."""
    lanes: int
    edges: int
    payloads: list[int]
    """Kinds that edges declare."""
    counts: bool
    """True if a lane counts for completeness."""
    is_known: bool
    """True if every lane that counts has a moment."""
    complete_up_to: int | None
    """Earliest moment of the lanes that count and have one."""
    waits_for: HeldBack | None
    """Reason of the lane that the moment waits for: one without a moment, or that with the earliest."""
    heard: list[str]
    """Those of the expected names and patterns of which something was heard."""


class StreamTally:
    """Facts about the lanes of a stream in one shard, added one by one."""

    def __init__(self, facts: LaneFacts) -> None:
        self._facts = facts
        self.lanes = 0
        self._edges: set[str] = set()
        self._heard: set[str] = set()
        self._kinds: set[int] = set()
        self._earliest: int | None = None
        self._slowest: tuple[Lane, LaneState] | None = None
        self._unknown: tuple[Lane, LaneState] | None = None
        self._counts = False

    def add(self, lane: Lane, held: LaneState, *, counts: bool) -> None:
        """Add a lane.

        Args:
            counts: whether it counts for completeness, and did not end by a rename.
        """
        self.lanes += 1
        self._edges.add(lane.edge)
        self._kinds.add(held.payload)
        if has_spoken(held):
            self._heard.add(lane.edge)
        if not counts:
            return
        self._counts = True
        moment = moment_of_lane(held, peers=self._facts.peers)
        if moment is None:
            self._unknown = self._unknown or (lane, held)
        elif self._earliest is None or moment < self._earliest:
            self._earliest, self._slowest = moment, (lane, held)

    def part(self, state: ShardState, key: StreamKey, expected: Iterable[str]) -> StreamPart:
        """Return the facts, with those of the stream in a shard's state."""
        waits_for = self._unknown or self._slowest
        why = None
        if waits_for is not None:
            facts = self._facts
            why = facts.held_back(*waits_for) or late(*waits_for, facts.now, peers=facts.peers)
        skips = state.skips.get(key, ())
        return StreamPart(
            *key,
            state.shard,
            state.has_stream(*key),
            state.next_offset.get(key),
            state.stream_fields(*key),
            sum(skip.end - skip.first for skip in skips),
            self.lanes,
            len(self._edges),
            sorted(self._kinds),
            self._counts,
            self._unknown is None,
            self._earliest,
            why,
            [each for each in expected if is_heard(each, self._heard)],
        )


class StreamSummary(NamedTuple):
    """Facts about the lanes of a stream, over all shards."""

    lanes: int
    edges: int
    payload: PayloadKind
    """The payload kind that a new table of the stream would get: the strictest kind that an edge declares."""
    complete_up_to: int | None
    """Nanoseconds since 1970; None while the hub has heard nothing from a lane that counts, or from an expected
    edge."""
    held_back_by: list[HeldBack] = []
    """The edges that the moment waits for: expected ones that never came, and that of the lane with the earliest
    moment, or without one; at most ``REASONS_MAX``."""


def renamed_lanes(states: Sequence[ShardState], tenant: str, stream: str, *, peers: bool) -> set[Lane]:
    """Return the lanes of a stream that ended by a rename. The two names of a log may be in different shards."""
    found: dict[Lane, LaneState] = {}
    for state in states:
        for lane in state.stopped_lanes(tenant, stream):
            found[lane] = held = state.lanes[lane]
            if (named := new_name(lane, held)) is not None:
                found.update((named, each.lanes[named]) for each in states if named in each.lanes)
    return renamed(found, peers=peers)


async def stream_parts(
    states: Sequence[ShardState], key: StreamKey, expected: Iterable[str], facts: LaneFacts
) -> list[StreamPart]:
    """Return the part of a stream in each shard. Chunks may be applied meanwhile: moments only advance, so an older one
    claims nothing false.

    Args:
        states: of all shards.
        expected: names and patterns of edges; without all of them there is no moment.
    """
    ended = renamed_lanes(states, *key, peers=facts.peers)
    parts = []
    for state in states:
        tally = StreamTally(facts)
        names = state.stream_lane_names(*key)
        for start in range(0, len(names), SLICE_LANES):
            for lane in names[start : start + SLICE_LANES]:
                held = state.lanes.get(lane)
                if held is not None:  # it has not left the state meanwhile
                    tally.add(lane, held, counts=held.counts and lane not in ended)
            await asyncio.sleep(0)
        parts.append(tally.part(state, key, expected))
    return parts


def merged(parts: Sequence[StreamPart], expected: Iterable[str]) -> StreamSummary:
    """Return the summary of a stream from its parts of all shards."""
    heard = {each for part in parts for each in part.heard}
    reasons = [never_came(each) for each in dict.fromkeys(expected) if each not in heard]
    counting = [part for part in parts if part.counts]
    is_whole = bool(counting) and all(part.is_known for part in counting) and not reasons
    earliest = min((part.complete_up_to for part in counting if part.complete_up_to is not None), default=None)
    slowest = [part for part in counting if not part.is_known] or [
        part for part in counting if part.complete_up_to == earliest
    ]
    if slowest and (why := slowest[0].waits_for) is not None:
        reasons = [*reasons[: REASONS_MAX - 1], why]
    return StreamSummary(
        sum(part.lanes for part in parts),
        sum(part.edges for part in parts),
        strictest({kind for part in parts for kind in part.payloads}),
        earliest if is_whole else None,
        reasons[:REASONS_MAX],
    )


View = dict[str, Any]


def _ranges(ranges: Iterable[tuple[int, int]]) -> list[SeqRange]:
    return [SeqRange(first, end) for first, end in ranges]


_REASONS = {reason.value: reason.name.lower() for reason in GapReason}


def gap_views(gaps: Iterable[GapRange]) -> list[GapView]:
    """Return ranges of numbers whose records never come, with the reasons."""
    return [GapView(gap.first, gap.end, reason_name(gap.reason)) for gap in gaps]


def reason_name(reason: int) -> str:
    """Return the name of a gap's reason; its number if a later release has given it."""
    return _REASONS.get(reason, str(reason))


def _mark(mark: Mark | None) -> MarkView | None:
    return None if mark is None else MarkView(moment_of(mark.time), mark.seq)


def _who(lane: Lane, shard: int) -> View:
    return {"edge": lane.edge, "log": format_log_id(lane.log_id), "shard": shard}


LaneOf = tuple[int, Lane, LaneState]
"""(shard, lane, state of the lane)."""


def lane_view(lane: Lane, held: LaneState, shard: int) -> LaneOfStream:
    """Return the hub's knowledge of a lane."""
    return LaneOfStream(
        edge=lane.edge,
        log=format_log_id(lane.log_id),
        shard=shard,
        epoch=held.epoch,
        ranges=_ranges(held.ranges),
        gaps=gap_views(held.gaps),
        mark=None if not_started(held) else _mark(held.mark),
        newest_mark=None if not_started(held) else _mark(held.newest_mark),
        last_word=_mark(held.last_word),
        retired=_retired(held),
        open_gap=_open_gap(lane, held),
        topics=held.topics,
        payload=label_of(held.payload),
    )


def _retired(held: LaneState) -> RetiredView | None:
    retired = held.retired
    if retired is None:
        return None
    by = RetiredBy(retired.by).name.lower() if retired.by in RetiredBy._value2member_map_ else str(retired.by)
    return RetiredView(moment_of(retired.time), by, retired.reason)


def open_gap_view(gap: OpenGap) -> OpenGapView:
    """Return a loss without a number: from a number on, between two moments."""
    return OpenGapView(
        edge=gap.edge,
        log=format_log_id(gap.log_id),
        first=gap.first,
        records=None,
        since=moment(gap.since),
        until=moment_of(gap.until),
        other_lanes=gap.others,
        why=gap.why,
    )


def _open_gap(lane: Lane, held: LaneState, *, peers: bool = False) -> OpenGapView | None:
    gap = open_gap(lane, held, peers=peers)
    return None if gap is None else open_gap_view(gap)


def skipped_views(states: Iterable[ShardState], tenant: str, stream: str) -> list[SkippedOffsets]:
    """Return the offsets of a stream that operators skipped in its table."""
    return [
        SkippedOffsets(
            shard=state.shard,
            first_offset=skip.first,
            end_offset=skip.end,
            since=moment_of(skip.time),
            reason=skip.reason,
            records=[SkippedRun(run.edge, format_log_id(run.log_id), run.first, run.end) for run in skip.runs],
        )
        for state in states
        for skip in state.skips.get((tenant, stream), ())
    ]


def completeness_view(lane: Lane, held: LaneState, shard: int, *, peers: bool = False) -> LaneCompleteness:
    """Return the moment up to which a lane is complete, its gaps with reasons, and its missing records.

    Args:
        peers: whether ABSENT gaps, which another cluster's records may fill, hold the lane back.
    """
    newest = held.newest_mark
    known_end = max(held.ranges.end, newest.seq if newest else 0)
    return LaneCompleteness(
        edge=lane.edge,
        log=format_log_id(lane.log_id),
        shard=shard,
        complete_up_to=None if not_started(held) else moment(held.whole_up_to if peers else held.complete_up_to),
        complete_below_seq=held.whole_end() if peers else held.ranges.contiguous_end(),
        newest_mark=None if not_started(held) else _mark(newest),
        gaps=gap_views(held.gaps),
        open_gap=_open_gap(lane, held, peers=peers),
        last_word=_mark(held.last_word),
        retired=_retired(held),
        holes=_ranges(held.ranges.missing(0, known_end)),
    )


def held_back_view(each: HeldBack, now: int) -> HeldBackReason:
    """Return one reason why a stream's moment does not advance.

    Args:
        now: nanoseconds since 1970 by the hub's clock.
    """
    return HeldBackReason(
        edge=each.edge,
        log=None if each.log_id is None else format_log_id(each.log_id),
        reason=each.reason.value,
        severity=severity(each, now).value,
        since=moment(each.since),
        complete_up_to=moment(each.up_to),
        why=each.why,
        what_to_do=each.advice,
    )


def removed_until(table: TableOfStream | None) -> Moment | UnsetType:
    """Return the time up to which retention removed rows, for an answer; unset if it removed none."""
    return (table.removed_until if table is not None else None) or UNSET


def only_latest(table: TableOfStream | None) -> Literal[True] | UnsetType:
    """Return, for an answer, True for a stream without a table of all rows."""
    return True if table is not None and table.kind == "latest" else UNSET


def table_view(table: TableStatus, columns: Sequence[tuple[str, str]], removed_until: int | None) -> TableOfStream:
    """Return a stream's table, for readers."""
    return TableOfStream(
        path=(table_key if table.kind == "all" else latest_key)(table.tenant, table.stream),
        kind="all" if table.kind == "all" else "latest",
        version=table.version,
        columns=[TableColumn(name, kind) for name, kind in columns],
        lag_records=table.lag_records,
        committed_at=moment(table.committed_at),
        error=table.error,
        is_stopped=bool(table.stopped),
        removed_until=moment(removed_until),
        files=table.files,
        bytes=table.bytes,
        made_by=table.process if table.made_by is None else table.made_by.name,
        vacuumed_at=moment(table.vacuumed_at),
    )


def deletion_of(states: Sequence[ShardState], tenant: str, stream: str) -> Forgotten | None:
    """Return the newest deletion of a stream by an operator, if no shard has it any more; None otherwise."""
    if any(state.has_stream(tenant, stream) for state in states):
        return None
    found = (state.forgotten.get((tenant, stream)) for state in states)
    return max((each for each in found if each is not None), key=lambda each: each.time, default=None)


def stream_lanes(states: Sequence[ShardState], tenant: str, stream: str) -> list[LaneOf]:
    """Return (shard, lane, state of the lane) for a stream, by edge and log."""
    found = [(state.shard, lane, held) for state in states for lane, held in state.stream_lanes(tenant, stream).items()]
    return sorted(found, key=lambda item: item[1])


def stream_view(
    parts: Sequence[StreamPart],
    key: StreamKey,
    table_rows: int | None,
    *,
    payload: PayloadKind,
    summary: StreamSummary,
    now: int,
    rate: float | None = None,
    table: TableOfStream | None = None,
) -> StreamOf:
    """Return a stream over all shards.

    Args:
        parts: of all shards, by number.
        table_rows: records that are table rows; None if unknown.
        payload: the payload kind.
        summary: facts about its lanes.
        now: nanoseconds since 1970 by the hub's clock.
        rate: records per second; None while unknown.
        table: the table; None if this node does not know it.
    """
    tenant, stream = key
    offsets = {str(part.shard): part.end for part in parts if part.end is not None}
    fields = dict.fromkeys(name for part in parts for name in part.fields)
    return StreamOf(
        tenant=tenant,
        stream=stream,
        records=sum(offsets.values()),
        records_per_second=None if rate is None else round(rate, 3),
        table_rows=table_rows,
        next_offset=offsets,
        lanes=summary.lanes,
        edges=summary.edges,
        fields=list(fields),
        payload=payload.label,
        complete_up_to=moment(summary.complete_up_to),
        held_back_by=[held_back_view(each, now) for each in summary.held_back_by],
        skipped=sum(part.skipped for part in parts),
        table=table,
    )


# Records as the API shows them, from batches of the log and from rows of a table.

HEADER_BYTES = 16
"""Bytes of a header pair in an answer, beside name and value."""
PIECE_CHARACTERS = 256 << 10
"""Characters of a text that become JSON in one call, which holds the interpreter: of control characters some 3 ms."""


def _json_parts(value: Any) -> Iterator[bytes]:
    """Yield a text or an array as JSON, in short calls."""
    if isinstance(value, str):
        yield b'"'
        for at in range(0, len(value), PIECE_CHARACTERS):
            yield msgspec.json.encode(value[at : at + PIECE_CHARACTERS])[1:-1]
        yield b'"'
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield b"," if at else b"["
            yield from _json_parts(each)
        yield b"]" if value else b"[]"
    else:
        yield msgspec.json.encode(value)


def _is_long(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and len(value) > PIECE_CHARACTERS)


def _long(name: str, value: Any) -> tuple[str, bytes]:
    """Return a long text or an array as JSON, under its name. A text that JSON makes more than twice as long, as none
    of people is, becomes base64 under the name and ``_base64``."""
    parts = [*_json_parts(value)]
    if isinstance(value, str) and sum(map(len, parts)) > 2 * len(data := value.encode()) + 2:
        return f"{name}_base64", b'"' + base64.b64encode(data) + b'"'
    return name, b"".join(parts)


def finished(view: View) -> View:
    """Make the long texts and the arrays of a row JSON already: in a thread, since answers are put together on the
    loop."""
    for name, value in list(view.items()):
        if _is_long(value):
            made, data = _long(name, value)
            if made != name:
                del view[name]
            view[made] = msgspec.Raw(data)
    return view


class FoundRecord(NamedTuple):
    """A record for an answer."""

    record: RecordOfStream
    size: int
    """Bytes of its key, payload and headers, which the bounds of answers count."""
    long: Mapping[str, bytes] = {}
    """Members that the record lacks, as JSON by name: those of more than ``PAYLOAD_BYTES_MAX``, made in a thread, since
    answers are put together on the loop."""

    @classmethod
    def of(cls, record: RecordOfStream, size: int) -> FoundRecord:
        """Return a record, with its long members apart.

        Args:
            size: bytes of payload and headers.
        """
        found = cls(record, size + len(record.key))
        if size <= PAYLOAD_BYTES_MAX:
            return found
        members = {"payload": record.payload, "payload_base64": record.payload_base64, "headers": record.headers}
        long = {name: value for name, value in members.items() if _is_long(value)}
        short = msgspec.structs.replace(record, **dict.fromkeys(long, UNSET))
        return found._replace(record=short, long=dict(_long(name, value) for name, value in long.items()))

    def parts(self) -> list[bytes]:
        """Return it as JSON. Long members are parts of their own: copying them would hold the loop up."""
        data = msgspec.json.encode(self.record)
        if not self.long:
            return [data]
        parts = [data[:-1]]
        for name, member in self.long.items():
            parts += (f',"{name}":'.encode(), member)
        return [*parts, b"}"]

    def whole(self) -> RecordOfStream:
        """Return it for an answer that is encoded in a thread."""
        return msgspec.structs.replace(self.record, **{name: msgspec.Raw(each) for name, each in self.long.items()})


class Taken(NamedTuple):
    """Facts that the records of a batch have in common."""

    shard: int
    stream: str
    edge: str
    log: str
    received: int
    """Nanoseconds since 1970."""
    received_text: str
    times: BatchTimes
    origin: str | None


def record_view(record: batches.Record, offset: int, taken: Taken, payload: PayloadKind) -> FoundRecord:
    """Return a record of a batch."""
    time, clock, stamp = taken.times.of(record.time, record.seq, taken.received)
    # In a stream of JSON, this decides as the table does between `payload` and `_payload_bytes`.
    is_text = keeps(max(payload, PayloadKind.TEXT), record.payload)
    size = len(record.payload)
    headers: list[tuple[str, Any]] | UnsetType = UNSET
    if record.headers:
        headers = [(name, header_json(value)) for name, value in record.headers]
        size += sum(HEADER_BYTES + len(name) + _length(value) for name, value in record.headers)
    made = RecordOfStream(
        shard=taken.shard,
        offset=offset,
        edge=taken.edge,
        log=taken.log,
        stream=taken.stream,
        seq=record.seq,
        time=moment_of(time),
        clock=CLOCKS[clock],
        received=taken.received_text,
        key=record.key.decode("utf-8", "replace"),
        resent=bool(record.flags & Flag.DUPLICATE_SUSPECTED),
        edge_time=UNSET if stamp is None else moment_of(stamp),
        origin=UNSET if taken.origin is None else taken.origin,
        payload=record.payload.decode() if is_text else UNSET,
        payload_base64=UNSET if is_text else base64.b64encode(record.payload).decode(),
        headers=headers,
    )
    return FoundRecord.of(made, size)


def row_view(row: Mapping[str, Any], shard: int, stream: str, payload: PayloadKind) -> FoundRecord:
    """Return a row of a table as ``record_view`` returns the record; times are whole microseconds, and headers text.

    Args:
        row: its columns, with times in microseconds since 1970.
        payload: the payload kind of the table.
    """
    data, headers = row["payload"], row.get("_headers") or []
    is_text = data is not None
    if payload is PayloadKind.BYTES:
        is_text = keeps(PayloadKind.TEXT, data)
    else:
        data = data.encode() if is_text else row.get("_payload_bytes") or b""
    edge_time, origin = row.get("_edge_time"), row.get("_origin")
    made = RecordOfStream(
        shard=shard,
        offset=row["_offset"],
        edge=row["_edge"],
        log=row["_log"],
        stream=stream,
        seq=row["_seq"],
        time=moment_of(row["_time"] * 1000),
        clock=row["_clock"],
        received=moment_of(row["_received"] * 1000),
        key=row["_key"],
        resent=row["_resent"],
        edge_time=UNSET if edge_time is None else moment_of(edge_time * 1000),
        origin=UNSET if origin is None else origin,
        payload=data.decode() if is_text else UNSET,
        payload_base64=UNSET if is_text else base64.b64encode(data).decode(),
        headers=[(name, value) for name, value in headers] or UNSET,
    )
    size = len(data) + sum(HEADER_BYTES + len(name) + _length(each or "") for name, each in headers)
    return FoundRecord.of(made, size)


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 8


# Budget of what one request for records may read of log and table.

SEARCHED_MAX = 256
"""Maximum number of chunks that one request searches for the first record, in all shards together; slightly more than
the chunks between two snapshots of a busy shard."""
CHUNKS_READ_MAX = 512
"""Maximum number of chunks that one request reads in all shards together, beside those that it searches."""
LOOKS_MAX = 1024
"""Maximum number of indexes and snapshots that one request reads to find where to begin, in all shards together: about
twenty for each shard and ``since``. Further shards are left to another request."""
READ_BYTES_MAX = 128 << 20
"""Bytes of sections and row groups that one request reads, in all shards together. It reads one more at most."""


_P = ParamSpec("_P")
_T = TypeVar("_T")


class Search:
    """Budget of one request, in all shards together. One thread uses it at a time.

    Args:
        left: chunks that it may search for first records.
        bytes_max: bytes that it may read.
        records_bytes: bytes of payload that it may return.
        processor_s: processor time of the calling thread.
    """

    def __init__(
        self,
        left: int = SEARCHED_MAX,
        *,
        bytes_max: int = READ_BYTES_MAX,
        records_bytes: int = 1 << 62,
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self.left = left
        self.bytes_left = bytes_max
        self.records_bytes = records_bytes
        self.chunks_left = CHUNKS_READ_MAX
        self.looks_left = LOOKS_MAX
        self._processor_s = processor_s
        self.worked_s = 0.0
        """Processor time of the threads that made its records."""

    def timed(self, work: Callable[_P, _T]) -> Callable[_P, _T]:
        """Return work of which the processor time in its thread is counted."""

        def timed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            began = self._processor_s()
            try:
                return work(*args, **kwargs)
            finally:
                self.worked_s += self._processor_s() - began

        return timed

    def continues(self) -> bool:
        """Count a chunk without a result. Return whether the search may continue."""
        self.left -= 1
        return self.left > 0

    @property
    def passed(self) -> int:
        """Return the number of chunks that were searched or read."""
        return SEARCHED_MAX - self.left + CHUNKS_READ_MAX - self.chunks_left

    @property
    def is_spent(self) -> bool:
        """Return whether no more records may be read."""
        return self.bytes_left <= 0 or self.chunks_left <= 0 or self.records_bytes <= 0

    def took(self, size: int) -> None:
        """Count bytes that were read."""
        self.bytes_left -= size

    def gave(self, records: list[FoundRecord]) -> None:
        """Count the bytes of records of the answer."""
        self.records_bytes -= sum(each.size for each in records)


# Answers in parts, and pages of long lists, made in slices, so that any number of lanes or streams never blocks the
# event loop.

T = TypeVar("T")
ViewT = TypeVar("ViewT")
Part = bytes | memoryview | msgspec.Raw
LOG_DIGITS = 16
SLICE_S = 0.002
"""Time after which a walk yields to others."""


def with_members(answer: msgspec.Struct, name: str, members: list[Part]) -> list[Part]:
    """Return an answer in parts.

    Args:
        name: name of a list, which is empty in the answer.
        members: its members as JSON, with commas between.
    """
    # The bytes are nowhere else: in a text, a quotation mark is escaped.
    head, begin, rest = msgspec.json.encode(answer).partition(f'"{name}":['.encode())
    return [head + begin, *members, rest + b"\n"]


class Page(NamedTuple, Generic[ViewT]):
    """A run of views."""

    views: list[ViewT]
    """Encoded: each is a ``msgspec.Raw``, which an answer with it takes over as it is."""
    is_whole: bool
    """True when all views fitted."""


async def lanes_after(
    states: Sequence[ShardState], tenant: str, stream: str, after: str | None, limit: int
) -> tuple[list[LaneOf], bool]:
    """Return lanes of a stream in the order of edge and log, and whether there are more.

    Args:
        after: end of the previous page (``position``).

    Raises:
        ValueError: ``after`` is not such a place.
    """
    floor = None if after is None else _parsed(after)
    found: list[tuple[str, int, int]] = []
    by_shard = {state.shard: state for state in states}
    for state in states:
        names = state.stream_lane_names(tenant, stream)
        for start in range(0, len(names), SLICE_LANES):
            some = [(lane.edge, lane.log_id, state.shard) for lane in names[start : start + SLICE_LANES]]
            more = [each for each in some if each[:2] > floor] if floor is not None else some
            found = sorted([*found, *more])[: limit + 1]
            await asyncio.sleep(0)
    lanes = []
    for edge, log_id, shard in found[:limit]:
        lane = Lane(tenant, edge, log_id, stream)
        held = by_shard[shard].lanes.get(lane)
        if held is not None:  # it has not left the state meanwhile
            lanes.append((shard, lane, held))
    return lanes, len(found) > limit


def position(lane: LaneOf) -> str:
    """Return the place of a lane in the list, for ``after``."""
    return f"{lane[1].edge}/{format_log_id(lane[1].log_id)}"


def _parsed(after: str) -> tuple[str, int]:
    edge, slash, log = after.rpartition("/")
    if not slash or len(log) != LOG_DIGITS:
        raise ValueError("expected EDGE/LOG")
    return edge, int(log, 16)


async def encoded(
    items: Sequence[T], view: Callable[[T], ViewT], bytes_max: int, clock: Callable[[], float] = time.perf_counter
) -> Page[ViewT]:
    """Return views of items, as many as fit, but at least one."""
    views: list[ViewT] = []
    size, began = 0, clock()
    for item in items:
        data = msgspec.json.encode(view(item))
        size += len(data)
        if views and size > bytes_max:
            return Page(views, False)
        views.append(cast(ViewT, msgspec.Raw(data)))
        if clock() - began >= SLICE_S:
            await asyncio.sleep(0)
            began = clock()
    return Page(views, True)
