"""Reading batches back from disk by (stream, seq)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from weft.protocols.batch import decode_header
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.segment import ENTRY_HEADER_BYTES, EntryKind
from weft.storage.segment_log.errors import LogFailed
from weft.storage.segment_log.room.quarantine import quarantine
from weft.storage.segment_log.state.log_state import LogState, next_held
from weft.storage.segment_log.state.segment import Segment
from weft.storage.segment_log.walk.frames import SegmentBytes

_WINDOW_BYTES = 256 << 10


class _Place(NamedTuple):
    segment: Segment
    end: int
    """Readable bytes of the segment."""
    start: int
    """Offset of an entry at or before the wanted one."""
    seq: int
    held_end: int
    """One past the run of held records that begins at ``seq``: later ones may have been declared lost."""


class LogReader:
    """Reader for any thread; each call opens its own files, so that calls never share one."""

    def __init__(
        self, state: LogState, wall_clock: Callable[[], int], poison: Callable[[Exception], LogFailed]
    ) -> None:
        """Make a reader of the log of ``state``.

        Args:
            poison: called when a segment's file is gone although the log did not delete it.
        """
        self._state = state
        self._wall_clock = wall_clock
        self._poison = poison

    def read(self, stream: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return batches from the first held record at or after ``seq`` on: up to ``bytes_max``, at least one if any.

        Damage is quarantined and skipped.

        Raises:
            OSError: a file cannot be opened.
            LogFailed: a second read does not confirm damage of the first, or a file is gone.
        """
        batches: list[bytes] = []
        examined: set[str] = set()
        while bytes_max > 0:
            place = self._locate(stream, seq)
            if place is None:
                break
            try:
                # A read after a quarantine treats unreadable blocks in the same way: the quarantine may have found a
                # sound batch with zeros in their place.
                is_second_look = place.segment.path in examined
                found = self._walk(place, stream, bytes_max, first=not batches, unreadable_as_zeros=is_second_look)
            except FileNotFoundError as error:
                with self._state.changed:
                    is_listed = place.segment in self._state.segments
                if is_listed:
                    # Recovery will report the loss; a node that continued would write to a log that no longer exists.
                    raise self._poison(error) from error
                # The segment was released and deleted since it was looked up.
                continue
            except (CodecError, OSError) as error:
                path, seq = place.segment.path, place.seq
                if batches:
                    break
                if path in examined:
                    raise LogFailed(f"{path} cannot be read at seq {seq} of stream {stream}: {error}") from error
                examined.add(path)
                quarantine(self._state, place.segment, self._wall_clock())
                continue
            if not found:
                break
            batches += found
            bytes_max -= sum(map(len, found))
            seq = decode_header(found[-1]).end_seq
        return batches

    def _locate(self, stream: int, seq: int) -> _Place | None:
        """Find the first held record at or after ``seq``."""
        with self._state.changed:
            lane = self._state.lanes.get(stream)
            target = next_held(lane.held, seq) if lane else None
            if lane is None or target is None:
                return None
            for segment in self._state.segments:
                for span in segment.index.spans_of(stream):
                    if target in span.ranges:
                        held_end = min(lane.held.contiguous_end(target), span.ranges.contiguous_end(target))
                        return _Place(segment, segment.end, span.start_for(target), target, held_end)
        return None

    def _walk(
        self, place: _Place, stream: int, bytes_max: int, *, first: bool, unreadable_as_zeros: bool
    ) -> list[bytes]:
        """Return contiguous batches of one segment from the one that holds ``place.seq`` on.

        Args:
            first: return at least one batch, of any length.
            unreadable_as_zeros: treat blocks that the device cannot read as zeros; checksums show whether they were.

        Raises:
            CodecError, OSError: an error before the first batch. A later one only ends the walk: the next begins there.
        """
        file = self._state.filesystem.open(place.segment.path, read_only=True)
        try:
            source = SegmentBytes(
                file, place.segment.first_position, place.end,
                window_bytes=_WINDOW_BYTES, unreadable_as_zeros=unreadable_as_zeros,
            )  # fmt: skip
            found: list[bytes] = []
            try:
                for data in _batches(source, place, stream):
                    bytes_max -= len(data)
                    if bytes_max < 0 and (found or not first):
                        break
                    found.append(data)
            except (CodecError, OSError):
                if not found:
                    raise
            return found
        finally:
            file.close()


def _batches(source: SegmentBytes, place: _Place, stream: int) -> Iterator[bytes]:
    """Yield the stream's batches from the one that holds ``seq`` on, each checked; skip other entries unread.

    Raises:
        CodecError, OSError: an expected batch is missing or damaged.
    """
    offset, seq, found = place.start, place.seq, False
    while offset < source.end and seq < place.held_end:
        head = source.peek(offset)
        if head is None:
            raise Corrupt(f"zeros at offset {offset}, before the entries end")
        if head.kind in (EntryKind.BATCH, EntryKind.MOVED):
            header = source.readable_batch_header(offset)
            if header is not None and header.stream == stream and header.end_seq > seq:
                if header.base_seq > seq:
                    raise Corrupt(f"seq {seq} of stream {stream} is not before the entry at offset {offset}")
                frame = source.entry(offset)
                if frame is None:
                    raise Corrupt(f"the entry at offset {offset} is gone")
                found, seq = True, header.end_seq
                yield bytes(frame.body)
        offset += ENTRY_HEADER_BYTES + head.length
    if not found:
        raise Corrupt(f"seq {seq} of stream {stream} is not where the index says")
