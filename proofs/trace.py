"""Steps of a trace: from a row to the records that went into it, and further to the inputs of derived records."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from weft.protocols.chunk_index import Chunk
from weft.protocols.lane import NAME_RULE, Lane, OriginKind, format_log_id, valid_name
from weft.protocols.message_headers import LINEAGE, SOURCE
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage import chunk_log
from weft.storage.chunk_log import CollectedPast, NamedOpenGap, ShardLog, log_of_edge, open_gap_of
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import NotFound, ObjectStore, StoreUnfit
from weft.storage.table.actions import TableError, app_id, table_payload
from weft.storage.table.delta import file_system, guarded, open_table
from weft.storage.table.rows import BYTES_COLUMN, FIXED_COLUMNS, ORIGIN_COLUMN, RowsOf, rows_of, usable_fields
from weft.storage.table.typed_columns import FIELD

# Errors of traces.


class TraceError(ValueError):
    """A trace that cannot be made. The message says what to change."""


# Conditions by which a range of records is narrowed to a row's inputs.

WINDOW = "window"
_NEVER_LEVELS = ("payload",)


class Narrowing(NamedTuple):
    """The part of a row that its records agree with: topic levels and keys of the same name, and its window."""

    texts: Mapping[str, str]
    window: tuple[datetime, datetime] | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Narrowing:
        """Return the narrowing by a row. Its window is a column ``window`` with start and end, as Spark makes it, or
        the columns ``window_start`` and ``window_end``."""
        texts = {
            name: value
            for name, value in row.items()
            if isinstance(value, str) and name not in _NEVER_LEVELS and (not name.startswith("_") or name == "_key")
        }
        return cls(texts, _window(row))

    def expression(self, columns: Iterable[str]) -> tuple[pc.Expression | None, list[str]]:
        """Return the condition on records with these columns, and the names that it uses; None if it uses none."""
        spelled = {name.casefold(): name for name in columns}
        conditions, names = [], []
        for name, value in self.texts.items():
            if (column := spelled.get(name.casefold())) is not None:
                conditions.append(pc.field(column) == value)
                names.append(name)
        if self.window is not None:
            start, end = (pa.scalar(moment, pa.timestamp("us", tz="UTC")) for moment in self.window)
            conditions.append((pc.field("_time") >= start) & (pc.field("_time") < end))
            names.append(WINDOW)
        whole = None
        for condition in conditions:
            whole = condition if whole is None else whole & condition
        return whole, names


NOTHING = Narrowing({}, None)


def _window(row: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    window = row.get(WINDOW)
    if isinstance(window, Mapping):
        start, end = _moment(window.get("start")), _moment(window.get("end"))
    else:
        start, end = _moment(row.get("window_start")), _moment(row.get("window_end"))
    return None if start is None or end is None else (start, end)


def _moment(value: object) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


# Rows of a Delta table to trace, chosen by a condition in SQL.

_INNER = "weft_rows"
"""Name of the table in the query; users neither write nor see it."""


def rows_where(uri: str, where: str, rows_max: int) -> list[dict[str, Any]]:
    """Return rows of a table, at most ``rows_max`` + 1 of them. Blocks.

    Args:
        uri: the table's folder, or its URI; keys for an object store come from the environment.
        where: a condition, such as ``machine = 'm1'``, in the SQL of DataFusion.

    Raises:
        TraceError: there is no such table, or the condition is not valid.
        TableError: the table cannot be read.
    """
    try:
        table = guarded(lambda: DeltaTable(uri))
    except TableError as error:
        if isinstance(error.__cause__, TableNotFoundError):
            raise TraceError(f"{uri} is not a Delta table") from None
        raise
    try:
        query = QueryBuilder().register(_INNER, table)
        # The condition is on lines of its own: a comment at its end would otherwise hide the limit.
        found = query.execute(f"SELECT * FROM {_INNER} WHERE (\n{where}\n) LIMIT {rows_max + 1}")  # noqa: S608
        rows: list[dict[str, Any]] = pa.table(found.read_all()).to_pylist()
    except DeltaError as error:
        text = " ".join(str(error).split()).replace(f"{_INNER}.", "")[:400]
        raise TraceError(f"the condition {where!r} cannot be used: {text}") from None
    return rows


# Ranges of records that went into a row: the lineage column ``_from``, in tables and headers.

FROM_COLUMN = "_from"
RANGES_MAX = 10_000
"""Maximum number of ranges of one row."""
_LOG_DIGITS = 16
_SOURCE = re.compile(r"([^ ,]+) ([0-9]{1,20})(?:-([0-9]{1,20}))?(?:/([0-9]{1,20}))?")


class Used(msgspec.Struct, frozen=True):
    """Records of one lane that went into a row."""

    edge: str
    log: str
    """Log id in hexadecimal."""
    first: int
    """Lowest used sequence number."""
    last: int
    """Highest used sequence number."""
    count: int
    """Number of used records; if it equals the range's length, all of ``first`` to ``last``."""
    stream: str = ""
    """Stream of the lane, if known."""

    @property
    def numbers(self) -> int:
        """Return the number of sequence numbers in the range."""
        return self.last - self.first + 1


def parse_used(value: str | bytes | object) -> list[Used]:
    """Return the ranges of a lineage column's value: a list of objects, or its JSON; a single object is a list of one.

    Raises:
        TraceError: it is not in this form.
    """
    try:
        found = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
        ranges = msgspec.convert([found] if isinstance(found, dict) else found, list[Used])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            f'expected the value of a column _from such as [{{"edge": "press-1", "log": "1", "first": 0, "last": 9, '
            f'"count": 10}}]; {error}'
        ) from None
    if len(ranges) > RANGES_MAX:
        raise TraceError(f"a row with {len(ranges)} ranges; the most that are traced is {RANGES_MAX}")
    return [_checked(each) for each in ranges]


def parse_source(text: str, edge: str, log: str) -> list[Used]:
    """Return the ranges that an edge function stored in the header of a record.

    Args:
        edge: edge node of the record; ``log`` is its log. Its inputs are of the same log.

    Raises:
        TraceError: it is not in this form.
    """
    found = []
    for part in text.split(", ", RANGES_MAX):
        match = _SOURCE.fullmatch(part)
        if match is None:
            raise TraceError(f"expected the source of a record such as telemetry 120-150/17, got {part[:80]!r}")
        first, last = int(match[2]), int(match[3] or match[2])
        count = int(match[4]) if match[4] else last - first + 1
        found.append(_checked(Used(edge, log, first, last, count, match[1])))
    return found


def parse_record(text: str) -> Used:
    """Return the range of ``EDGE/LOG/SEQ`` or ``EDGE/LOG/FIRST-LAST``.

    Raises:
        TraceError: it is not in this form.
    """
    edge, _, rest = text.partition("/")
    log, _, numbers = rest.partition("/")
    first, dash, last = numbers.partition("-")
    try:
        low = int(first)
        high = int(last) if dash else low
    except ValueError:
        raise TraceError(f"expected EDGE/LOG/SEQ such as press-1/000000000000002a/17, got {text!r}") from None
    return _checked(Used(edge, log, low, high, high - low + 1))


def used_by(row: Mapping[str, Any]) -> list[Used]:
    """Return the ranges of a row: its lineage, or its own record if it has the source's columns.

    Raises:
        TraceError: it has neither.
    """
    if row.get(FROM_COLUMN) is not None:
        return parse_used(row[FROM_COLUMN])
    if all(row.get(name) is not None for name in ("_edge", "_log", "_seq")):
        return [_checked(Used(row["_edge"], row["_log"], row["_seq"], row["_seq"], 1))]
    raise TraceError(
        "the row has no lineage: neither a column _from nor _edge, _log and _seq. Its columns are "
        + ", ".join(sorted(row))
    )


def _checked(used: Used) -> Used:
    if not valid_name(used.edge):
        raise TraceError(f"edge: expected {NAME_RULE}; got {used.edge!r}")
    try:
        log_id = int(used.log, 16)
    except ValueError:
        log_id = -1
    if not 0 <= log_id < 1 << 4 * _LOG_DIGITS:
        raise TraceError(f"log: expected up to {_LOG_DIGITS} hexadecimal digits; got {used.log!r}")
    if not (0 <= used.first <= used.last < SEQ_END and used.count > 0):
        raise TraceError(
            f"expected 0 <= first <= last and a count from 1; got first {used.first}, last {used.last}, count "
            f"{used.count}"
        )
    return msgspec.structs.replace(used, log=format_log_id(log_id))


# Records by lane and sequence number, from table and log, without reading all of either.
#
# The search reads only files of the table whose statistics have the lane's shard, the edge and some of the numbers.
# Above the table's position, it reads only indexes of chunks, and sections with some of the numbers.

ATTEMPTS_MAX = 3
"""Maximum number of attempts, since the collector may delete chunks during a trace."""
Row = dict[str, Any]


class Looked(msgspec.Struct):
    """Amounts that were read for a trace."""

    files: int = 0
    """Files of tables that were read."""
    files_there: int = 0
    indexes: int = 0
    """Chunks whose index was read."""
    sections: int = 0
    """Chunks whose records were read."""


class TraceRequest(NamedTuple):
    """Records to find."""

    lane: Lane
    used: Used
    narrowing: Narrowing
    rows_max: int
    keep: Callable[[Row], bool] | None = None
    """Predicate for the wanted records of the range; None means all."""


class Found(NamedTuple):
    """Found records, ascending by sequence number: at most ``rows_max`` + 1. The last then only shows that there are
    more."""

    rows: list[Row]
    narrowed_by: list[str]
    """Columns by which other records of the range were excluded."""


class Finder:
    """Finds records. Opens the table of a stream once, for all ranges of a trace."""

    def __init__(self, store: ObjectStore, cluster: Cluster) -> None:
        self.store, self.cluster = store, cluster
        self.looked = Looked()
        self._tables: dict[str, OpenTable | None] = {}

    async def find(self, state: ShardState, wanted: TraceRequest, shards: Sequence[int]) -> Found:
        """Return records of a lane.

        Args:
            state: state of the lane's shard.
            shards: the lane's shard, and those that had the lane before, the last first.

        Raises:
            TraceError: the collector deleted chunks during the search several times.
            TableError: the table cannot be read.
            Corrupt: a chunk is damaged.
            StoreError: the store did not answer.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            table = await self._table(wanted.lane)
            try:
                return await _Search(self, table, state, wanted, shards).run()
            except (CollectedPast, NotFound) as error:
                if attempt == ATTEMPTS_MAX:
                    raise TraceError(f"chunks were deleted while they were read: {error}; try again") from error
                # The rows of the deleted chunks are in a later version of the table.
                self._tables.clear()
        raise AssertionError("the last attempt raises")

    async def _table(self, lane: Lane) -> OpenTable | None:
        if lane.stream not in self._tables:
            self._tables[lane.stream] = None
            with contextlib.suppress(StoreUnfit):
                uri, options = self.store.location(table_key(lane.tenant, lane.stream))
                opened = await asyncio.to_thread(guarded, partial(OpenTable.open, uri, options))
                self._tables[lane.stream] = opened
                self.looked.files_there += len(opened.files) if opened is not None else 0
        return self._tables[lane.stream]


class OpenTable(NamedTuple):
    """A version of a stream's table."""

    table: DeltaTable
    schema: pa.Schema
    payload: PayloadKind
    levels: list[str]
    files: list[dict[str, Any]]
    """Path and statistics of each file."""
    system: pyarrow.fs.FileSystem

    @classmethod
    def open(cls, uri: str, options: dict[str, str]) -> OpenTable | None:
        """Return the newest version of the table, or None if there is no table. Blocks."""
        table = open_table(uri, options)
        if table is None:
            return None
        types = {field.name: getattr(field.type, "type", None) for field in table.schema().fields}
        typed = {field.name for field in table.schema().fields if FIELD in field.metadata}
        payload = table_payload(types.get("payload"), table.metadata().configuration)
        levels = [name for name, kind in types.items() if name not in FIXED_COLUMNS | typed and kind == "string"]
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return cls(table, pa.schema(table.schema()), payload, levels, files, file_system(uri, options))


class _Search:
    def __init__(
        self, finder: Finder, table: OpenTable | None, state: ShardState, wanted: TraceRequest, shards: Sequence[int]
    ) -> None:
        self._shards = shards
        self._finder, self._table, self._state, self._wanted = finder, table, state, wanted
        self._lane, self._used, self._looked = wanted.lane, wanted.used, finder.looked
        self._rows: dict[int, Row] = {}
        self._payload = table.payload if table is not None else PayloadKind.BYTES
        fields = state.stream_fields(self._lane.tenant, self._lane.stream)
        levels = table.levels if table is not None else []
        self._fields = [*levels, *usable_fields(fields, table.schema.names if table is not None else ())]
        self._narrowed_by: list[str] = []

    async def run(self) -> Found:
        if self._table is not None:
            await asyncio.to_thread(guarded, partial(self._read_table, self._table))
        for shard in reversed(self._shards):
            position = 0
            if self._table is not None:
                app = app_id(self._finder.cluster.cluster_id, self._lane.stream, shard)
                position = int(self._table.table.transaction_version(app) or 0)
            if not self._is_done():
                await self._read_log(shard, position)
        return Found([self._rows[seq] for seq in sorted(self._rows)], self._narrowed_by)

    def _is_done(self) -> bool:
        return len(self._rows) > self._wanted.rows_max or len(self._rows) == self._used.numbers

    def _take(self, rows: Iterable[Row]) -> None:
        keep = self._wanted.keep
        for row in rows:
            if self._is_done():
                return
            if keep is None or keep(row):
                self._rows[row["_seq"]] = row

    def _read_table(self, table: OpenTable) -> None:
        """Read the files that may hold some of the records."""
        wanted = self._condition(table.schema.names)
        for path in self._pruned(table.files):
            if self._is_done():
                return
            self._looked.files += 1
            found = pads.dataset([path], table.schema, format="parquet", filesystem=table.system)
            for batch in found.scanner(filter=wanted, batch_readahead=1, use_threads=False).to_batches():
                self._take(batch.to_pylist())

    def _pruned(self, files: Iterable[dict[str, Any]]) -> list[str]:
        """Return the files whose statistics do not exclude the records, the lowest numbers first."""
        shards, used, found = (min(self._shards), max(self._shards)), self._used, []
        wanted = {"_shard": shards, "_edge": (used.edge, used.edge), "_seq": (used.first, used.last)}
        for row in files:
            bounds = {name: (row.get(f"min.{name}"), row.get(f"max.{name}")) for name in wanted}
            if all(_overlap(bounds[name], wanted[name]) for name in wanted):
                found.append((bounds["_seq"][0] or 0, unquote(row["path"])))
        return [path for _, path in sorted(found)]

    async def _read_log(self, shard: int, position: int) -> None:
        log, lane, used = ShardLog(self._finder.store, self._finder.cluster, shard), self._lane, self._used
        wanted = RangeSet([(used.first, used.last + 1)])
        n = await log.locate(lane.tenant, lane.stream, position)
        async for chunk in log.indexes(max(n, log.watermark), only=frozenset([(lane.tenant, lane.stream)])):
            self._looked.indexes += 1
            updates = [update for update in chunk.footer.lanes if lane_of(update) == lane]
            if any(wanted.missing(*each) != [each] for update in updates for each in update.ranges):
                await self._read_chunk(log, chunk, position)
                if self._is_done():
                    return

    async def _read_chunk(self, log: ShardLog, chunk: Chunk, position: int) -> None:
        lane, used = self._lane, self._used
        for section in chunk.footer.streams:
            if (section.tenant, section.stream) != (lane.tenant, lane.stream):
                continue
            self._looked.sections += 1
            data = await log.section(chunk.header.n, section)
            of_section = RowsOf(section, data, chunk.footer.lanes_of(section), chunk.footer.clocks_of(section))
            rows = rows_of(
                [of_section], log.shard, self._fields, self._topics, position, edges={used.edge}, payload=self._payload
            )
            for batch in rows:
                self._take(pa.table(batch).filter(self._condition(batch.schema.names)).to_pylist())

    def _condition(self, columns: Sequence[str]) -> pc.Expression:
        """Return the condition on rows with these columns."""
        used = self._used
        wanted = (
            (pc.field("_edge") == used.edge)
            & (pc.field("_log") == used.log)
            & (pc.field("_seq") >= used.first)
            & (pc.field("_seq") <= used.last)
        )
        narrowing, self._narrowed_by = self._wanted.narrowing.expression(columns)
        return wanted if narrowing is None else wanted & narrowing

    def _topics(self, lane: Lane) -> Sequence[str]:
        held = self._state.lanes.get(lane)
        return held.topics if held is not None else ()


def _overlap(bounds: tuple[Any, Any], wanted: tuple[Any, Any]) -> bool:
    low, high = bounds
    return low is None or high is None or (low <= wanted[1] and wanted[0] <= high)


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
    """True for a record of an edge function without a record of its inputs: from a function that forwards records."""


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
            found = await self.find(state, TraceRequest(lane, used, narrowing, self.left))
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

    async def find(self, state: ShardState, wanted: TraceRequest) -> Found:
        """Return records of a lane, as ``Finder.find``."""
        return await self._finder.find(state, wanted, self._logs[wanted.lane.edge].lineage)

    async def _streams_of(self, state: ShardState, used: Used) -> set[str]:
        log = self._logs[used.edge]
        lanes = [*state.lanes, *await chunk_log.lanes_of(log.store, log.lineage, self._tenant, used.edge)]
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


# Traces forward: from a message to the records that edge functions made of it.


class Made(msgspec.Struct):
    """A record that an edge function made."""

    stream: str
    record: TracedRecord
    of: str
    """Stream of its input records, on the way from the message."""
    is_certain: bool
    """True when the message is certainly among its inputs. Otherwise it is in their range, and only a part of the range
    was used."""


class Forward(msgspec.Struct):
    """Messages, and the records made of them."""

    messages: list[TracedRecord]
    made: list[Made]
    """Records in the order of the steps; within a step by stream and number."""
    more: bool
    """True when there are more than requested."""


class _Frontier:
    """Records of one stream whose successors are searched."""

    def __init__(self, used: Used, rows: Sequence[Row], *, is_certain: bool) -> None:
        self.used, self.rows, self.is_certain = used, {row["_seq"]: row for row in rows}, is_certain

    def reached(self, of: Used, row: Row) -> bool | None:
        """Return whether a row was certainly made of one of the records; None if it was not made of any."""
        if of.stream != self.used.stream or of.last < self.used.first or self.used.last < of.first:
            return None
        if of.count == of.numbers:
            return self.is_certain
        known = [each for seq, each in self.rows.items() if of.first <= seq <= of.last]
        if known and not any(_agree(row, each) for each in known):
            return None
        return False


async def forward(tracer: Tracer, used: Used, reach: timedelta) -> Forward:
    """Return the records of the same edge node that functions made of some of its records, and of these results.

    Args:
        used: the records.
        reach: largest difference between the times of the results and theirs, which bounds the reads of tables and
            chunks.

    Raises:
        TraceError: the hub knows no such lane.
        TableError, CodecError, StoreError: table, log or store cannot be read.
    """
    state, streams, stream = await tracer.lanes_of(used)
    lane = streams.get(stream)
    if lane is None:
        raise TraceError(f"the hub has nothing of stream {stream} of {used.edge}: it stays on its node")
    found = await tracer.find(state, TraceRequest(lane, used, NOTHING, tracer.left))
    messages = found.rows[: tracer.left]
    result = Forward([record_of(row) for row in messages], [], more=len(found.rows) > tracer.left)
    if not messages:
        return result
    times: list[datetime] = [row["_time"] for row in messages]
    near = Narrowing({}, (min(times) - reach, max(times) + reach))
    frontier = [_Frontier(msgspec.structs.replace(used, stream=stream), messages, is_certain=True)]
    seen: set[tuple[str, int]] = set()
    for _ in range(STEPS_MAX):
        after: list[_Frontier] = []
        for name in sorted(streams):
            rows = await _made_of(tracer, (state, streams[name]), near, frontier, seen)
            result.more |= len(rows) > tracer.left
            rows = rows[: tracer.left]
            tracer.left -= len(rows)
            for row, of, is_certain in rows:
                result.made.append(Made(name, record_of(row), of, is_certain))
                seq = row["_seq"]
                seen.add((name, seq))
                own = Used(used.edge, used.log, seq, seq, 1, name)
                after.append(_Frontier(own, [row], is_certain=is_certain))
        frontier = after
        if frontier and not tracer.left:
            result.more = True
        if not frontier or not tracer.left:
            break
    return result


async def _made_of(
    tracer: Tracer,
    place: tuple[ShardState, Lane],
    near: Narrowing,
    frontier: Sequence[_Frontier],
    seen: Set[tuple[str, int]],
) -> list[tuple[Row, str, bool]]:
    """Return the records of a lane that were made of the frontier's: row, input stream, certainty."""
    state, lane = place
    made: dict[int, tuple[str, bool]] = {}

    def is_made(row: Row) -> bool:
        text = dict(row["_headers"]).get(SOURCE) if row.get("_headers") else None
        if text is None or (lane.stream, row["_seq"]) in seen:
            return False
        for of in parse_source(text, row["_edge"], row["_log"]):
            reached = [known for each in frontier if (known := each.reached(of, row)) is not None]
            if reached:
                made[row["_seq"]] = of.stream, any(reached)
        return row["_seq"] in made

    used = Used(lane.edge, frontier[0].used.log, 0, SEQ_END - 1, 1)
    found = await tracer.find(state, TraceRequest(lane, used, near, tracer.left, is_made))
    return [(row, *made[row["_seq"]]) for row in found.rows]


def _agree(row: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Return whether a row and a message agree in all names that they share: levels of topics, or fields of the row."""
    if row["_key"] == message["_key"]:
        return True
    names = {**_levels(row), **payload_fields(record_of(dict(row)).payload)}
    levels = _levels(message)
    shared = [name for name in names if name in levels]
    if shared:
        return all(names[name] == levels[name] for name in shared)
    return not _is_topic(row, message)


def _is_topic(row: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Return whether the key of a row looks like a topic of another device, as for a window with one group per
    device."""
    return str(row["_key"]).count("/") == str(message["_key"]).count("/") > 0


def _levels(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in row.items()
        if not name.startswith("_") and name != "payload" and isinstance(value, str)
    }
