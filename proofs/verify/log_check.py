"""Verification of one shard's log: every chunk from the first held one on, and the snapshots against the fold."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass, field

from weft.proofs.verify.report import LostRun, ShardReport, VerifyReport
from weft.protocols import chunk as chunks
from weft.protocols.chunk import Chunk
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.protocols.shard.splits import Split
from weft.storage import hub_keys
from weft.storage.chunk_log import ShardLog
from weft.storage.chunks.in_steps import apply_in_steps
from weft.storage.manifest import Manifest
from weft.storage.object_store import NotFound

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
                f"shard-{self._log.shard}", "missing",
                "no snapshot leads to the head of the log behind what is missing: a hub cannot load this shard",
            )  # fmt: skip
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
                    key, "damaged",
                    f"{key}: offsets {section.base_offset} to {section.base_offset + section.count - 1} of "
                    f"{section.tenant}/{section.stream} are damaged: {error}",
                )  # fmt: skip
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
                told = await self._log.snapshot(key)
            except NotFound:
                continue
            except CodecError as error:
                self._report.note(key, "damaged", str(error))
                continue
            if state.is_whole and told.freeze()() != state.freeze()():
                self._report.note(key, "differs", f"{key} is not the state that the chunks up to {n} make")
            else:
                self._shard.snapshots += 1
