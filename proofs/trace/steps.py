"""Steps of a trace: from a row to the records that went into it, and further to the inputs of derived records."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from weft.proofs.trace.errors import TraceError
from weft.proofs.trace.finding import Finder, Found, Looked, Row, Wanted
from weft.proofs.trace.narrowing import NOTHING, Narrowing
from weft.proofs.trace.used import Used, parse_source, parse_used
from weft.protocols.lane import Lane
from weft.protocols.message_headers import LINEAGE, SOURCE
from weft.protocols.origin import OriginKind
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.chunks import ended_states
from weft.storage.chunks.open_gaps import NamedOpenGap, open_gap_of
from weft.storage.cluster import Cluster
from weft.storage.every_shard import log_of_edge
from weft.storage.object_store import ObjectStore
from weft.storage.table.columns import ORIGIN_COLUMN
from weft.storage.table.payload_columns import BYTES_COLUMN

STEPS_MAX = 8
"""Maximum number of streams in a chain: more mean a cycle."""


class TracedRecord(msgspec.Struct, omit_defaults=True):
    """A record of a stream."""

    edge: str
    log: str
    seq: int
    time: datetime
    key: str
    payload: str | None
    """None when it is not text: see ``payload_base64``."""
    payload_base64: str | None = None
    headers: dict[str, str | None] | None = None
    origin: str | None = None
    """Function that made the record at its edge: ``name@version#hash``. None for records of devices."""
    made_of: list[LineageStep] = []
    """Records that went into this one, if a pipeline or a function made it."""
    is_unknown: bool = False
    """True for a record of an edge function without a record of its inputs: from an earlier release, or from a function
    that forwards records."""


class LineageStep(msgspec.Struct):
    """One range of a row's lineage, and its records."""

    stream: str
    used: Used
    records: list[TracedRecord]
    numbers: int
    """Sequence numbers of the range."""
    narrowed_by: list[str]
    """Columns of the row by which records of the range were excluded; empty if none had to be."""
    is_exact: bool
    """True when the records are exactly the row's inputs."""
    more: bool
    """True when the range has more records than requested."""
    open_gap: NamedOpenGap | None = None
    """Loss without a number of the range's lane: it ended without a last word."""
    trouble: str = ""
    """Reason why no record was searched; empty otherwise."""


class Trace(msgspec.Struct):
    """A row and its inputs."""

    row: dict[str, Any]
    made_of: list[LineageStep]


class Tracer:
    """Traces rows of one tenant. Serves one event loop.

    Args:
        streams: names of the streams to search; none means every stream with the lane.
        records_max: maximum number of records of all traces together.
    """

    def __init__(
        self, store: ObjectStore, cluster: Cluster, tenant: str, streams: Sequence[str], records_max: int
    ) -> None:
        self._tenant, self._streams = tenant, streams
        self._finder = Finder(store, cluster)
        self.left = records_max
        """Number of records that may still be shown."""
        self._logs: dict[str, ShardLog] = {}
        self._states: dict[int, ShardState] = {}

    @property
    def looked(self) -> Looked:
        """Return the amounts read so far."""
        return self._finder.looked

    async def trace(self, row: Mapping[str, Any], used: Sequence[Used]) -> Trace:
        """Return the inputs of a row.

        Raises:
            TraceError: no stream has the lane, or several have it.
            TableError, CodecError, StoreError: table, log or store cannot be read.
        """
        return Trace(dict(row), [await self._step(each, [Narrowing.of(row)], ()) for each in used])

    async def _step(self, used: Used, narrowings: Sequence[Narrowing], behind: tuple[str, ...]) -> LineageStep:
        """Return the records of a range.

        Args:
            narrowings: conditions from the row that was made of them, the strictest first.
            behind: streams of the previous steps.
        """
        state = await self._state(used.edge)
        lane = await self._lane(state, used, behind)
        # Other records of the lane may be between the used ones.
        for narrowing in (*narrowings, NOTHING) if used.count < used.numbers else (NOTHING,):
            found = await self.find(state, Wanted(lane, used, narrowing, self.left))
            if found.rows or not found.narrowed_by:
                break  # otherwise the row's columns only have the same names by chance
        more = len(found.rows) > self.left
        rows = found.rows[: self.left]
        self.left -= len(rows)
        is_exact = not more and len(rows) == min(used.count, used.numbers)
        gap = open_gap_of(state, lane)
        step = LineageStep(lane.stream, used, [], used.numbers, found.narrowed_by, is_exact, more, gap)
        for each in rows:
            step.records.append(await self._record(each, (*behind, lane.stream)))
        return step

    async def _record(self, row: Row, behind: tuple[str, ...]) -> TracedRecord:
        record = record_of(row)
        lineage, source = ((record.headers or {}).get(name) for name in (LINEAGE, SOURCE))
        if lineage is not None and len(behind) < STEPS_MAX:
            # The record's own key and number are of this stream; its inputs have others.
            levels = {name: value for name, value in row.items() if not name.startswith("_") and value is not None}
            narrowing = Narrowing.of({**levels, **payload_fields(record.payload)})
            record.made_of = [await self._step(used, [narrowing], behind) for used in parse_used(lineage)]
        elif source is not None and len(behind) < STEPS_MAX:
            record.made_of = await self._of_function(record, row, source, behind)
        else:
            record.is_unknown = record.origin is not None and lineage is source is None and not _is_schema(record)
        return record

    async def _of_function(
        self, record: TracedRecord, row: Row, source: str, behind: tuple[str, ...]
    ) -> list[LineageStep]:
        """Return what an edge function made a record of."""
        levels = {name: value for name, value in row.items() if not name.startswith("_") and value is not None}
        # The bounds of a window may be times in the payload, and its key is a topic only if it groups by topic.
        narrowing = Narrowing.of({**levels, **payload_fields(record.payload)})._replace(window=None)
        narrowings = [Narrowing({"_key": record.key}, None), narrowing]
        steps = []
        for used in parse_source(source, record.edge, record.log):
            try:
                steps.append(await self._step(used, narrowings, behind))
            except TraceError as error:  # such as a stream that stays on its node
                steps.append(LineageStep(used.stream, used, [], used.numbers, [], False, False, trouble=str(error)))
        return steps

    async def _state(self, edge: str) -> ShardState:
        if edge not in self._logs:
            self._logs[edge] = await log_of_edge(self._finder.store, self._finder.cluster, self._tenant, edge)
        log = self._logs[edge]
        if log.shard not in self._states:
            self._states[log.shard] = await log.load()
        return self._states[log.shard]

    async def lanes_of(self, used: Used) -> tuple[ShardState, dict[str, Lane], str]:
        """Return the shard's state for a range, the lanes of its log by stream, and its own stream.

        Raises:
            TraceError: the hub knows no such lane, or the range is ambiguous.
        """
        state = await self._state(used.edge)
        stream = self._streams[0] if len(self._streams) == 1 else (await self._lane(state, used, ())).stream
        log_id = int(used.log, 16)
        streams = await self._streams_of(state, used)
        return state, {each: Lane(self._tenant, used.edge, log_id, each) for each in streams}, stream

    async def find(self, state: ShardState, wanted: Wanted) -> Found:
        """Return records of a lane, as ``Finder.find``."""
        return await self._finder.find(state, wanted, self._logs[wanted.lane.edge].lineage)

    async def _streams_of(self, state: ShardState, used: Used) -> set[str]:
        log = self._logs[used.edge]
        lanes = [*state.lanes, *await ended_states.lanes_of(log.store, log.lineage, self._tenant, used.edge)]
        return {lane.stream for lane in lanes if lane[:3] == (self._tenant, used.edge, int(used.log, 16))}

    async def _lane(self, state: ShardState, used: Used, behind: tuple[str, ...]) -> Lane:
        log_id = int(used.log, 16)
        there = await self._streams_of(state, used)
        name = f"{used.edge}/{used.log}"
        if used.stream:
            if used.stream not in there:
                raise TraceError(f"the hub has nothing of stream {used.stream} of lane {name}: it stays on its node")
            return Lane(self._tenant, used.edge, log_id, used.stream)
        if not there:
            raise TraceError(f"the hub knows no lane {name} of tenant {self._tenant}")
        found = there & set(self._streams) if self._streams else there
        if not found:
            raise TraceError(f"lane {name} is not in {', '.join(self._streams)} but in {', '.join(sorted(there))}")
        # A record of a derived stream was made of records of another stream.
        found = found - set(behind) or found
        if len(found) > 1:
            raise TraceError(
                f"lane {name} is in the streams {', '.join(sorted(found))}; name the one that the row was made of"
            )
        return Lane(self._tenant, used.edge, log_id, found.pop())


def _is_schema(record: TracedRecord) -> bool:
    """Return whether the origin of a record is a schema, not a function: then a device sent it."""
    return (record.origin or "").startswith(f"{OriginKind.SCHEMA.name.lower()}:")


def payload_fields(payload: str | None) -> dict[str, Any]:
    """Return the fields of a payload in JSON, such as a pipeline's row; empty for any other payload."""
    try:
        found = msgspec.json.decode(payload or "")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def record_of(row: Row) -> TracedRecord:
    """Return a row of a stream's table or log as a record."""
    payload = row.get("payload")
    if payload is None:
        payload = row.get(BYTES_COLUMN)
    text, coded = payload, None
    if isinstance(payload, bytes):
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            text, coded = None, base64.b64encode(payload).decode()
    headers = dict(row["_headers"]) if row.get("_headers") else None
    return TracedRecord(
        row["_edge"], row["_log"], row["_seq"], row["_time"], row["_key"], text, coded, headers, row.get(ORIGIN_COLUMN)
    )
