"""Finding the next entry after invalid bytes.

The length in the bad entry's header is used if it leads to a sound entry, so that a payload which looks like an entry
is skipped. Otherwise the search looks for the shape of an entry. Either way, an entry counts only if its checksum,
which is seeded with its position in the log, is right.
"""

from __future__ import annotations

import re

from weft.protocols.errors import CodecError
from weft.protocols.segment import ENTRY_HEADER_BYTES, EntryKind
from weft.storage.segment_log.walk.entry import read_entry
from weft.storage.segment_log.walk.frames import SegmentBytes

_SEARCH_BYTES = 1 << 20
_SEARCHED_TIMES_MAX = 8
"""Maximum checked bytes of a search for entries after bad bytes, in lengths of the segment."""
_SEARCHED_BYTES_MIN = 64 << 20
"""Maximum checked bytes of a search in a short segment: the larger of the two limits counts."""
_MARK_BYTES_MAX = 8 << 10
"""Longest commit mark that the search finds beyond these limits, with some hundred streams."""
_KIND_AT = 8
"""Offset of the kind byte in an entry's header."""
_SHAPE = re.compile(
    rb"\x01\0\0\0WFB|\x02\0\0\0\x95|\x03\0\0\0\x94|\x04\0\0\0[\x91-\x9f]|\x05\0\0\0[\x80-\x8f\xde\xdf]|\x06\0\0\0WFB|\x07\0\0\0\x91"
    rb"|\x08\0\0\0[\x93-\x9f]|\x09\0\0\0[\x91-\x9f\xdc]|\x0f\0\0\0[\x93-\x9f]",
    re.DOTALL,
)
"""Kind, padding and the first bytes of the body of each kind of entry."""
_SEALED_SHAPE = re.compile(_SHAPE.pattern + rb"|[\x41-\x49\x4f]\0\0\0", re.DOTALL)
"""The same, or kind and padding of a sealed entry, whose body has no shape."""
_SHAPE_BYTES = 7
_ZEROS = bytes(_SEARCH_BYTES)


def find_entry(source: SegmentBytes, bad: int) -> int | None:
    """Return the offset of the next sound entry after the bad bytes at ``bad``; None when none follows.

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
        OSError: the file cannot be read.
    """
    try:
        head = source.peek(bad)
    except CodecError:
        head = None
    if head is not None:
        chained = bad + ENTRY_HEADER_BYTES + head.length
        if read_entry(source, chained) is not None:
            return chained
    shape = _SEALED_SHAPE if source.may_be_sealed else _SHAPE
    at = bad + 1
    while at + ENTRY_HEADER_BYTES < source.end:
        block = bytes(source.piece(at, _SEARCH_BYTES))
        for match in shape.finditer(block) if not _is_zeros(block) else ():
            candidate = at + match.start() - _KIND_AT
            if candidate > bad and _is_worth_a_look(source, candidate) and read_entry(source, candidate) is not None:
                return candidate
        if len(block) < _SEARCH_BYTES:
            return None
        at += len(block) - _SHAPE_BYTES
    return None


def hides_entries(source: SegmentBytes, end: int) -> bool:
    """Return whether a block that the device cannot read may hold entries behind the found ones, which end at ``end``.

    If the next entry's header can be read and is zeros, no commit was ever synced there.
    """
    if source.unreadable.end <= end:
        return False
    return source.is_unreadable(end, end + ENTRY_HEADER_BYTES) or any(source.piece(end, ENTRY_HEADER_BYTES))


def last_nonzero(source: SegmentBytes, start: int) -> int:
    """Return the offset after the last non-zero byte from ``start`` on; ``start`` if all are zero."""
    end = source.end
    while end > start:
        at = max(start, end - _SEARCH_BYTES)
        block = bytes(source.piece(at, end - at))
        if not _is_zeros(block):
            return at + len(block.rstrip(b"\0"))
        end = at
    return start


def _is_zeros(block: bytes) -> bool:
    # Most of the searched bytes are reserved space that was never written. Comparing takes 0.05 ms a block, stripping 2
    # ms and the expression for shapes 20 ms.
    return block == (_ZEROS if len(block) == _SEARCH_BYTES else _ZEROS[: len(block)])


def _is_worth_a_look(source: SegmentBytes, offset: int) -> bool:
    """Return whether to check a candidate here. The time of its checksum depends on the length that it claims, and a
    payload can claim great lengths in every few bytes: past the bound, only commit marks of a plausible length are
    checked."""
    try:
        head = source.peek(offset)
    except CodecError:
        return False
    if head is None:
        return False
    source.searched_bytes += head.length
    if source.searched_bytes <= max(_SEARCHED_BYTES_MIN, _SEARCHED_TIMES_MAX * source.end):
        return True
    return head.kind == EntryKind.STREAMS and head.length <= _MARK_BYTES_MAX
