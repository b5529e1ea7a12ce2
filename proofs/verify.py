"""Verification of a whole store, from its objects alone: no node needs to run, and any may."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from weft.proofs.backup.backup import LiveFiles
from weft.proofs.backup.view import BackupView, Unlike, checked, listed, open_backup, pieces, tables
from weft.protocols import chunk as chunks
from weft.protocols.chunk_index import Chunk, StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.placement import Split
from weft.protocols.shard.shard_state import ShardState
from weft.storage import hub_keys
from weft.storage.chunk_log import Manifest, ShardLog, apply_in_steps
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import ClusterLog
from weft.storage.hub_keys import table_key
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.table.actions import DeltaState, TableError, app_id, app_ids, source_ids
from weft.storage.table.delta_log import TableLog

# Report of a verification.

FINDINGS_MAX = 10_000
"""Maximum number of findings that are listed; more are counted."""


class StoreFault(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    place: str
    """Key of an object, or the name of a shard or table."""
    what: str
    """Kind: missing, damaged, differs, other_history, ahead, rows_missing or lost."""
    sentence: str


class LostRun(msgspec.Struct, frozen=True):
    """Records of a lane that are in no chunk, though a later snapshot accounts for them."""

    tenant: str
    edge: str
    log: str
    stream: str
    first: int
    end: int


class LaneEnd(msgspec.Struct, frozen=True):
    """The end of a lane: its edge sends everything from there on by itself, if it still has it."""

    tenant: str
    edge: str
    log: str
    stream: str
    shard: int
    next_seq: int
    """Number after the last that is accounted for without a hole."""
    complete_up_to: int | None
    """Nanoseconds since 1970 by the edge's clock."""
    gone: list[Range]
    """Records that the edge itself had no more when it was asked for them: they are lost for good."""
    retired: bool
    in_order: bool
    """True if the edge had stopped in order."""
    is_awaited: bool
    """True in a restored store while its edge has not come since: later records may come, or be lost."""


class ShardReport(msgspec.Struct):
    """One shard."""

    shard: int
    first: int = 0
    end: int = 0
    chunks: int = 0
    """Chunks whose checksums match."""
    snapshots: int = 0
    """Snapshots that agree with the fold."""
    bytes: int = 0


class TableReport(msgspec.Struct):
    """One table."""

    tenant: str
    stream: str
    version: int = -1
    files: int = 0
    rows_up_to: dict[int, int] = {}
    """Shard -> offset below which all rows are in the table."""


class VerifyReport(msgspec.Struct):
    """Everything that was found."""

    cluster: str
    backup_of: int | None = None
    """Moment of the backup in nanoseconds since 1970; None for a store."""
    restored: int = 0
    """Moment at which the store was restored; 0 for never."""
    shards: list[ShardReport] = []
    tables: list[TableReport] = []
    findings: list[StoreFault] = []
    findings_more: int = 0
    lost: list[LostRun] = []
    lanes: list[LaneEnd] = []

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is wrong with the store itself."""
        return not self.findings

    def note(self, place: str, what: str, sentence: str) -> None:
        """Add a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(StoreFault(place, what, sentence))
        else:
            self.findings_more += 1


def lane_end(shard: int, lane: Lane, held: LaneState, restored: int) -> LaneEnd:
    """Return the end of a lane.

    Args:
        restored: moment at which the store was restored, in nanoseconds since 1970; 0 for never.
    """
    gone = [(gap.first, gap.end) for gap in held.gaps if gap.reason == GapReason.ABSENT]
    return LaneEnd(
        lane.tenant,
        lane.edge,
        format_log_id(lane.log_id),
        lane.stream,
        shard,
        held.ranges.contiguous_end(),
        held.complete_up_to,
        gone,
        held.retired is not None,
        held.ended_in_order(),
        held.last_seen < restored,
    )


# Verification of one shard's log: every chunk from the first held one on, and the snapshots against the fold.

Records = dict[Lane, RangeSet]
Answer = tuple[Chunk, memoryview] | CodecError | None
READ_AHEAD = 4
"""Number of whole chunks in memory at most."""


@dataclass
class CheckedLog:
    """The facts of a log with which tables are compared."""

    log: ShardLog
    first: int = 0
    """Number of the first chunk that the log should have."""
    state: ShardState | None = None
    """The state at the head; None if no chunk leads there."""
    starts: dict[StreamKey, int] = field(default_factory=dict)
    """Offset of the first record of a stream in the chunks that are there."""
    crcs: dict[int, int] = field(default_factory=dict)
    """Chunk -> checksum of its footer, for the chunks that tables name."""


class LogCheck:
    """The check of one shard. A few chunks are in memory at a time, and the state of the shard twice.

    Args:
        wanted: numbers of chunks whose checksums are kept.
    """

    def __init__(self, log: ShardLog, report: VerifyReport, wanted: frozenset[int]) -> None:
        self._log, self._report, self._wanted = log, report, wanted
        self._shard = ShardReport(log.shard)
        self._checked = CheckedLog(log)
        self._snapshots: dict[int, list[str]] = defaultdict(list)
        self._before: Records | None = None
        """Records at the end of the log before a hole; None without one."""
        self._since: Records = defaultdict(RangeSet)
        """Records of the chunks after it."""

    async def run(self) -> CheckedLog:
        """Check the shard, and note what is wrong in the report.

        Raises:
            StoreError: the store did not answer.
        """
        self._report.shards.append(self._shard)
        try:
            manifest, _ = await self._log.manifest()
        except CodecError as error:
            self._report.note(hub_keys.manifest_key(self._log.shard), "damaged", str(error))
            manifest = Manifest()
        await self._list_snapshots(manifest)
        if manifest.snapshot is not None and manifest.snapshot not in self._snapshots[manifest.snapshot_n]:
            self._report.note(
                manifest.snapshot, "missing", f"{manifest.snapshot}, which the manifest names, is missing"
            )
        first = self._checked.first = self._shard.first = manifest.watermark
        if not first and self._log.split is not None:
            await self._begin(self._log.split)
            return self._checked
        state = ShardState(self._log.cluster.cluster_id, self._log.shard, self._log.rules) if not first else None
        if first:
            state = await self._snapshot_at(first - 1)
        await self._chunks(first, await self._end(first), state, manifest)
        return self._checked

    async def _list_snapshots(self, manifest: Manifest) -> None:
        """List the snapshots of each chunk, the one that the log names first. Of the chunk before a new shard's first
        there may be others, of attempts at the SEAL that the log did not take."""
        split = self._log.split
        begins = hub_keys.snapshot_key(split.shard, split.n, split.nonce) if split is not None else None
        self._snapshots.clear()
        for n, key in sorted(await self._log.snapshots(), key=lambda each: each[1] not in (manifest.snapshot, begins)):
            self._snapshots[n].append(key)

    async def _begin(self, split: Split) -> None:
        """Check a shard whose SEAL is in the log, and which had no manifest yet."""
        try:
            self._checked.state = await self._log.load()
        except CodecError as error:
            key = hub_keys.snapshot_key(split.shard, split.n, split.nonce)
            self._report.note(key, "missing", str(error))

    async def _end(self, first: int) -> int:
        """Return the number after the last chunk; those in between may be missing."""
        prefix, low, step = hub_keys.chunk_prefix(self._log.shard), first, 1

        async def reaches(n: int) -> bool:
            after = hub_keys.chunk_key(self._log.shard, n - 1) if n else None
            return bool(await self._log.store.list(prefix, after=after, limit=1))

        while await reaches(low + step - 1):
            low, step = low + step, 2 * step
        while step > 1:
            step //= 2
            if await reaches(low + step - 1):
                low += step
        return low

    async def _chunks(self, first: int, end: int, state: ShardState | None, manifest: Manifest) -> None:
        hole: int | None = None
        ahead: list[Answer] = []
        for n in range(first, end):
            if not ahead:
                ahead = await self._read(n, min(n + READ_AHEAD, end))
            found = self._chunk(n, ahead.pop(0))
            if found is None and await self._is_collected(n):
                state = await self._snapshot_at(n)
                continue
            if found is None:
                hole = n if hole is None else hole
                if state is not None:
                    self._before = {lane: held.records.copy() for lane, held in state.lanes.items()}
                    state = None
            else:
                self._note_hole(hole, n)
                hole = None
                state = await self._apply(found, state)
            if state is None or state.n != n:
                state = await self._snapshot_at(n) or state
            else:
                await self._compare(state, n)
        self._note_hole(hole, end)
        self._shard.end = end
        if manifest.snapshot_n >= end:
            if state is not None:
                self._before = {lane: held.records.copy() for lane, held in state.lanes.items()}
            state = await self._snapshot_at(manifest.snapshot_n) or state
            missing = f"chunks {end} to {manifest.snapshot_n}, which {manifest.snapshot} was made after, are missing"
            self._report.note(f"shard-{self._log.shard}", "missing", missing)
        if state is None and end > first:
            self._report.note(
                f"shard-{self._log.shard}",
                "missing",
                "no snapshot leads to the head of the log behind what is missing: a hub cannot load this shard",
            )
        self._checked.state = state

    def _note_hole(self, first: int | None, end: int) -> None:
        if first is not None and end > first:
            named = f"chunk {first} is" if end == first + 1 else f"chunks {first} to {end - 1} are"
            self._report.note(f"shard-{self._log.shard}", "missing", f"{named} missing or damaged")

    async def _read(self, first: int, end: int) -> list[Answer]:
        async def read(n: int) -> Answer:
            try:
                return await self._log.whole(n)
            except CodecError as error:
                return error

        return await asyncio.gather(*map(read, range(first, end)))

    async def _is_collected(self, n: int) -> bool:
        """Return whether the hub has deleted chunk n since the check began."""
        with contextlib.suppress(CodecError):
            manifest, _ = await self._log.manifest()
            if manifest.watermark > n:
                if manifest.watermark > self._shard.first:
                    await self._list_snapshots(manifest)  # others led here when the check began
                self._checked.first = self._shard.first = manifest.watermark
                self._checked.starts.clear()
                return True
        return False

    def _chunk(self, n: int, answer: Answer) -> Chunk | None:
        """Check chunk n. Return its index; None without one."""
        key = hub_keys.chunk_key(self._log.shard, n)
        if isinstance(answer, CodecError):
            self._report.note(key, "damaged", str(answer))
        if answer is None or isinstance(answer, CodecError):
            return None
        index, data = answer
        is_sound = True
        for section in index.footer.streams:
            try:
                chunks.check_section(data[section.position : section.position + section.length], section)
            except CodecError as error:
                is_sound = False
                self._report.note(
                    key,
                    "damaged",
                    f"{key}: offsets {section.base_offset} to {section.base_offset + section.count - 1} of "
                    f"{section.tenant}/{section.stream} are damaged: {error}",
                )
            self._checked.starts.setdefault((section.tenant, section.stream), section.base_offset)
        self._shard.chunks += is_sound
        self._shard.bytes += len(data)
        if n in self._wanted:
            self._checked.crcs[n] = index.footer_crc
        return index

    async def _apply(self, chunk: Chunk, state: ShardState | None) -> ShardState | None:
        if self._before is not None:
            for update in chunk.footer.lanes:
                lane = Lane(update.tenant, update.edge, update.log_id, update.stream)
                self._since[lane].update(update.ranges)
        if state is None or state.n + 1 != chunk.header.n:
            return state
        try:
            await apply_in_steps(state, chunk)
        except CodecError as error:
            key = hub_keys.chunk_key(self._log.shard, chunk.header.n)
            self._report.note(key, "differs", f"{key} does not continue the log: {error}")
            return None
        return state

    async def _snapshot_at(self, n: int) -> ShardState | None:
        """Return the state of a snapshot of chunk n; None without a readable one."""
        for key in self._snapshots.get(n, ()):
            try:
                state = await self._log.snapshot(key)
            except NotFound:
                continue  # the hub has deleted it meanwhile
            except CodecError as error:
                self._report.note(key, "damaged", str(error))
                continue
            self._name_lost(state)
            self._shard.snapshots += 1
            return state
        return None

    def _name_lost(self, state: ShardState) -> None:
        """Name the records of the chunks that are missing before a snapshot."""
        if self._before is None:
            return
        for lane, held in sorted(state.lanes.items()):
            known = self._before.get(lane, RangeSet()).copy()
            known.update(self._since.get(lane, ()))
            for run in held.records:
                for first, end in known.missing(*run):
                    self._report.lost.append(
                        LostRun(lane.tenant, lane.edge, format_log_id(lane.log_id), lane.stream, first, end)
                    )
        self._before = None
        self._since.clear()

    async def _compare(self, state: ShardState, n: int) -> None:
        for key in self._snapshots.get(n, ()):
            try:
                snapshot = await self._log.snapshot(key)
            except NotFound:
                continue
            except CodecError as error:
                self._report.note(key, "damaged", str(error))
                continue
            if state.is_whole and snapshot.freeze()() != state.freeze()():
                self._report.note(key, "differs", f"{key} is not the state that the chunks up to {n} make")
            else:
                self._shard.snapshots += 1


# Verification of one table: its files, and its positions against the log.


async def read_table(store: ObjectStore, cluster_id: bytes, tenant: str, stream: str) -> DeltaState | None:
    """Return a table's newest version; None without one. Raises TableError, StoreError."""
    return await TableLog(store, table_key(tenant, stream), app_ids(cluster_id, stream)).read()


def sources(state: DeltaState, cluster_id: bytes, stream: str, shards: int) -> dict[int, int]:
    """Return for each shard the chunk that a table's position comes from."""
    named = ((shard, source_ids(app_id(cluster_id, stream, shard))[0]) for shard in range(shards))
    return {shard: state.transactions[name] for shard, name in named if name in state.transactions}


async def check_table(
    store: ObjectStore, report: VerifyReport, tenant: str, stream: str, state: DeltaState
) -> TableReport:
    """Check that every file of a table is there, and note those that are not.

    Raises:
        StoreError: the store did not answer.
    """
    key, live = table_key(tenant, stream), LiveFiles()
    found = TableReport(tenant, stream, state.version)
    report.tables.append(found)
    try:
        await TableLog(store, key).follow(live)
    except TableError as error:
        report.note(key, "damaged", str(error))
        return found
    found.files = len(live.files)
    missing = dict(live.files)
    async for item in listed(store, key):
        size = missing.pop(name := item.key.removeprefix(f"{key}/"), None)
        if size is not None and size != item.size:
            report.note(item.key, "damaged", f"{key}/{name} has {item.size} bytes, the table records {size}")
    for name in sorted(missing):
        report.note(f"{key}/{name}", "missing", f"{key}/{name}, a file of version {live.version}, is missing")
    return found


def check_positions(
    report: VerifyReport, found: TableReport, state: DeltaState, cluster_id: bytes, logs: Mapping[int, CheckedLog]
) -> None:
    """Compare a table's positions with the logs."""
    key, stream = table_key(found.tenant, found.stream), (found.tenant, found.stream)
    for shard, log in logs.items():
        app = app_id(cluster_id, found.stream, shard)
        position = state.transactions.get(app, 0)
        if position:
            found.rows_up_to[shard] = position
        end = log.state.next_offset.get(stream, 0) if log.state is not None else None
        if end is not None and position > end:
            report.note(
                key,
                "ahead",
                f"{key} has rows of shard {shard} up to offset {position}, the log ends at {end}: the log is older "
                "than the table",
            )
            continue
        n, crc = (state.transactions.get(name) for name in source_ids(app))
        if position and n is not None and n >= log.first and log.crcs.get(n) != crc:
            how = "is not there" if n not in log.crcs else "is another one"
            report.note(key, "other_history", f"{key} has rows of chunk {n} of shard {shard}, which {how}")
        start = log.starts.get(stream, end)
        if start is not None and position < start:
            report.note(
                key,
                "rows_missing",
                f"offsets {position} to {start - 1} of {found.tenant}/{found.stream} in shard {shard} are neither in "
                "the table nor in a chunk",
            )


async def verify(store: ObjectStore) -> VerifyReport:
    """Check a hub's store, or a backup in its place.

    Tables are read before the logs, so that the log of a running hub has every row.

    Raises:
        BackupUnusable: there is a backup that cannot be read.
        ClusterUnusable: there is neither a hub nor a backup.
        StoreError: the store did not answer.
    """
    view = await open_backup(store)
    cluster = await open_cluster(view or store, None)
    report = VerifyReport(cluster.cluster_id.hex(), view.record.started if view else None, cluster.restored)
    read: list[tuple[str, str, DeltaState]] = []
    wanted: dict[int, set[int]] = defaultdict(set)
    for tenant, stream in await _tables(store, view):
        try:
            state = await read_table(view or store, cluster.cluster_id, tenant, stream)
        except TableError as error:
            report.note(table_key(tenant, stream), "damaged", str(error))
            continue
        if state is None:
            continue
        read.append((tenant, stream, state))
        for shard, n in sources(state, cluster.cluster_id, stream, cluster.tree.count).items():
            wanted[shard].add(n)
    logs: dict[int, CheckedLog] = {}
    made: dict[int, ShardLog] = {}
    for shard in range(cluster.tree.count):
        log = made.get(shard) or ShardLog(view or store, cluster, shard)
        logs[shard] = await LogCheck(log, report, frozenset(wanted[shard])).run()
        if (head := logs[shard].state) is not None:
            # Their numbers are higher, so each comes after the one that it is split from.
            made |= {split.shard: log.new_shard(split) for split in head.splits}
    if view is not None:
        await _check_others(view, report)
    await _check_declared(view or store, cluster.cluster_id, report)
    for tenant, stream, state in read:
        found = await check_table(view or store, report, tenant, stream, state)
        check_positions(report, found, state, cluster.cluster_id, logs)
    for shard, found_log in logs.items():
        if found_log.state is not None:
            lanes = sorted(found_log.state.lanes.items())
            report.lanes += [lane_end(shard, lane, held, cluster.restored) for lane, held in lanes]
    return report


async def _check_others(view: BackupView, report: VerifyReport) -> None:
    """Compare the further objects of a backup with the content that their keys name."""
    for key, (content, size) in view.others.items():
        try:
            async for _ in checked(key, content, pieces(view, key, size)):
                pass
        except NotFound:
            report.note(key, "missing", f"{content} is not there: the backup lacks {key}")
        except Unlike as error:
            report.note(key, "damaged", str(error))


async def _check_declared(store: ObjectStore, cluster_id: bytes, report: VerifyReport) -> None:
    """Read the cluster log, and note the entries that are not usable."""
    try:
        state = await ClusterLog(store, cluster_id).load()
    except CodecError as error:
        report.note("cluster", "damaged", str(error))
        return
    for each in state.skipped:
        report.note("cluster", "damaged", each.why)


async def _tables(store: ObjectStore, view: BackupView | None) -> list[tuple[str, str]]:
    if view is not None:
        return [(part.tenant, part.stream) for part in view.record.tables]
    return [names async for names in tables(store)]
