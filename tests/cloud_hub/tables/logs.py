"""A hub log made by hand, and what a table holds, for comparison."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
from crc32c import crc32c
from deltalake import DeltaTable

from weft.protocols import batch, chunk
from weft.protocols.batch import ClockReading, ClockState, Flag
from weft.protocols.chunk_index import (
    LEVEL_MAX,
    ChunkHeader,
    ClockUpdate,
    GapRange,
    LaneFlag,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamSection,
    index_of,
)
from weft.protocols.lane import Lane, Origin
from weft.protocols.shard.fold import apply
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster, open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
LANE = Lane("default", "press-1", 7, "telemetry")
OTHER = Lane("default", "press-2", 8, "telemetry")
TOPICS = ["plant/{line}/{machine}/telemetry"]


@dataclass(frozen=True)
class Run:
    """Consecutive records of a lane."""

    lane: Lane
    first: int
    count: int
    key: bytes = b"plant/a/m1/telemetry"
    topics: Sequence[str] | None = None
    resent: bool = False
    gaps: Sequence[GapRange] = ()
    payload_bytes: int = 0
    payloads: Sequence[bytes] | None = None
    """Other payloads than those that name the record."""
    kind: int | None = None
    """What the edge says of the payloads in this chunk."""

    origin: Origin | None = None
    """What made the records, which the chunk explains."""
    explained: bool = True
    renamed_to: str | None = None
    """The new name in a last word behind the records; None without a last word."""
    boot_offset: int | None = None
    """Nanoseconds by which the boot's time is ahead of its monotonic clock, of a clock that was not set."""

    def payload(self, seq: int) -> bytes:
        if self.payloads is not None:
            return self.payloads[seq - self.first]
        return f"{self.lane.edge}/{self.lane.log_id}/{seq}".encode().ljust(self.payload_bytes, b".")

    def encode(self) -> bytes:
        seqs = range(self.first, self.first + self.count)
        times = struct.pack(f"<{self.count}q", *(START + seq * SECOND for seq in seqs))
        flags = dict.fromkeys(range(self.count), int(Flag.DUPLICATE_SUSPECTED)) if self.resent else None
        columns = batch.columns_from_lists(times, [self.key] * self.count, [*map(self.payload, seqs)], None, flags)
        number = self.origin.number if self.origin is not None else 0
        state = ClockState.SYNCED if self.boot_offset is None else ClockState.UNSYNCED
        return batch.encode(1, self.first, columns, ClockReading(1, 2, state), origin=number)


class LogWriter:
    """Writes chunks as a sequencer would, without its cares."""

    def __init__(self, store: ObjectStore, cluster: Cluster) -> None:
        self.store, self.cluster = store, cluster
        self.level = LEVEL_MAX
        """Fold level of the next chunks."""
        self.created = START
        """Moment at which the next chunks are made."""
        self.states = [ShardState(cluster.cluster_id, shard) for shard in range(cluster.shards)]

    @classmethod
    async def open(cls, store: ObjectStore, shards: int = 2) -> LogWriter:
        return cls(store, await open_cluster(store, shards))

    @classmethod
    async def of_copy(cls, prepared: Path, root: Path) -> LogWriter:
        """The log of a copy of a store: for many tries from one state, which costs more to make than to copy."""
        shutil.copytree(prepared, root)
        log = await cls.open(open_store(str(root)))
        for shard in range(len(log.states)):
            await log.follow(shard)
        return log

    async def append(self, shard: int, *runs: Run) -> None:
        """One chunk with one batch per run."""
        state = self.states[shard]
        header = ChunkHeader(self.cluster.cluster_id, state.n + 1, self.created, shard, state.footer_crc, 1)
        parts = [chunk.encode_header(header)]
        lanes = [_update(run) for run in runs]
        sections = []
        for tenant, stream in dict.fromkeys((run.lane.tenant, run.lane.stream) for run in runs):
            of_stream = [run for run in runs if (run.lane.tenant, run.lane.stream) == (tenant, stream)]
            mine = list(enumerate(of_stream))  # the lanes of each stream are numbered
            body = b"".join(
                chunk.encode_entry_header(i, 0, run.count, len(run.encode()), self.created + i) + run.encode()
                for i, run in mine
            )
            count = sum(run.count for _, run in mine)
            base = state.next_offset.get((tenant, stream), 0)
            position = sum(map(len, parts))
            sections.append(StreamSection(tenant, stream, base, count, START, START, position, len(body), crc32c(body)))
            parts.append(body)
        keys = {(each.tenant, each.stream) for each in sections}
        clocks = {key: _clocks([run for run in runs if (run.lane.tenant, run.lane.stream) == key]) for key in keys}
        tail, _ = chunk.encode_footer(index_of(header, self.level, sections, StreamBlock(lanes, [], []), clocks))
        data = b"".join([*parts, tail])
        await ShardLog(self.store, self.cluster, shard).create(header.n, data)
        apply(state, chunk.decode(data))

    async def follow(self, shard: int) -> None:
        """Apply what others wrote."""
        await ShardLog(self.store, self.cluster, shard).extend(self.states[shard])

    async def snapshot(self, shard: int) -> None:
        """A snapshot at the head, named by the manifest."""
        log, state = ShardLog(self.store, self.cluster, shard), self.states[shard]
        key = await log.put_snapshot(state.n, state.n, state.encode())
        manifest, etag = await log.manifest()
        changed = type(manifest)(snapshot_n=state.n, snapshot=key, watermark=manifest.watermark)
        assert await log.swap_manifest(changed, etag)


def _update(run: Run) -> LaneUpdate:
    topics = list(run.topics) if run.topics is not None else None
    ranges = [(run.first, run.first + run.count)]
    origins = [run.origin] if run.origin is not None and run.explained else []
    update = LaneUpdate(*run.lane, 1, ranges, list(run.gaps), None, topics, run.kind, origins)
    if run.renamed_to is None:
        return update
    end = run.first + run.count
    word = Mark(START + end * SECOND, end)
    return msgspec.structs.replace(update, mark=word, flags=int(LaneFlag.LAST_WORD), renamed_to=run.renamed_to)


def _clocks(runs: Sequence[Run]) -> list[ClockUpdate]:
    return [ClockUpdate(*run.lane[:3], 1, 2, run.boot_offset, 0) for run in runs if run.boot_offset is not None]


def table(store: ObjectStore, stream: str = "telemetry") -> DeltaTable:
    """The table as any reader finds it."""
    uri, options = store.location(table_key("default", stream))
    return DeltaTable(uri, storage_options=options)


def rows(store: ObjectStore, stream: str = "telemetry", columns: Sequence[str] | None = None) -> pa.Table:
    """All rows, by shard and offset."""
    found = table(store, stream).to_pyarrow_table(columns=list(columns) if columns else None)
    return found.sort_by([("_shard", "ascending"), ("_offset", "ascending")])


def contents(store: ObjectStore, stream: str = "telemetry") -> list[tuple[int, int, bytes]]:
    """(shard, offset, payload) of every row."""
    found = rows(store, stream, ["_shard", "_offset", "payload"])
    return list(zip(*(found.column(name).to_pylist() for name in ("_shard", "_offset", "payload")), strict=True))


def expected(runs: Mapping[int, Sequence[Run]]) -> list[tuple[int, int, bytes]]:
    """The same for runs that were appended to shards in this order."""
    found = []
    for shard, appended in sorted(runs.items()):
        payloads = [run.payload(seq) for run in appended for seq in range(run.first, run.first + run.count)]
        found += [(shard, offset, payload) for offset, payload in enumerate(payloads)]
    return found
