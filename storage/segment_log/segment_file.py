"""Writing of segment files: create, commit, seal, and begin the next one with what older segments must not lose."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import zstandard

from weft.protocols.batch import decode_header
from weft.protocols.lane import Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import (
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    SEALED_VERSION,
    TRAILER_BYTES,
    ClockNotice,
    EntryKind,
    Footer,
    GapNotice,
    GapReason,
    Kept,
    KeptLane,
    Owner,
    SegmentHeader,
    StreamEntry,
    Whole,
    decode_body,
    encode_body,
    encode_entry_header,
    encode_header,
    encode_streams,
    encode_trailer,
    file_name,
    version_needed,
)
from weft.storage.filesystem import File, FileSystem
from weft.storage.segment_log.encryption import ring_of
from weft.storage.segment_log.index import Segment, SegmentIndex, merged, notices
from weft.storage.segment_log.pending import PendingCommit
from weft.storage.segment_log.settings import SEALED_BYTES, UNFINISHED, aside_path, entry_about
from weft.storage.segment_log.space import (
    Needed,
    SegmentSpace,
    dropped,
    forget_lost,
    has_bytes_of,
    held_within,
    moved_batches,
    needed_gaps,
    needed_records,
)
from weft.storage.segment_log.state import LogState, Plan

# Writing one segment file: create, commit, seal.

PAGE_BYTES = 4096
"""Smallest unit of flash writes: after a commit that ends within a page, the next one writes that page again."""
ZEROED_BYTES = 32 << 10
"""A small commit writes zeros up to the next multiple of this: the first write to a block costs a journal entry of the
file system with its sync (``docs/decisions/0018-zeros-ahead-of-small-commits.md``)."""
SMALL_COMMIT_BYTES = 8 << 10
"""Size of a commit below which its share of the zeros costs less than the journal."""
OPENING_PIECE_BYTES = 1 << 20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""The disk is full, or the user's share of it."""


def pages(start: int, end: int) -> int:
    """Return the bytes of the device's pages that a write of ``[start, end)`` touches."""
    return (-(-end // PAGE_BYTES) - start // PAGE_BYTES) * PAGE_BYTES


def newest_version(entries: Iterable[tuple[EntryKind, bytes]]) -> int:
    """Return the lowest version of a segment that may contain all these entries."""
    return max(version_needed(kind, body) for kind, body in entries)


class SegmentWriter:
    """The segment that is being written. For the writer thread; ``segment.end`` moves only in ``publish``."""

    def __init__(self, file: File, segment: Segment) -> None:
        self._file = file
        ring = ring_of(file)
        self._cipher = None if ring is None or segment.version < SEALED_VERSION else ring.cipher
        self.frame_bytes = ENTRY_HEADER_BYTES + (0 if self._cipher is None else SEALED_BYTES)
        """Bytes of an entry in the file beside its plain body."""
        segment.index.seal_bytes = self.frame_bytes - ENTRY_HEADER_BYTES
        self.segment = segment
        self.device_bytes = 0
        """Bytes of pages written since the caller last reset it."""
        self._end = segment.end
        self._written = segment.end
        """Offset from which on nothing was written yet, not even zeros."""

    @classmethod
    def create(  # noqa: PLR0917 - what a segment begins with
        cls,
        filesystem: FileSystem,
        directory: str,
        header: SegmentHeader,
        streams: dict[int, StreamEntry],
        opening: Iterable[tuple[EntryKind, bytes]],
        length: int,
    ) -> SegmentWriter:
        """Make a segment whose first entry names all streams; file and name are durable when this returns.

        Space is reserved but not written: ``write`` writes zeros, a part at a time, when that saves the disk more than
        it costs.

        Args:
            opening: the entries after the first; they are written as the iterable yields them.
            length: length of the file; more if the entries need it.

        Raises:
            OSError: the segment was not made, unless the sync of its name failed.
        """
        # The name is the position: the checksums of entries are seeded with it, so a file under a wrong name fails at
        # its first entry.
        path = os.path.join(directory, file_name(header.first_position))
        # A crash may have left an unfinished segment of this name.
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove(path + UNFINISHED)
        file = filesystem.create(path + UNFINISHED)
        try:
            # Appends into reserved blocks change no metadata, which makes each sync 1.3 to 2.5 times faster.
            file.allocate(length)
            file.write_at(0, encode_header(header))
            segment = Segment(path, header.first_position, HEADER_BYTES, 0, SegmentIndex(), version=header.version)
            segment.index.streams = {stream: entry.name for stream, entry in streams.items()}
            writer = cls(file, segment)
            writer.write_opening(itertools.chain([(EntryKind.STREAMS, encode_streams(streams))], opening))
            file.sync()
            # Content before name: a segment that has its name is complete, also after a power cut.
            filesystem.rename(path + UNFINISHED, path)
            filesystem.sync_directory(directory)
            writer.publish()
            segment.size = file.size()
            return writer
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                filesystem.remove(path + UNFINISHED)
            raise

    def write_opening(self, entries: Iterable[tuple[EntryKind, bytes]]) -> None:
        """Write entries of a segment without a name, in pieces, unsynced, and index them."""
        parts: list[bytes] = []
        length, start, index = 0, self._end, self.segment.index
        for kind, body in entries:
            parts += self._stored(self.segment.first_position + self._end, kind, body)
            if kind is EntryKind.MOVED:
                index.add_batch(decode_header(body), self._end, self.frame_bytes + len(body), moved=True)
            elif kind is not EntryKind.STREAMS:
                value = decode_body(kind, body)
                if isinstance(value, GapNotice):
                    index.add_gap(value)
                elif isinstance(value, Kept):
                    index.kept = value.lanes
                elif isinstance(value, Owner):
                    index.owner = value
                elif isinstance(value, ClockNotice):
                    index.add_clocks([value])
                elif isinstance(value, list):
                    index.add_origins(value)
            length += self.frame_bytes + len(body)
            self._end += self.frame_bytes + len(body)
            # In pieces, because moved records may be many megabytes.
            if length >= OPENING_PIECE_BYTES:
                self._file.write_at(start, b"".join(parts))
                start, length = self._end, 0
                parts.clear()
        self._file.write_at(start, b"".join(parts))
        self.device_bytes += pages(0, self._end)

    def grow(self, length: int) -> None:
        """Reserve space up to ``length`` bytes, or as much as the disk has.

        Raises:
            OSError: for any error other than a full disk.
        """
        if length > self._file.size():
            try:
                self._file.allocate(length)
            except OSError as error:
                # On a full disk the segment keeps its length, and the log refuses records when that is used up.
                if error.errno not in NO_SPACE:
                    raise

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._file.size()

    @property
    def next_position(self) -> int:
        """Log position of the next entry."""
        return self.segment.first_position + self._end

    def fits(self, length: int, version: int = 1) -> bool:
        """Return whether ``length`` more bytes of entries, which need a segment of ``version``, leave room for a footer
        in the reserved space."""
        return (
            # The header's version says what a reader must know. An entry of a later format begins a new segment, so
            # that an earlier release refuses the log at its first look instead of cutting the entry as torn.
            version <= self.segment.version
            and self._end + length + self.segment.index.footer_bytes + TRAILER_BYTES <= self.segment.size
        )

    def write(self, entries: list[tuple[EntryKind, bytes]], version: int) -> list[int]:
        """Append entries with one write and one sync. Returns the offset of each.

        Args:
            version: their ``newest_version``. A commit looks it up once, since it costs as much as the checksums.

        Raises:
            ValueError: a segment of this version must not contain one of them. Nothing was written.
            OSError: it is not known what reached the disk; the segment must not be written again.
        """
        parts: list[bytes] = []
        offsets = []
        at = self._end
        if version > self.segment.version:
            raise ValueError(f"{self.segment.path} has version {self.segment.version}, which is too low for a commit")
        for kind, body in entries:
            offsets.append(at)
            parts += self._stored(self.segment.first_position + at, kind, body)
            at += self.frame_bytes + len(body)
        stop = at
        # Zeros only into blocks that were never written, and only for a small commit: see ``ZEROED_BYTES``.
        if at > self._written and at - self._end < SMALL_COMMIT_BYTES:
            stop = min(-(-at // ZEROED_BYTES) * ZEROED_BYTES, self.segment.size)
            parts.append(bytes(stop - at))
        # One write for the whole commit: a crash can only shorten it, and recovery tells by the mark of the next one.
        self._file.write_at(self._end, b"".join(parts))
        self._file.sync()
        self.device_bytes += pages(self._end, stop)
        self._end, self._written = at, max(stop, self._written)
        return offsets

    def _stored(self, position: int, kind: EntryKind, body: bytes) -> tuple[bytes, bytes]:
        """Return an entry's header and its body as they are in the file."""
        if self._cipher is None:
            return encode_entry_header(position, kind, body), body
        sealed = self._cipher.seal(body, entry_about(kind))
        return encode_entry_header(position, kind, sealed, is_sealed=True), sealed

    def publish(self) -> None:
        """Make the entries of ``write`` visible to readers."""
        self.segment.end = self._end
        self.segment.size = max(self.segment.size, self._end)

    def seal(self, footer: Footer) -> int:
        """Write footer and trailer, cut the file to its end and sync. Returns the size of the file.

        A crash in between leaves an unsealed segment with all its entries.

        Raises:
            OSError: as ``write``.
        """
        body = encode_body(footer)
        last = b"".join((*self._stored(self.next_position, EntryKind.FOOTER, body), encode_trailer(self._end)))
        self._file.write_at(self._end, last)
        size = self._end + len(last)
        # Before the sync: readers find the trailer at the end of the file, not before preallocated zeros.
        self._file.truncate(size)
        self._file.sync()
        self._file.close()
        self.device_bytes += pages(self._end, size)
        return size

    def close(self) -> None:
        """Release the file."""
        self._file.close()


# The entries of one commit, in the order of the file.


def commit_entries(
    commit: PendingCommit, mark: bytes, compressor: zstandard.ZstdCompressor | None, frame_bytes: int
) -> list[tuple[EntryKind, bytes]]:
    """Return the mark, the entries that batches refer to, the notices, and the batches, with a fence before batches
    that belong together.

    Args:
        frame_bytes: bytes of an entry in the file beside its body.
    """
    entries = [(EntryKind.STREAMS, mark)]
    if commit.origins:
        entries.append((EntryKind.ORIGINS, encode_body(commit.origins)))
    entries += [(EntryKind.CLOCK, encode_body(clock)) for clock in commit.clocks]
    # Notices before batches: if a crash leaves only a beginning, a number is explained rather than missing.
    entries += [(EntryKind.GAP, encode_body(gap)) for gap in commit.gaps]
    batches = [(EntryKind.BATCH, pending.encode(compressor)) for pending in commit.batches]
    # One batch is one entry with a checksum, which is whole or not without a fence.
    if commit.is_whole and len(batches) > 1:
        length = sum(frame_bytes + len(body) for _, body in batches)
        entries.append((EntryKind.WHOLE, encode_body(Whole(length))))
    return entries + batches


# Beginning a segment: copy the needed entries of older segments first, then delete those.
#
# A new segment gets its name only when its whole beginning is durable: the streams, the numbers that the log accounts
# for, gap notices and records moved forward. So a crash leaves the old segments, or old and new, never less; records
# that are then in both count once (``recovery``).

logger = logging.getLogger(__name__)


@dataclass
class _Opening:
    """Content of a new segment under a plan: computed under the lock, written without it."""

    victims: list[tuple[Segment, Needed]] = field(default_factory=list)
    gaps: list[GapNotice] = field(default_factory=list)
    drops: list[GapNotice] = field(default_factory=list)
    gone: dict[int, RangeSet] = field(default_factory=dict)
    """Records that are lost with the victims without a notice, because they were released."""
    kept: list[KeptLane] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    clocks: list[ClockNotice] = field(default_factory=list)


def open_segment(state: LogState, position: int, now: int, space: SegmentSpace, version: int = 1) -> SegmentWriter:
    """Begin the segment at ``position``, then delete the planned files. For the writer thread, without the lock.

    Args:
        now: wall clock, ns since 1970.
        version: version that its future entries need; a log with a higher one keeps that.

    Raises:
        UnmovableSegment: a victim is damaged; nothing was changed.
        OSError: as a write or a deletion.
    """
    with state.changed:
        plan = space.plan
        opening = _prepare(state, plan, now)
        streams = state.stream_entries()
        # Never lower than that of another file in the log, since nothing is gained by it while that file is there.
        version = max(version, state.version)
    state.check_place()
    header = SegmentHeader(state.log_id, position, now, version)
    writer = SegmentWriter.create(
        state.filesystem, state.directory, header, streams, _entries(state, opening), space.first_length
    )
    with state.changed:
        _publish(state, opening, plan, writer)
    # After the new segment has its name. A crash in between leaves records twice, which recovery counts once.
    victims = [segment for segment, _ in opening.victims]
    _remove(state, victims, [*plan.asides, *(aside_path(segment.path) for segment in victims)])
    # The old files are gone only now, and with them the disk has room for the full length.
    writer.grow(space.length)
    with state.changed:
        writer.segment.size = writer.size
    return writer


def delete_free(state: LogState, free: list[Segment]) -> None:
    """Delete segments that hold nothing, after the result of ``kept_after`` is durable.

    Raises:
        OSError: a file could not be removed durably.
    """
    asides = [segment for segment in free if state.filesystem.exists(aside_path(segment.path))]
    with state.changed:
        _forget(state, free)
        state.collect_gaps()
        state.asides.update((aside_path(segment.path), segment.size) for segment in asides)
    _remove(state, free)


def kept_after(state: LogState, free: list[Segment]) -> list[KeptLane]:
    """Return the numbers that the log accounts for without segments that hold nothing. Call with the lock."""
    return kept_lanes(state, {}, [gap for segment in free for gap in segment.index.gaps])


def _forget(state: LogState, victims: list[Segment]) -> None:
    for segment in victims:
        state.segments.remove(segment)
        for stream, span in segment.index.spans():
            state.lanes[stream].bytes -= span.live_size
    state.changes += 1


def _remove(state: LogState, segments: Sequence[Segment], asides: Sequence[str] = ()) -> None:
    """Remove files of segments and files kept aside, durably."""
    state.check_place()
    for path in asides:
        _remove_file(state, path)
    gone: list[Segment] = []
    # Oldest first: a notice is in the file of its records or in a later one.
    for segment in sorted(segments, key=lambda segment: segment.first_position):
        # After a power cut a file system may have kept this removal and lost an earlier one. Records would come back
        # that hubs know as lost (I8), so the notice goes after the removal of its records is durable.
        if any(has_bytes_of(other, gap) for gap in segment.index.gaps for other in gone):
            state.filesystem.sync_directory(state.directory)
            gone.clear()
        _remove_file(state, segment.path)
        gone.append(segment)
    if asides or gone:
        state.filesystem.sync_directory(state.directory)


def _remove_file(state: LogState, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        state.filesystem.remove(path)
        logger.info("deleted %s: nothing in it must stay", path)


def kept_lanes(state: LogState, gone: dict[int, RangeSet], going: list[GapNotice]) -> list[KeptLane]:
    """Return the numbers that the log accounts for without ``gone``. Call with the lock.

    Args:
        going: notices that are deleted too.
    """
    waiting = state.queue.waiting_gaps()
    lanes = []
    for stream, lane in state.lanes.items():
        ranges = lane.held.copy()
        for first, end in gone.get(stream, RangeSet()):
            ranges.remove(first, end)
        for gap in lane.gaps:
            ranges.add(gap.first, gap.end)
        for gap in going:
            if gap.stream == stream:
                ranges.remove(gap.first, gap.end)
        for gap in waiting:
            if gap.stream == stream:
                # Records that were released after the notice was queued may be gone before it is durable, which is not
                # a loss.
                # The rest must stay accounted for: its notice is not on the disk yet.
                for part in lane.released.missing(gap.first, gap.end):
                    ranges.add(*part)
        lanes.append(KeptLane(stream, lane.durable_end, list(ranges)))
    return lanes


def _prepare(state: LogState, plan: Plan, now: int) -> _Opening:
    opening = _Opening()
    others = [segment for segment in state.segments if segment not in plan.victims]
    for stream, numbers in dropped(state, plan.drop_ends).items():
        opening.drops += notices(stream, numbers, GapReason.BUDGET, now)
        # Records that hubs have are dropped too: a batch is kept as a whole or not at all.
        opening.gone[stream] = RangeSet(held_within(state.lanes[stream].held, 0, plan.drop_ends[stream]))
    staying: list[GapNotice] = []
    going: list[GapNotice] = []
    for segment in plan.victims:
        needed = needed_records(state, segment, plan.drop_ends)
        opening.victims.append((segment, needed))
        stays = needed_gaps(state, segment, others)
        staying += stays
        going += [gap for gap in segment.index.gaps if gap not in stays]
        for moved, lanes in ((True, segment.index.moved), (False, segment.index.lanes)):
            for stream, span in lanes.items():
                gone = opening.gone.setdefault(stream, RangeSet())
                # Everything of the victim, less what is moved. Both statements are in the same opening, so a reader
                # finds one or the other.
                gone.update(span.ranges)
                for first, end in needed.get((stream, moved), RangeSet()):
                    gone.remove(first, end)
    opening.origins = [*state.origins.known.values()]
    opening.clocks = [*state.clocks.known.values()]
    opening.gaps = merged([*staying, *opening.drops])
    opening.kept = kept_lanes(state, _without(opening.gone, opening.drops), going)
    return opening


def _without(gone: dict[int, RangeSet], drops: list[GapNotice]) -> dict[int, RangeSet]:
    """Return the part of ``gone`` that gets no notice; the dropped records stay accounted for."""
    result = {stream: ranges.copy() for stream, ranges in gone.items()}
    for gap in drops:
        if gap.stream in result:
            result[gap.stream].remove(gap.first, gap.end)
    return result


def _entries(state: LogState, opening: _Opening) -> Iterator[tuple[EntryKind, bytes]]:
    # Twice, at both ends: if one damaged entry could lose it, an earlier name would count again, and its links would
    # send records again that the hubs have under this one.
    owner = [(EntryKind.OWNER, encode_body(state.owner))] if state.owner is not None else []
    yield from owner
    if opening.origins:
        yield EntryKind.ORIGINS, encode_body(opening.origins)
    for clock in opening.clocks:
        yield EntryKind.CLOCK, encode_body(clock)
    yield EntryKind.KEPT, encode_body(Kept(opening.kept))
    for gap in opening.gaps:
        yield EntryKind.GAP, encode_body(gap)
    for body in moved_batches(state.filesystem, opening.victims):
        with state.changed:
            state.counters.moved_bytes += ENTRY_HEADER_BYTES + state.seal_bytes + len(body)
        yield EntryKind.MOVED, body
    yield from owner
    # Entries before a mark were durable, so that damage to them never counts as a torn tail.
    yield EntryKind.STREAMS, encode_streams({})


def _publish(state: LogState, opening: _Opening, plan: Plan, writer: SegmentWriter) -> None:
    _forget(state, [segment for segment, _ in opening.victims])
    for path in plan.asides:
        state.asides.pop(path, None)
    for stream, ranges in opening.gone.items():
        for first, end in ranges:
            state.lanes[stream].held.remove(first, end)
    for stream, span in writer.segment.index.spans():
        state.lanes[stream].bytes += span.live_size
    state.segments.append(writer.segment)
    for gap in opening.drops:
        state.add_gap(gap)
        state.tail.drop_below(gap.stream, gap.end)
        forget_lost(state, gap.stream, plan.drop_ends[gap.stream])
    state.collect_gaps()
    if opening.drops:
        lost = ", ".join(f"{state.lanes[gap.stream].name} {gap.first} to {gap.end - 1}" for gap in opening.drops)
        logger.warning("the log is full and dropped the oldest records, recorded as gap notices: %s", lost)
