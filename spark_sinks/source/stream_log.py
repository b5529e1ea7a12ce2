"""One stream's log in all shards, for the planner of a read."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import pyarrow as pa

from spark_sinks.errors import ReadError
from spark_sinks.source.options import Offsets, ReadOptions
from spark_sinks.source.partitions import ChunkSlice, LaneName, RecentSlices
from spark_sinks.source.tables import StreamTable, TableSnapshot
from spark_sinks.source.typed import with_typed
from spark_sinks.source.workers import settle
from weft.protocols.chunk_index import Chunk, LaneUpdate, StreamKey
from weft.protocols.errors import CodecError, Corrupt, UnsupportedVersion
from weft.protocols.lane import Lane, Origin
from weft.protocols.payloads import PayloadKind, strictest
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.placement import moved_to
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import Forgotten
from weft.storage.chunk_log import CollectedPast, ShardLog, first_logs
from weft.storage.cluster import Cluster, ClusterUnusable, open_cluster
from weft.storage.cluster_log import LISTED_MAX, ClusterLog, ClusterState, Rewritten
from weft.storage.hub_keys import table_key
from weft.storage.object_store import AccessDenied, ObjectStore, StoreError, StoreUnfit, open_store
from weft.storage.table.latest import only_latest
from weft.storage.table.rows import row_schema, usable_fields
from weft.storage.table.schemas import ExpectedEdges, Schemas
from weft.storage.table.typed_columns import beside, typed_names

logger = logging.getLogger(__name__)

# Search for the chunk of a shard's log that holds an offset of a stream.


class StreamChunk(NamedTuple):
    """A chunk that holds records of one stream."""

    n: int
    footer_crc: int
    created: int
    """Nanoseconds since 1970."""
    first: int
    """Offset of the stream's first record in it."""
    end: int
    """Offset after the last record."""


def stream_chunk(chunk: Chunk, stream: StreamKey) -> StreamChunk | None:
    """Return a chunk's part of a stream; None when it has no record of it."""
    for section in chunk.footer.streams:
        if (section.tenant, section.stream) == stream:
            first = section.base_offset
            return StreamChunk(chunk.header.n, chunk.footer_crc, chunk.header.created, first, first + section.count)
    return None


async def find_chunk(log: ShardLog, stream: StreamKey, offset: int, low: int) -> StreamChunk | None:
    """Return the chunk that holds an offset; None when the log lacks it, as after the hub has deleted it.

    A query that reads days of history advances by thousands of chunks in a micro-batch. Reading every index between
    would take more requests than the rows do. So the search reads chunks at growing distances from ``low``, and then
    halves the range: some twenty GETs for a thousand chunks, and one or two if the chunk is among the next ones. For a
    stream with records in few chunks, it also reads the indexes between those.

    Args:
        low: number of a chunk; the wanted one is not before it.

    Raises:
        Corrupt: an index that was read is damaged, or a chunk is missing.
        StoreError: the store does not answer.
    """
    while True:
        # The collector may delete chunks while indexes are read: the error is raised for a chunk below the watermark,
        # which is higher at the next try.
        with suppress(CollectedPast):
            return await _search(log, stream, offset, max(low, log.watermark))


async def _search(log: ShardLog, stream: StreamKey, offset: int, low: int) -> StreamChunk | None:
    high: int | None = None  # Neither this chunk nor a later one has the offset.
    step, at = 1, low
    while high is None or low < high:
        found = await _next(log, stream, at, high)
        if found is not None and found.first <= offset < found.end:
            return found
        if found is None or offset < found.first:
            high = at
        else:
            low = found.n + 1
        if high is None:
            at, step = low + step, 2 * step
        else:
            at = (low + high) // 2
    return None


async def _next(log: ShardLog, stream: StreamKey, first: int, end: int | None) -> StreamChunk | None:
    """Return the next chunk with records of the stream from number ``first`` on; None if there is none before ``end``
    or the log's end."""
    async for chunk in log.indexes(first, only=frozenset([stream])):
        if end is not None and chunk.header.n >= end:
            return None
        if found := stream_chunk(chunk, stream):
            return found
    return None


# The history of a hub's log, for comparison with positions in a checkpoint or a sink's target.
#
# A store that was restored to an earlier state gives offsets out again, to other records. A query that compared only
# offsets would treat those as records that it has, and skip them. So a position includes the chunk with the last
# record below it: the checksum of a chunk's footer covers the footers before it, and so identifies the whole history.

StreamShard = tuple[str, int]


class Witness(NamedTuple):
    """The chunk with the last record below a position."""

    n: int
    footer_crc: int
    created: int | None = None
    """Time at which the hub made it, ns since 1970; None if only number and checksum were stored. After the chunk is
    deleted, this time distinguishes the table's rows from later ones."""


class PersistedPosition(NamedTuple):
    """A position stored in a checkpoint or a sink's target."""

    end: int
    """Offset after the last record that was read."""
    witness: Witness | None
    """None if the hub had deleted the chunk."""


class WentBack(ReadError):
    """A log with another history than a position: its store was restored to an earlier state."""


class History:
    """The shards of one tenant's streams. Found chunks are remembered, so that following a log costs little.

    Methods raise ``ReadError`` when the store does not answer or a chunk is damaged.
    """

    def __init__(self, log_of: Callable[[int], ShardLog], tenant: str) -> None:
        self._tenant = tenant
        self._log_of = log_of
        self._found: dict[StreamShard, StreamChunk] = {}
        """The last chunk that was found."""

    @classmethod
    def of(cls, store: ObjectStore, cluster: Cluster, tenant: str) -> History:
        """Return the history of a store, without a request."""
        logs: dict[int, ShardLog] = {}

        def log_of(shard: int) -> ShardLog:
            # A split may have made the shard since the cluster was read.
            return logs.setdefault(shard, ShardLog(store, cluster, shard))

        return cls(log_of, tenant)

    async def witnesses(self, ends: Mapping[StreamShard, int]) -> dict[StreamShard, Witness]:
        """Return the chunk with the record before each offset.

        There is none for chunks that the hub has deleted, or if an index on the way is damaged: a query must not stop
        for a chunk that it does not read.
        """
        try:
            found = await asyncio.gather(*(self._chunk_with(place, end - 1) for place, end in ends.items()))
        except StoreError as error:
            raise _unreadable(error) from error
        known = {place: each for place, each in zip(ends, found, strict=True) if each is not None}
        self._found |= known
        return {place: Witness(each.n, each.footer_crc, each.created) for place, each in known.items()}

    async def check(self, positions: Mapping[StreamShard, PersistedPosition]) -> dict[StreamShard, PersistedPosition]:
        """Check that positions were taken from this log.

        Returns:
            The positions in deleted chunks, for which only the log's length could be checked.

        Raises:
            WentBack: the log is another one, or shorter.
        """
        try:
            known = await asyncio.gather(*(self._check(place, kept) for place, kept in positions.items()))
        except (StoreError, CodecError) as error:
            raise _unreadable(error) from error
        return {place: kept for (place, kept), is_known in zip(positions.items(), known, strict=True) if not is_known}

    async def _check(self, place: StreamShard, kept: PersistedPosition) -> bool:
        """Return whether the chunk was compared."""
        (stream, shard), (end, witness) = place, kept
        log = self._log_of(shard)
        if witness is not None:
            chunk = await log.index(witness.n)
            is_same = chunk is not None and chunk.footer_crc == witness.footer_crc
            held = stream_chunk(chunk, (self._tenant, stream)) if chunk is not None and is_same else None
            if held is not None and held.end >= end:
                self._found.setdefault(place, held)
                return True
            # Below the watermark there is nothing, or only chunks that a paused writer made again.
            if not is_same and witness.n >= (await log.manifest())[0].watermark:
                how = "lacks" if chunk is None else "has another"
                raise WentBack(f"offset {end} of shard {shard} of {stream}, and the log {how} chunk {witness.n}")
        key = self._tenant, stream
        head = (await log.load(frozenset({key}))).next_offset.get(key, 0)
        if head < end:
            raise WentBack(f"offset {end} of shard {shard} of {stream}, and the log ends at {head}")
        return False

    async def _chunk_with(self, place: StreamShard, offset: int) -> StreamChunk | None:
        stream, shard = place
        log, last, key = self._log_of(shard), self._found.get(place), (self._tenant, stream)
        with suppress(CodecError):
            # From the last chunk on, which is read again, because the store may have been restored meanwhile.
            if last is not None and last.first <= offset and (found := await find_chunk(log, key, offset, last.n)):
                return found
            return await find_chunk(log, key, offset, await log.locate(*key, offset))
        return None


def _unreadable(error: Exception) -> ReadError:
    return ReadError(f"positions cannot be compared with the hub's log: {error}")


# Streams that an operator of the hub deleted (``weft hub stream delete``).


class Deletions:
    """The deletions of one stream, as a reader of its log sees them.

    Args:
        stream: (tenant, stream).
        table: address of its table.
    """

    def __init__(self, stream: StreamKey, table: str) -> None:
        self._stream = stream
        self._table = table
        self._known: set[int] = set()

    def begin(self, states: Iterable[ShardState]) -> None:
        """Note the deletions before a read: the stream has begun again in other shards."""
        self._known = set(self._found(states))

    def check(self, states: Iterable[ShardState]) -> None:
        """Refuse a stream that was deleted since ``begin``.

        Without its lanes, the rows of its last records would lack their topic levels. The table has them.

        Args:
            states: of all shards, after the log was read on.

        Raises:
            ReadError: it is deleted.
        """
        found = self._found(states)
        if not found.keys() <= self._known:
            newest = max(found.values(), key=lambda deletion: deletion.time)
            at = datetime.fromtimestamp(newest.time // 1_000_000_000, UTC).isoformat()
            raise ReadError(
                f"stream {self._stream[1]!r} of tenant {self._stream[0]!r} was deleted at {at}: {newest.reason}. Its "
                f"table stays, at {self._table}: read that as any Delta table. When an edge sends to the stream again, "
                "a query continues from its checkpoint"
            )
        self._known &= found.keys()

    def _found(self, states: Iterable[ShardState]) -> dict[int, Forgotten]:
        return {
            state.shard: deletion for state in states if (deletion := state.forgotten.get(self._stream)) is not None
        }


_OTHER = LaneUpdate("", "", 0, "", 0, [], [], None, None)


class MissingOffsets(ReadError):
    """Offsets of a read that are neither in the log nor in the table, by the plan's view of both."""


class StreamLog:
    """The log of one (tenant, stream): its end, its topic levels, and the chunks that hold its offsets."""

    def __init__(self, options: ReadOptions, store: ObjectStore, cluster: Cluster) -> None:
        self.options = options
        self.cluster = cluster
        self.only = frozenset({(options.tenant, options.stream)})
        """The stream, as what the states follow."""
        self._store = store
        self._logs = {log.shard: log for log in first_logs(store, cluster, tenant=options.tenant)}
        """The logs of the shards, those of splits as soon as the log of the halved shard was read."""
        self._states: dict[int, ShardState] = {}
        self._lanes: dict[tuple[str, int, tuple[Origin, ...]], LaneUpdate] = {}
        self._table = StreamTable(store, cluster, options.tenant, options.stream)
        self.opened_table: TableSnapshot | None = None
        """Table at the moment when the log was opened: never ahead of the log after ``extend``."""
        self.payload = PayloadKind.BYTES
        """Kind of the stream's payloads: the table's, or before there is a table, the edges' declared one."""
        self._recent = {shard: RecentSlices() for shard in self._logs}
        self.history = History(self.log_of, options.tenant)
        self._deletions = Deletions(
            (options.tenant, options.stream), store.location(table_key(options.tenant, options.stream))[0]
        )
        self._cluster_log = ClusterLog(store, cluster.cluster_id)
        self._facts: ClusterState | None = None
        self._expected = ExpectedEdges()
        self.loads = 0
        """Number of times that a shard was loaded again; its log may then differ from the one seen before."""

    @classmethod
    async def open(cls, options: ReadOptions) -> StreamLog:
        """Load the state of every shard.

        Raises:
            ReadError: executors cannot reach the store, it holds no hub, or the hub has no such stream.
        """
        settle()
        store, cluster = await open_hub(options)
        log = cls(options, store, cluster)
        await asyncio.gather(*map(log._load, list(log._logs)))
        await log._adopt_splits()
        await log._check_stream()
        log.opened_table = await log._table.open()
        log.payload = log.opened_table.payload if log.opened_table else log._declared_payload()
        if options.schema is None and options.is_typed:
            await log._adopt_schema()
        return log

    async def _adopt_schema(self) -> None:
        """Take the schema that is declared for the stream, if there is one, for as long as this log is followed."""
        try:
            facts = await self.facts()
        except AccessDenied:
            if self.options.tenant not in dict(self.cluster.apart):
                raise
            # The declarations are of all tenants: a key for what one of them has alone reads none.
            logger.warning(
                "%s: this key reads no declarations, so rows have no typed columns. Name them with option schema",
                self.options.stream,
            )
            return
        found = Schemas.of_state(facts).of((self.options.tenant, self.options.stream))
        if found is not None:
            schema = beside(found.schema, self.fields)
            self.options = replace(self.options, schema=schema, version=found.version)

    def _declared_payload(self) -> PayloadKind:
        lanes = (state.stream_lanes(self.options.tenant, self.options.stream).values() for state in self.states)
        return strictest(held.payload for shard in lanes for held in shard)

    async def _check_stream(self) -> None:
        if not any(state.lanes for state in self.states):
            self._deletions.check(self.states)
            others = set[str]()
            for shard in self._logs.values():  # one after the other: each may be large, and only names are kept
                others |= (await shard.load()).tenant_streams(self.options.tenant)
            raise ReadError(
                f"the store has no stream {self.options.stream!r} of tenant {self.options.tenant!r}; "
                f"it has {', '.join(sorted(others - {self.options.stream})) or 'no stream of that tenant yet'}"
            )
        self._deletions.begin(self.states)

    async def extend(self) -> None:
        """Add the chunks made since.

        Raises:
            ReadError: the stream was deleted since it was opened.
        """
        await asyncio.gather(*map(self._extend, list(self._logs)))
        await self._adopt_splits()
        self._deletions.check(self.states)

    async def facts(self) -> ClusterState:
        """Return what operators have declared up to now. It costs what came since the last time, and one GET.

        Raises:
            ReadError: a later release declared something that this one cannot read.
        """
        try:
            if self._facts is not None:
                with suppress(Rewritten):
                    while await self._cluster_log.extend(self._facts) == LISTED_MAX:
                        pass
                    return self._facts
            self._facts = await self._cluster_log.load()
        except UnsupportedVersion as error:
            raise ReadError(f"what is declared of {self.options.stream} cannot be read: {error}") from error
        return self._facts

    async def expected(self) -> tuple[str, ...]:
        """Return the names and patterns of the edges that operators want the stream to wait for (``weft hub stream
        expect``). Costs and errors are those of ``facts``."""
        self._expected.refresh(await self.facts())
        return self._expected.get((self.options.tenant, self.options.stream), ())

    async def _load(self, shard: int) -> None:
        self._states[shard] = await self._logs[shard].load(self.only)

    async def _adopt_splits(self) -> None:
        """Load the shards that splits have made: after those that they halved, so that no lane is missing."""
        while new := [
            self._logs[state.shard].new_shard(split)
            for state in self.states
            for split in state.splits
            if split.shard not in self._logs
        ]:
            for log in new:
                state = await log.load(self.only)
                self._logs[log.shard], self._recent[log.shard] = log, RecentSlices()
                self._states[log.shard] = state
            self._table.shards = max(self._table.shards, max(self._logs) + 1)

    async def _extend(self, shard: int) -> None:
        try:
            chunks = await self._logs[shard].extend(self._states[shard])
        except Corrupt:
            # A store restored to an earlier state looks like damage: this check names the cause.
            await self._check_continues(shard)
            raise
        except CollectedPast:
            # This driver was suspended. The remembered chunks would have a hole, and the table has the collected ones.
            self._recent[shard].forget()
            self.loads += 1
            await self._load(shard)
        else:
            self.remember(shard, chunks)

    def remember(self, shard: int, chunks: Iterable[Chunk]) -> None:
        """Keep what the indexes of a shard's newest chunks say of the stream."""
        self._recent[shard].add(self._slices_of(chunks))

    async def _check_continues(self, shard: int) -> None:
        """Check that the last seen chunk still has its number.

        Raises:
            WentBack: another chunk has it.
        """
        state = self._states[shard]
        chunk = await self._logs[shard].index(state.n, self.only) if state.n >= 0 else None
        if chunk is not None and chunk.footer_crc != state.footer_crc:
            raise WentBack(
                f"shard {shard} of {self.options.stream} has another chunk {state.n} than before. The hub's store "
                "was restored to an earlier state while it was read; start the query again; its error says what to do"
            )

    @property
    def source(self) -> str:
        """Return cluster, tenant and stream as one text, unique to this stream."""
        return f"{self.cluster.cluster_id.hex()}/{self.options.tenant}/{self.options.stream}"

    @property
    def states(self) -> tuple[ShardState, ...]:
        """Return the state of every shard, by number, up to the same chunks as ``heads``."""
        return tuple(self._states[shard] for shard in sorted(self._states))

    @property
    def heads(self) -> Offsets:
        """Return the end of the log, per shard."""
        key = (self.options.tenant, self.options.stream)
        return {state.shard: state.next_offset.get(key, 0) for state in self.states}

    def records(self, names: Iterable[LaneName]) -> dict[LaneName, RangeSet]:
        """Return the sequence numbers of the records of some lanes below ``heads``; no lane that left the states."""
        states, found = self.states, dict[LaneName, RangeSet]()
        for edge, log_id in names:
            lane = Lane(self.options.tenant, edge, int(log_id, 16), self.options.stream)
            # Of a lane that a split moved, the newer shard has all numbers.
            if held := [state.lanes[lane] for state in states if lane in state.lanes]:
                found[edge, log_id] = held[-1].records
        return found

    @property
    def schema(self) -> pa.Schema:
        """Return the stream's columns, followed by those of the payload schema in the options.

        Raises:
            ReadError: the payload schema has a field with the name of a topic level.
        """
        return with_typed(self.stored, self.options.schema, self.options.version)

    @property
    def stored(self) -> pa.Schema:
        """Return the columns in log and table."""
        return row_schema(self.fields, self.payload)

    @property
    def fields(self) -> list[str]:
        """Return the stream's named topic levels over all shards, in the order of ``row_schema``; none that is a typed
        column in the table."""
        found = (state.stream_fields(self.options.tenant, self.options.stream) for state in self.states)
        typed = typed_names(self.opened_table.schema) if self.opened_table is not None else []
        if self.options.version is not None and self.options.schema is not None:
            typed += self.options.schema.fields  # a level that an edge names later has to have another name
        return usable_fields((name for names in found for name in names), typed)

    @property
    def topics(self) -> dict[Lane, list[str]]:
        """Return the topic patterns of every lane of the stream."""
        lanes = (state.stream_lanes(self.options.tenant, self.options.stream) for state in self.states)
        return {lane: held.topics for shard in lanes for lane, held in shard.items()}

    async def table(self) -> TableSnapshot | None:
        """Return the stream's table as it is now, or None before its first commit. It costs what came since the last
        time.

        Raises:
            ReadError: it was made for other payloads since the log was opened. As ``StreamTable.open``.
        """
        found = await self._table.open()
        if found is not None and found.payload is not self.payload:
            raise ReadError(
                f"the table of {self.options.stream} has payloads as {found.payload.label} now, and had them as "
                f"{self.payload.label} when this query started; start the query again"
            )
        return found

    def remembers(self, shard: int, first: int) -> bool:
        """Return whether ``slices`` from this offset on are in memory."""
        recent = self._recent[shard]
        return bool(recent) and recent[0].section.base_offset <= first

    async def witnesses(self, ends: Offsets) -> dict[int, Witness]:
        """Return the chunk with the record before each offset, as ``History.witnesses``. Chunks that arrived while this
        log was followed need no request."""
        found = {shard: self._remembered(shard, end) for shard, end in ends.items()}
        unknown = {(self.options.stream, shard): ends[shard] for shard, witness in found.items() if witness is None}
        looked_up = await self.history.witnesses(unknown)
        return {shard: witness for shard, witness in found.items() if witness is not None} | {
            shard: witness for (_, shard), witness in looked_up.items()
        }

    def _remembered(self, shard: int, end: int) -> Witness | None:
        for piece in reversed(self._recent[shard]):
            if piece.section.base_offset < end:
                return Witness(piece.n, piece.footer_crc, piece.created) if end <= piece.end else None
        return None

    async def slices(self, shard: int, first: int, end: int) -> list[ChunkSlice]:
        """Return the chunks that hold offsets ``[first, end)`` of a shard, ascending.

        Raises:
            ReadError: some chunks were deleted, or the store is gone.
        """
        if first >= end:
            return []
        if self.remembers(shard, first):
            found = [piece for piece in self._recent[shard] if piece.end > first and piece.section.base_offset < end]
        else:
            found = await self._find(shard, first, end)
        at = first
        for piece in found:
            if piece.section.base_offset > at and self.not_skipped(shard, at, piece.section.base_offset):
                break
            at = piece.end
        if at < end and self.not_skipped(shard, at, end):
            await self._check_missing(f"offsets {at} to {end} of shard {shard}")
        return found

    async def _check_missing(self, what: str) -> None:
        # A store that is not mounted looks like one with deleted chunks, so check it before records are skipped.
        await open_hub(self.options)
        if self.options.fail_on_data_loss:
            stream = self.options.tenant, self.options.stream
            if await only_latest(self._store, self.cluster, stream) is not None:
                raise MissingOffsets(
                    f"{what} left the log, and the stream has a latest table instead of a table of all rows. Begin "
                    'later, or set .option("fail_on_data_loss", "false") to continue without them'
                )
            raise MissingOffsets(
                f"{what} are neither in the log nor in the table. The hub deleted their chunks, and the table was "
                "moved away or restored. Put it back. To continue without them, "
                'set .option("fail_on_data_loss", "false")'
            )

    async def _find(self, shard: int, first: int, end: int) -> list[ChunkSlice]:
        log = self._logs[shard]
        found: list[ChunkSlice] = []
        n = await log.locate(self.options.tenant, self.options.stream, first)
        # The collector may delete a chunk while its index is read. Later chunks are read from then on.
        with suppress(CollectedPast):
            async for chunk in log.indexes(max(n, log.watermark), only=self.only):
                found += [piece for piece in self._slices_of([chunk]) if piece.end > first]
                if found and found[-1].end >= end:
                    break
        return [piece for piece in found if piece.section.base_offset < end]

    def not_skipped(self, shard: int, first: int, end: int) -> bool:
        """Return whether ``[first, end)`` has an offset that no operator skipped (``weft hub skip``)."""
        for skip in self._states[shard].skips.get((self.options.tenant, self.options.stream), ()):
            if skip.first <= first:
                first = max(first, skip.end)
        return first < end

    def shards_of(self, edges: Collection[str] | None) -> Collection[int]:
        """Return the shards that can hold records of these edge nodes.

        The rule of placement names one shard, and lanes may name more, for an edge that came from another shard.
        """
        if edges is None:
            return self._logs.keys()
        return {shard for edge in edges for shard in self._lineage_of(edge)} | {
            state.shard
            for state in self.states
            if any(lane.edge in edges for lane in state.stream_lanes(self.options.tenant, self.options.stream))
        }

    def _lineage_of(self, edge: str) -> Iterator[int]:
        """Yield the shards in which an edge's records were placed: splits may have moved it since."""
        shard: int | None = self.cluster.tree.first_of(self.options.tenant, edge)
        while shard is not None:
            yield shard
            shard = moved_to(self._states[shard].splits, self.options.tenant, edge)

    def state(self, shard: int) -> ShardState:
        """Return the state of a shard, up to the same chunks as ``heads``."""
        return self._states[shard]

    def log_of(self, shard: int) -> ShardLog:
        """Return the log of a shard."""
        return self._logs[shard]

    def first_offset(self, shard: int, table: TableSnapshot | None) -> int:
        """Return the first offset of a shard that the table still has; 0 when the table has no bounds for it."""
        return table.first_offset(shard) if table is not None and table.ends[shard] else 0

    def _slices_of(self, chunks: Iterable[Chunk]) -> list[ChunkSlice]:
        found = []
        for chunk in chunks:
            for section in chunk.footer.streams:
                if (section.tenant, section.stream) == (self.options.tenant, self.options.stream):
                    lanes = tuple(map(self._lane, chunk.footer.lanes_of(section)))
                    clocks = tuple(each for each in chunk.footer.clocks_of(section) if each.tenant == section.tenant)
                    found.append(
                        ChunkSlice(chunk.header.n, section, lanes, clocks, chunk.footer_crc, chunk.header.created)
                    )
        return found

    def _lane(self, update: LaneUpdate) -> LaneUpdate:
        """Return a lane with its origins as only update: mostly one object per lane, which a plan ships only once.
        Lanes of other streams, of which only the number matters, share one object."""
        if (update.tenant, update.stream) != (self.options.tenant, self.options.stream):
            return _OTHER
        name = (update.edge, update.log_id, tuple(update.origins))
        if name not in self._lanes:
            self._lanes[name] = msgspec.structs.replace(
                update, ranges=[], gaps=[], mark=None, topics=None, payload=None, floor=None
            )
        known = self._lanes[name]
        return known if update.floor is None else msgspec.structs.replace(known, floor=update.floor)


def subset(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the named columns of a stream's schema, in the order given; None means all.

    Raises:
        ReadError: the stream lacks one of them, or one is named twice.
    """
    if columns is None:
        return schema
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise ReadError(f"columns: {', '.join(twice)} is named twice; name each column once")
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ReadError(f"columns: the stream has no {', '.join(unknown)}; it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])


async def open_hub(options: ReadOptions) -> tuple[ObjectStore, Cluster]:
    """Return the store and the hub's identity.

    Raises:
        ReadError: the address is wrong, executors cannot reach such a store, it does not answer, or it holds no hub.
    """
    try:
        store = open_store(options.store, dict(options.store_options))
        # Raises for a store in memory, which executors cannot reach.
        store.location(table_key(options.tenant, options.stream))
        return store, await open_cluster(store, None)
    except (ValueError, StoreUnfit, ClusterUnusable) as error:
        raise ReadError(f"store {options.store!r}: {error}") from error
    except StoreError as error:
        raise ReadError(
            f"store {options.store!r} does not answer; check its address and the credentials (store.aws_access_key_id "
            f"and so on, or the environment): {error}"
        ) from error
