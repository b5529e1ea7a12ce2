"""History for another region: rows of this hub's tables as batches of their lanes, over a link of their own.

What the log no longer has is in tables alone. A window of rows at a time is encoded and offered like the log's own
batches are; the region's ranges decide what is new there. So it may be interrupted at any step and run again, beside
the links of the log.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from weft.cloud_hub.regions.budget import RegionBudget
from weft.cloud_hub.regions.source import Selection
from weft.cloud_hub.settings import RegionSettings
from weft.protocols.batch import RAW_BYTES_MAX, ROW_BYTES, ClockReading, ClockState, Flag, columns_from_lists, encode
from weft.protocols.chunk_index import GapRange, LaneFlag, Mark, StreamKey
from weft.protocols.lane import ORIGIN_TEXT_MAX, Lane, Origin, OriginKind
from weft.protocols.link import Clock
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState
from weft.replication.events import LinkState, LinkStatus
from weft.replication.liveness import SECOND
from weft.replication.policy import PolicyRules
from weft.replication.runner import LinkIdentity, run_link
from weft.replication.runner.control import LinkControl
from weft.replication.source import Epochs, LaneSnapshot, OfferedLane
from weft.storage.chunk_log import RegionPosition, RegionPositions, ShardLog, first_logs, load_every_shard
from weft.storage.cluster import Cluster, open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import app_id
from weft.storage.table.deletions import stored_deletions
from weft.storage.table.delta import guarded, open_table
from weft.storage.table.latest import only_latest
from weft.storage.table.rows import BYTES_COLUMN, ORIGIN_COLUMN

WINDOW_ROWS, WINDOW_BYTES = 16 << 10, 32 << 20
"""Bounds of a window: offsets, and bytes of its rows; one row always has room."""
LANES_MAX = 1024
"""Maximum number of lanes that are offered at once: a quarter of what a hub takes on a link."""
QUIET_S = 60.0
"""Time without progress after which the command gives up, and says what the link's last error was."""
TABLE_S = 600.0
"""Time for which the tables are awaited: they have to have all rows of the states that were read."""
MARKS_S = 150.0
"""Time for which the link stays open after the last row for marks of lanes that left the state: they have no
acknowledgement, and the region stores them within its ``mark_interval``."""
LOOK_S = 0.05
POSITION_ATTEMPTS = 10
BOOT = (1 << 64) - 1
"""Boot under which times travel that were corrected already: its clock notice has the offset 0, and the monotonic
reading of each batch is the corrected time of its first record."""
ORIGINS_FROM = 1 << 31
"""Least number of an origin: an edge's log counts its own from 1, and a chunk may have batches of both."""
_COLUMNS = (
    "_offset",
    "_edge",
    "_log",
    "_seq",
    "_time",
    "_clock",
    "_edge_time",
    "_key",
    "_resent",
    "_headers",
    "payload",
)


class HistoryError(Exception):
    """The error that ended a transfer, with advice. What was acknowledged stays, and the next run continues."""


@dataclass
class History:
    """The result of a run."""

    rows: int = 0
    """Rows that were offered; the region had some of them already."""
    given_up: int = 0
    """Records that left the tables by erasure, skips or their age: the region has a gap of reason `operator` for those
    that it lacks."""
    left_out: list[str] = field(default_factory=list)
    """Streams of which not everything could be brought, each with the reason."""
    chunks: int = 0
    """Lost chunks that no longer count as such."""


class _Batch(NamedTuple):
    first: int
    end: int
    data: bytes


class HistorySource:
    """Some lanes with the batches of a window, their gaps and marks (``replication.source.LogSource``), which stay as
    they are."""

    def __init__(
        self,
        lanes: Mapping[Lane, LaneState],
        batches: Mapping[Lane, list[_Batch]],
        gaps: Mapping[Lane, RangeSet],
        origins: Mapping[int, Origin],
        clock: Callable[[Lane], Clock],
    ) -> None:
        self._lanes = dict(enumerate(lanes, 1))
        self._states, self._batches, self._origins, self._clock = lanes, batches, origins, clock
        self._gaps = {
            lane: [GapRange(first, end, GapReason.OPERATOR) for first, end in gaps.get(lane, ())] for lane in lanes
        }
        self._held = {lane: RangeSet((each.first, each.end) for each in batches.get(lane, ())) for lane in lanes}
        self._waits = {
            number: RangeSet([*self._held[lane], *gaps.get(lane, ())]) for number, lane in self._lanes.items()
        }
        self.acknowledged = 0
        """Number of words of the region that something is durable."""

    @property
    def is_done(self) -> bool:
        """Return whether the region has acknowledged everything."""
        return not any(self._waits.values())

    def lanes(self) -> list[OfferedLane]:
        """Return all lanes."""
        return [self._offered(number, lane) for number, lane in self._lanes.items()]

    def _offered(self, number: int, lane: Lane) -> OfferedLane:
        state, notice = self._states[lane], self._clock(lane)
        flags = LaneFlag.RELAY | (LaneFlag.PARTIAL if state.partial else LaneFlag(0))
        return OfferedLane(
            number,
            lane.stream,
            tuple(state.topics),
            _kind(state.payload),
            lane,
            flags,
            origin=self._origins.get,
            clock=lambda boot: notice if boot == BOOT else None,
            continues_hub=True,
        )

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return what there is of these lanes."""
        return {number: self._snapshot(self._lanes[number]) for number in lanes if number in self._lanes}

    def _snapshot(self, lane: Lane) -> LaneSnapshot:
        state, held, gaps = self._states[lane], self._held[lane], self._gaps[lane]
        mark: Mark | None = None if state.partial or state.conflict is not None else state.whole_mark
        return LaneSnapshot(held.copy(), max([held.end, *(gap.end for gap in gaps)]), gaps, mark)

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return batches from ``seq`` on."""
        found, size = list[bytes](), 0
        for each in self._batches.get(self._lanes[lane], ()):
            if each.end <= seq:
                continue
            if found and size + len(each.data) > bytes_max:
                break
            found.append(each.data)
            size += len(each.data)
        return found

    def high_watermark(self, hub: str, lane: int) -> int:  # noqa: ARG002
        """Return the end of all numbers: the region may have more of a lane than this hub."""
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        """Return at once."""

    def released(self, lane: int, ranges: RangeSet) -> None:
        """Note what the region has made durable."""
        if lane in self._waits:
            self.acknowledged += 1
            self._waits[lane] = self._waits[lane].minus(ranges)

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:  # noqa: ARG002
        """Call nothing: lanes do not change."""
        return lambda: None


class RowEncoder:
    """Encodes rows of a table as batches. Blocks.

    Times are exact to the microsecond, headers are text, and of the flags only `_resent` is known. A time that was
    corrected, or moved behind a claimed moment, arrives as a corrected one.
    """

    def __init__(self) -> None:
        self.origins: dict[int, Origin] = {}
        self._numbers: dict[str, int] = {}
        self._compressor = zstandard.ZstdCompressor()

    def batches(self, rows: pa.Table, key: StreamKey) -> dict[Lane, list[_Batch]]:
        """Return the rows of a stream as batches by lane, ascending."""
        by_lane: dict[Lane, list[dict[str, Any]]] = defaultdict(list)
        for name in ("_time", "_edge_time"):
            rows = rows.set_column(rows.schema.get_field_index(name), name, rows.column(name).cast(pa.int64()))
        for row in rows.to_pylist():
            by_lane[Lane(key[0], row["_edge"], int(row["_log"], 16), key[1])].append(row)
        return {lane: list(self._of_lane(found)) for lane, found in by_lane.items()}

    def _of_lane(self, rows: list[dict[str, Any]]) -> Iterator[_Batch]:
        rows.sort(key=lambda row: row["_seq"])
        run: list[dict[str, Any]] = []
        size, last = 0, None
        for row in rows:
            row["payload"] = _payload(row)
            shift = None if row["_edge_time"] is None else row["_time"] - row["_edge_time"]
            like = row.get(ORIGIN_COLUMN), row["_clock"] == "unsynced", shift
            cost = (
                ROW_BYTES
                + len(row["payload"])
                + len(row["_key"])
                + sum(len(str(each)) for each in row["_headers"] or ())
            )
            if run and (like != last or row["_seq"] != run[-1]["_seq"] + 1 or size + cost > RAW_BYTES_MAX // 2):
                yield self._batch(run)
                run, size = [], 0
            run.append(row)
            size, last = size + cost, like
        if run:
            yield self._batch(run)

    def _batch(self, run: list[dict[str, Any]]) -> _Batch:
        first = run[0]
        stamps = [row["_time"] if row["_edge_time"] is None else row["_edge_time"] for row in run]
        times = struct.pack(f"<{len(run)}q", *(stamp * 1000 for stamp in stamps))
        headers = {at: tuple(row["_headers"]) for at, row in enumerate(run) if row["_headers"]}
        flags = {at: int(Flag.DUPLICATE_SUSPECTED) for at, row in enumerate(run) if row["_resent"]}
        columns = columns_from_lists(
            times, [row["_key"].encode() for row in run], [row["payload"] for row in run], headers, flags
        )
        is_set = first["_edge_time"] is None and first["_clock"] != "unsynced"
        reading = ClockReading(
            BOOT if first["_edge_time"] is not None else 0,
            first["_time"] * 1000,
            ClockState.SYNCED if is_set else ClockState.UNSYNCED,
        )
        number = self._number(first.get(ORIGIN_COLUMN))
        data = encode(1, first["_seq"], columns, reading, self._compressor, origin=number)
        return _Batch(first["_seq"], first["_seq"] + len(run), data)

    def _number(self, text: str | None) -> int:
        if text is None:
            return 0
        if text not in self._numbers:
            number = ORIGINS_FROM | crc32(text.encode())
            while number in self.origins:
                number = ORIGINS_FROM | (number + 1) & (ORIGINS_FROM - 1)
            self._numbers[text] = number
            self.origins[number] = Origin(number, OriginKind.FUNCTION, text[:ORIGIN_TEXT_MAX], "", b"")
        return self._numbers[text]


def _payload(row: Mapping[str, Any]) -> bytes:
    payload: bytes | str | None = row["payload"]
    if payload is None:
        return bytes(row.get(BYTES_COLUMN) or b"")
    return payload.encode() if isinstance(payload, str) else payload


def _kind(number: int) -> PayloadKind:
    try:
        return PayloadKind(number)
    except ValueError:
        return PayloadKind.BYTES  # of a later release


class _Table:
    """One version of a stream's table. Blocks."""

    def __init__(self, uri: str, options: dict[str, str], cluster: Cluster, key: StreamKey) -> None:
        table = guarded(lambda: open_table(uri, options))
        self.positions: dict[int, int] = {}
        self._dataset: Any = None
        if table is None:
            return
        apps = {shard: app_id(cluster.cluster_id, key[1], shard) for shard in range(cluster.tree.count)}
        self.positions = {shard: int(table.transaction_version(app) or 0) for shard, app in apps.items()}
        self._dataset = guarded(table.to_pyarrow_dataset)

    def windows(self, shard: int) -> Iterator[pa.Table]:
        """Yield the rows of a shard in windows of ascending offsets."""
        names = [name for name in (*_COLUMNS, ORIGIN_COLUMN, BYTES_COLUMN) if name in self._dataset.schema.names]
        first, size, end = 0, WINDOW_ROWS, self.positions[shard]
        while first < end:
            last = min(first + size, end)
            found = guarded(lambda first=first, last=last: self._rows(names, shard, first, last))  # type: ignore[misc]
            if found is None:
                size = max(1, size // 4)
                continue
            if found.num_rows:
                yield found
            first, size = last, min(WINDOW_ROWS, size * 2)

    def _rows(self, names: list[str], shard: int, first: int, end: int) -> pa.Table | None:
        """Return the rows of some offsets; None if they are too large for one window."""
        chosen = (pc.field("_shard") == shard) & (pc.field("_offset") >= first) & (pc.field("_offset") < end)
        scanner = self._dataset.scanner(
            columns=names, filter=chosen, batch_size=1024, batch_readahead=1, fragment_readahead=1, use_threads=False
        )
        found, size = list[pa.RecordBatch](), 0
        for batch in scanner.to_batches():
            found.append(batch)
            size += batch.nbytes
            if size > WINDOW_BYTES and end - first > 1:
                return None
        return pa.Table.from_batches(found, schema=scanner.projected_schema)


class _Stated(NamedTuple):
    """The part of the shards' states that is about one stream."""

    lanes: dict[Lane, LaneState]
    ends: dict[int, int]
    """Shard -> its next offset of the stream."""
    skipped: dict[Lane, RangeSet]


class HistoryTransfer:
    """Brings one region what the tables of this hub have.

    Args:
        name: name of the region.
        wall_clock: nanoseconds since 1970.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        settings: RegionSettings,
        *,
        wall_clock: Callable[[], int],
        monotonic: Callable[[], float],
        marks_s: float = MARKS_S,
    ) -> None:
        self._store, self._name, self._settings = store, name, settings
        self._wall_clock, self._monotonic, self._marks_s = wall_clock, monotonic, marks_s
        self._done = History()
        self._peer = settings.link.sender.cluster_id
        self._budget: RegionBudget | None = None
        """Counts what is sent. An operator has asked for it, so it does not wait."""
        if settings.budget is not None:
            self._budget = RegionBudget(store, name, settings, links=lambda: 1, wall_clock=wall_clock, holds=False)

    async def run(self) -> History:
        """Bring everything. What the region has already is compared, and not sent.

        Raises:
            HistoryError: the region or the tables do not let it end.
            TableError, StoreUnfit: a table cannot be read.
            StoreError: the store does not answer.
        """
        cluster = await open_cluster(self._store, None)
        positions = RegionPositions(self._store, cluster)
        before = {shard: (await positions.read(self._name, shard))[0] for shard in range(cluster.tree.count)}
        self._peer = self._peer or next((each.peer for each in before.values() if each and each.peer), "")
        shards = await load_every_shard(first_logs(self._store, cluster))
        takes = Selection(self._settings.tenant, self._settings.streams, self._settings.forwards)
        streams = {
            key
            for _, state in shards
            for key, end in state.next_offset.items()
            if end and takes.has_stream(key) and key not in state.forgotten
        }
        for key in sorted(streams):
            await self._bring(cluster, key, shards)
        if not self._done.left_out:
            for shard, position in before.items():
                await self._settle(positions, shard, position)
        return self._done

    async def _bring(self, cluster: Cluster, key: StreamKey, shards: list[tuple[ShardLog, ShardState]]) -> None:
        if await only_latest(self._store, cluster, key) is not None:
            self._done.left_out.append(f"{'/'.join(key)}: its table has only the newest record of each key")
            return
        stated = _stated(key, shards)
        table = await self._table(cluster, key, stated.ends)
        held: dict[Lane, RangeSet] = defaultdict(RangeSet)
        left = set[Lane]()
        for shard in stated.ends:
            windows = table.windows(shard)
            while (rows := await asyncio.to_thread(next, windows, None)) is not None:
                encoder = RowEncoder()
                batches = await asyncio.to_thread(encoder.batches, rows, key)
                for lane, found in batches.items():
                    held[lane].update((each.first, each.end) for each in found)
                    if lane not in stated.lanes:
                        left.add(lane)
                        stated.lanes[lane] = await self._left(lane, shards)
                await self._send(stated.lanes, batches, {}, encoder.origins)
                self._done.rows += rows.num_rows
        gaps = await self._gaps(key, stated, held)
        await self._send(stated.lanes, {lane: [] for lane in (*gaps, *left)}, gaps, {}, marks=bool(left))

    async def _table(self, cluster: Cluster, key: StreamKey, ends: Mapping[int, int]) -> _Table:
        """Return a version of the table with all rows of the states that were read."""
        uri, options = self._store.location(table_key(*key))
        until = self._monotonic() + TABLE_S
        while True:
            table = await asyncio.to_thread(_Table, uri, options, cluster, key)
            if all(table.positions.get(shard, 0) >= end for shard, end in ends.items()):
                return table
            if self._monotonic() > until:
                raise HistoryError(
                    f"the table of {'/'.join(key)} lacks records of the log since {TABLE_S:.0f} s. `weft hub status` "
                    "shows why; run the command again when it has them"
                )
            await asyncio.sleep(1.0)

    async def _left(self, lane: Lane, shards: list[tuple[ShardLog, ShardState]]) -> LaneState:
        """Return the last state of a lane that left the states."""
        for log, state in reversed(shards):
            found = await log.ended(lane, state.n)
            if found is not None:
                return snapshots.lane_state(snapshots.decode_lane(found))
        raise HistoryError(
            f"the hub has rows of {lane.edge} in {lane.tenant}/{lane.stream}, and no state of the lane. "
            "Look with `weft audit`"
        )

    async def _gaps(self, key: StreamKey, stated: _Stated, held: Mapping[Lane, RangeSet]) -> dict[Lane, RangeSet]:
        """Return the records that left the table on purpose; note the stream if it lacks others."""
        declared = {lane: ranges.copy() for lane, ranges in stated.skipped.items()}
        for deletion in (await stored_deletions(self._store, *key)).values():
            for edge, log_id, ranges in deletion.lanes:
                declared.setdefault(Lane(key[0], edge, int(log_id, 16), key[1]), RangeSet()).update(ranges)
        gaps: dict[Lane, RangeSet] = {}
        for lane, state in stated.lanes.items():
            missing = state.records.minus(held.get(lane, RangeSet()))
            unexplained = missing.minus(declared.get(lane, RangeSet()))
            if unexplained:
                count = sum(end - first for first, end in unexplained)
                self._done.left_out.append(
                    f"{'/'.join(key)}: the table lacks {count} records of {lane.edge} without a reason; "
                    f"`weft audit {'/'.join(key)} --store URI` names them"
                )
            if given_up := missing.minus(unexplained):
                gaps[lane] = given_up
                self._done.given_up += sum(end - first for first, end in given_up)
        return gaps

    async def _send(
        self,
        states: Mapping[Lane, LaneState],
        batches: Mapping[Lane, list[_Batch]],
        gaps: Mapping[Lane, RangeSet],
        origins: Mapping[int, Origin],
        *,
        marks: bool = False,
    ) -> None:
        """Have the region acknowledge batches and gaps. Some lanes at a time."""
        lanes = list(batches)
        for at in range(0, len(lanes), LANES_MAX):
            some = lanes[at : at + LANES_MAX]
            source = HistorySource(
                {lane: states[lane] for lane in some},
                batches,
                gaps,
                origins,
                lambda lane: Clock(lane.log_id, BOOT, 0, 0, 0),
            )
            await self._deliver(source, marks=marks)

    async def _deliver(self, source: HistorySource, *, marks: bool) -> None:
        cluster = await open_cluster(self._store, None)
        own = int.from_bytes(cluster.cluster_id[:8], "big")
        identity = LinkIdentity(self._settings.tenant or "default", f"region-{self._name}-history"[:64], own, "weft")
        status = LinkStatus(f"{self._name}/history")
        link = self._settings.link
        link = replace(link, sender=replace(link.sender, cluster_id=self._peer, mark_interval=SECOND))
        control = LinkControl(
            PolicyRules(rate=self._settings.rate, budget=self._settings.budget),
            wall_clock=self._wall_clock,
            counts=self._budget,
            counts_bytes=self._budget is not None,
        )
        epochs = Epochs("memory", lambda: b"0", lambda _: None)  # a relay claims none
        running = asyncio.create_task(
            run_link(source, identity, link, epochs, status, wall_clock=self._wall_clock, control=control)
        )
        try:
            await self._until_done(source, status, running)
            self._peer = self._peer or status.cluster_id
            if marks:
                await asyncio.sleep(self._marks_s)
        finally:
            running.cancel()
            await asyncio.wait([running])
            if self._budget is not None:
                await self._budget.settle()

    async def _until_done(self, source: HistorySource, status: LinkStatus, running: asyncio.Task[None]) -> None:
        seen, since = -1, self._monotonic()
        while not source.is_done:
            if source.acknowledged != seen:
                seen, since = source.acknowledged, self._monotonic()
            is_refused = status.state in (LinkState.REFUSED, LinkState.CONFLICT)
            if running.done() or is_refused or self._monotonic() - since > QUIET_S:
                why = status.last_error or f"it acknowledged nothing for {QUIET_S:.0f} s"
                raise HistoryError(f"region {self._name}: {why}. What it has acknowledged stays; run the command again")
            await asyncio.sleep(LOOK_S)

    async def _settle(self, positions: RegionPositions, shard: int, before: RegionPosition | None) -> None:
        """Take the chunks that were lost at the start out of a position."""
        for _ in range(POSITION_ATTEMPTS if before is not None and before.lost else 0):
            assert before is not None, "it has lost chunks"
            found, etag = await positions.read(self._name, shard)
            if found is None or (found.peer or self._peer) != self._peer:
                return  # the link began from the start, and finds out by itself what the region lacks
            brought = RangeSet(before.lost)
            lost = tuple(RangeSet(found.lost).minus(brought))
            if await positions.write(self._name, shard, msgspec.structs.replace(found, lost=lost), etag) is not None:
                self._done.chunks += sum(end - first for first, end in brought)
                return
        if before is not None and before.lost:
            raise HistoryError(f"the position of shard {shard} changes all the time; run the command again")


def _stated(key: StreamKey, shards: list[tuple[ShardLog, ShardState]]) -> _Stated:
    lanes: dict[Lane, LaneState] = {}
    skipped: dict[Lane, RangeSet] = defaultdict(RangeSet)
    for _, state in shards:
        for lane, held in state.lanes.items():
            if (lane.tenant, lane.stream) == key:
                lanes[lane] = held  # of a lane that moved, the new shard has the later state, and the higher number
        for skip in state.skips.get(key, ()):
            for run in skip.runs:
                skipped[Lane(key[0], run.edge, run.log_id, key[1])].add(run.first, run.end)
    ends = {log.shard: end for log, state in shards if (end := state.next_offset.get(key, 0))}
    return _Stated(lanes, ends, skipped)
