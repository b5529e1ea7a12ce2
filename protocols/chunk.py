"""Chunk: an object of the hub log (docs/reference/formats/chunk.md).

Layout: header | one section per (tenant, stream) | footer (msgpack) | trailer. A section is a run of entries; each
entry names its lane, the records of the batch that count (overlap is trimmed by these numbers, never by encoding the
batch again) and the time at which the hub received it, followed by the batch as received. One GET of the tail reads the
index; one ranged GET reads a stream. The index is in ``protocols.chunk_index``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from weft.protocols.batch import BatchHeader, Buffer, ClockState
from weft.protocols.batch import decode_header as batch_header
from weft.protocols.checksum import crc32c
from weft.protocols.chunk_index import (
    FOOTER_BYTES_MAX,
    HEADER_BYTES,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    Chunk,
    ChunkHead,
    ChunkHeader,
    ChunkIndex,
    ClockUpdate,
    Control,
    ControlKind,
    GapRange,
    LaneFlag,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamSection,
    blocks_end,
    decode_footer,
    decode_tail,
    encode_footer,
    footer_bytes,
    index_of,
    with_blocks,
)
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion

__all__ = [
    "FOOTER_BYTES_MAX",
    "HEADER_BYTES",
    "TRAILER_BYTES",
    "TRAILER_MAGIC",
    "Chunk",
    "ChunkHead",
    "ChunkHeader",
    "ChunkIndex",
    "ClockUpdate",
    "Control",
    "ControlKind",
    "GapRange",
    "LaneFlag",
    "LaneUpdate",
    "Mark",
    "StreamBlock",
    "StreamSection",
    "blocks_end",
    "decode_footer",
    "decode_tail",
    "encode_footer",
    "footer_bytes",
    "index_of",
    "with_blocks",
]

MAGIC = b"WFC"
VERSION = 1
_HEADER = struct.Struct("<4sI16sQQIIQ")
_ENTRY = struct.Struct("<IIIIq")
ENTRY_HEADER_BYTES = _ENTRY.size
TAIL_READ_BYTES = 64 << 10
"""First guess for reading a chunk's index: one GET of this many bytes nearly always holds the footer."""
N_MAX = (1 << 63) - 1
_NAME = re.compile(r"[0-9]{20}")


class SectionEntry(NamedTuple):
    """One batch in a section."""

    lane: int
    """Index into ``footer.lanes_of`` the section."""
    skip: int
    """Leading records of the batch that are not part of the chunk, because the hub had them already."""
    take: int
    """Records after the skipped ones that are part of the chunk; the batch may have more."""
    received: int
    """Nanoseconds since 1970 by the hub's clock."""
    batch: memoryview


def file_name(n: int) -> str:
    """Return the last part of chunk n's key; names sort in log order."""
    return f"{n:020d}"


def parse_file_name(name: str) -> int | None:
    """Return the n in a key's last part, or None if it is not a chunk's."""
    return int(name) if _NAME.fullmatch(name) and int(name) <= N_MAX else None


def encode_header(header: ChunkHeader) -> bytes:
    """Return the bytes at the start of a chunk."""
    data = bytearray(_HEADER.pack(MAGIC + bytes([VERSION]), 0, *header))
    struct.pack_into("<I", data, 4, _header_crc(data))
    return bytes(data)


def _header_crc(data: Buffer) -> int:
    """Return the CRC of a header in *this* version, regardless of its version byte: a damaged byte does not mean a
    later version."""
    return int(crc32c(memoryview(data)[8:HEADER_BYTES], crc32c(MAGIC + bytes([VERSION]))))


def decode_header(data: Buffer) -> ChunkHeader:
    """Decode and check a chunk's header.

    Raises:
        Truncated: fewer than ``HEADER_BYTES`` bytes.
        UnsupportedVersion: written by a later release.
        Corrupt: not a chunk, or the checksum does not match.
    """
    if len(data) < HEADER_BYTES:
        raise Truncated(f"chunk header truncated: {len(data)} of {HEADER_BYTES} bytes")
    magic, crc, cluster_id, n, created, shard, previous, nonce = _HEADER.unpack_from(data)
    if magic[:3] != MAGIC:
        raise Corrupt(f"expected a chunk ({MAGIC!r}), found {magic!r}")
    sound = _header_crc(data) == crc
    # With the checksum of this version, another version byte is damage; without it, a later release wrote the header.
    if magic[3] != VERSION and not sound:
        raise UnsupportedVersion(f"chunk version {magic[3]}; this release reads version {VERSION}")
    if magic[3] != VERSION or not sound:
        raise Corrupt("a chunk header's checksum does not match")
    if n > N_MAX or created > N_MAX:
        raise Corrupt(f"a chunk numbered {n}, created at {created}")
    return ChunkHeader(cluster_id, n, created, shard, previous, nonce)


encode_entry_header = _ENTRY.pack
"""Encoder of the 24 bytes that precede a batch in a section: lane, skip, take, bytes of the batch, time of receipt."""


def section_entries(section: StreamSection, data: Buffer, lanes: Sequence[LaneUpdate]) -> Iterator[SectionEntry]:
    """Yield the entries of a section whose CRC was checked before. Batches are views of ``data``.

    Args:
        data: the section's bytes.
        lanes: the footer's lanes of the section.

    Raises:
        UnsupportedVersion: a batch of a later format.
        Corrupt: an entry does not fit the section, names a lane that the footer lacks or of another stream, or takes
            records that its batch does not have; or the count of records differs from the footer's.
    """
    view = memoryview(data)
    # Lanes of other streams are not valid here: their records would become rows of the wrong table.
    own = {index for index, lane in enumerate(lanes) if (lane.tenant, lane.stream) == (section.tenant, section.stream)}
    at = count = 0
    while at < len(view):
        if len(view) - at < ENTRY_HEADER_BYTES:
            raise Corrupt("a chunk section ends inside an entry header")
        lane, skip, take, length, received = _ENTRY.unpack_from(view, at)
        start = at + ENTRY_HEADER_BYTES
        at = start + length
        if at > len(view) or lane not in own:
            raise Corrupt(
                f"a chunk entry of {length} bytes for lane {lane} does not fit its section, "
                f"{section.tenant}/{section.stream}"
            )
        _check_entry(view[start:at], skip, take)
        count += take
        yield SectionEntry(lane, skip, take, received, view[start:at])
    if count != section.count:
        raise Corrupt(
            f"the section of {section.tenant}/{section.stream} at offset {section.base_offset} holds {count} records, "
            f"its index lists {section.count}"
        )


def _check_entry(data: memoryview, skip: int, take: int) -> None:
    """Refuse an entry that is not exactly one batch, or that takes records the batch does not have."""
    try:
        batch = batch_header(data)
    except Truncated as error:
        raise Corrupt(f"a chunk entry holds no batch: {error}") from error
    if batch.length != len(data) or not 0 < take <= batch.count - skip:
        raise Corrupt(f"a chunk entry takes {take} records after {skip} of a batch of {batch.count}")


def check_section(section: Buffer, stream: StreamSection) -> None:
    """Check a section's bytes against the footer.

    Raises:
        Corrupt: length or checksum differ.
    """
    if len(section) != stream.length or crc32c(section) != stream.crc:
        raise Corrupt(f"the section of {stream.tenant}/{stream.stream} does not match its checksum")


def decode(data: Buffer) -> Chunk:
    """Decode and check a whole chunk's header, footer and every section's checksum.

    Raises:
        Truncated, UnsupportedVersion, Corrupt: as the parts do.
    """
    header = decode_header(data)
    if footer_bytes(data) > len(data) - HEADER_BYTES:
        raise Corrupt("a chunk's footer does not fit the chunk")
    tail = decode_tail(data)
    # No byte of a chunk is outside a checksum: the head says that sections and blocks follow one another.
    if blocks_end(tail.head) != len(data) - tail.bytes:
        raise Corrupt("a chunk's sections and blocks do not fill the space between its header and its head")
    footer, crc = decode_footer(data)
    # The footer repeats the header, so a header and a footer of two chunks cannot be combined unnoticed.
    if footer.header != header:
        raise Corrupt("a chunk's header and footer do not belong together")
    for stream in footer.streams:
        check_section(memoryview(data)[stream.position : stream.position + stream.length], stream)
    return Chunk(header, footer, crc)


# The time of a record, and its reliability: the one rule for tables, the API and Spark.
#
# A record has the timestamp of its edge's wall clock. It can be wrong in two ways, and the record's chunk has all
# information for the correction, so every reader gets the same time, whenever it reads:
#
# - The clock had not been set (a machine without a battery clock, before the network was there). If the edge learned
#   the time later, the chunk has a clock notice of that boot: the time is the boot's monotonic clock plus the
#   notice's offset (``corrected``).
# - The clock was set back before a moment that had been claimed complete. Then the chunk has that mark as the lane's
#   ``floor``, and the record's time is just after it (``stepped``).
#
# The timestamp itself is kept beside a time that differs from it.

UNSYNCED, SYNCED, FUTURE, CORRECTED, STEPPED = range(5)
CLOCKS = ("unsynced", "synced", "future", "corrected", "stepped")
"""Names of the states of a record's time, by number."""
FUTURE_US = 5 * 60 * 1_000_000
"""Microseconds by which a time may be after the record's receipt by the hub; beyond them it is ``future``."""

TIME_END = 1 << 62
"""Time from which on a correction counts as damage, ns: in the year 2116."""

BootKey = tuple[str, str, int, int]
"""(tenant, edge, log id, boot id)."""


class RecordTime(NamedTuple):
    """The time of one record."""

    time: int
    """Nanoseconds since 1970."""
    clock: int
    """Index into ``CLOCKS``."""
    stamp: int | None
    """The edge's own timestamp if it differs, ns."""


class BatchTimes(NamedTuple):
    """Rule for the times of the records of one batch in one chunk."""

    clock: int
    """``UNSYNCED``, ``SYNCED`` or ``CORRECTED``."""
    shift: int
    """Nanoseconds to add to the timestamps."""
    floor: Mark | None

    @property
    def changes(self) -> bool:
        """Return whether a record may get another time than its timestamp."""
        return self.clock == CORRECTED or self.floor is not None

    def of(self, stamp: int, seq: int, received: int) -> RecordTime:
        """Return the time of a record.

        Args:
            received: time at which the hub received the record, ns.
        """
        time, floor = stamp + self.shift, self.floor
        if floor is not None and seq >= floor.seq and time <= floor.time:
            return RecordTime(behind(floor), STEPPED, stamp)
        clock = FUTURE if time // 1000 - FUTURE_US > received // 1000 else self.clock
        return RecordTime(time, clock, stamp if self.clock == CORRECTED else None)


def behind(floor: Mark) -> int:
    """Return the time of a stepped record, ns: the first whole microsecond after the mark, the unit of tables."""
    return (floor.time // 1000 + 1) * 1000


def known_clocks(clocks: Iterable[ClockUpdate]) -> dict[BootKey, int]:
    """Return boot -> its clock's offset, from a chunk's clock notices."""
    return {(clock.tenant, clock.edge, clock.log_id, clock.boot_id): clock.offset for clock in clocks}


def batch_times(header: BatchHeader, lane: LaneUpdate, clocks: dict[BootKey, int]) -> BatchTimes:
    """Return the rule for a batch.

    Args:
        lane: the footer's entry of the batch's lane.
        clocks: clock offsets of the same chunk.
    """
    if header.clock is ClockState.SYNCED:
        return BatchTimes(SYNCED, 0, lane.floor)
    offset = clocks.get((lane.tenant, lane.edge, lane.log_id, header.boot_id))
    correction = None if offset is None else shift(header, offset)
    return BatchTimes(UNSYNCED if correction is None else CORRECTED, correction or 0, lane.floor)


def shift(header: BatchHeader, offset: int) -> int | None:
    """Return the nanoseconds to add to a batch's timestamps, given its boot's time minus its monotonic clock.

    The header has the readings of both clocks at the first record, so the result does not depend on the wall clock.
    None if the numbers cannot be clocks.
    """
    time = offset + header.monotonic
    if not 0 <= time < TIME_END or not 0 <= time + header.last_time - header.first_time < TIME_END:
        return None
    return time - header.first_time
