"""Settings, errors, file names and fixed bounds of a segment log."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from weft.protocols import batch
from weft.protocols.batch import HeaderPairs, header_bytes
from weft.protocols.lane import NodeName
from weft.protocols.ranges import PackedHeaders

# Settings and fixed bounds of a segment log.

BATCH_BYTES_MAX = 1 << 20
"""Uncompressed size at which a batch is closed: enough for zstd to be effective, small enough to skip."""
BATCH_RECORDS_MAX = 65_536
COMMIT_BYTES_MAX = 4 << 20
"""Approximate bytes of one write and fsync; further appends go into the next. It bounds the latency of one commit (0.4
s at the 10 MB/s of an SD card) and the writer's memory for encoding."""
DUE_BYTES = 512 << 10
"""Pending bytes at which a commit begins, even if the owner's thread still has more to read."""
SURE_ROOM_MARGIN_BYTES = 64 << 10
"""Appends get a full check when the newest segment has less room than this beyond the pending bytes."""
RECORD_BYTES_MAX = 17 << 20
"""Longest record: a message of 16 MiB, the most that ``limits.message`` allows, with its key and headers. With longer
ones, copying a record would block an event loop for longer than a turn (decision 0119)."""
POINT_SPACING_BYTES = 64 << 10
"""Minimum distance of a stream's points in a segment's sparse index, and the longest walk of a read."""
SEGMENT_BYTES_MIN = 4096
SEGMENT_BYTES_MAX = 1 << 30
BUDGET_SEGMENTS_MIN = 4
"""Minimum number of segments in the budget: the newest sealed one, the one being written, and some to delete."""
MOVE_SHARE = 4
"""Largest part of a segment that is moved out to free the rest, as 1 / ``MOVE_SHARE``: each byte freed then costs at
most a third of a byte written."""
SPARE_SHARE = 2
"""This part of a segment stays free within the budget, for moving when nothing else can make room; then segments of
which at least this part is free are cleaned."""
SEGMENT_SHARE_MIN = 4
"""Smallest segment, as 1 / ``SEGMENT_SHARE_MIN`` of the setting, for a log that cannot free the space of a whole
one."""
DROP_SHARE = 64
"""A stream over its own size loses at least this part of it at a time, so that notices remain few."""
IDENTITY_BYTES = 43
"""Length of the file with the log's id (``recover.identity``), which the budget counts."""
HOUSEKEEPING_INTERVAL_S = 30.0
"""Seconds between two runs of retention; a run writes nothing unless something has expired."""
SPACE_INTERVAL_S = 0.5
"""Seconds between two checks whether a disk filled by other programs has space again for an accepted commit."""


@dataclass(frozen=True)
class StreamPolicy:
    """Rules for how long a stream's records are kept, and for a full log."""

    when_full: Literal["refuse", "drop_oldest"] = "refuse"
    """Action when the stream exceeds its own size, or the log's budget is used up: refuse new records, or drop the
    oldest."""
    retain_s: float | None = None
    """Age at which records are removed, under a notice if they still wait for a hub; None keeps them while there is
    room."""
    retain_bytes: int | None = None
    """Maximum bytes of the stream's entries in the log; None leaves it to the log's budget."""
    replicated: bool = True
    """True if hubs release the stream's records. Otherwise only retention removes them, which is not a loss."""


DEFAULT_POLICY = StreamPolicy()


@dataclass(frozen=True)
class LogSettings:
    """Settings for a log's size and its writes. Sizes in bytes."""

    segment_bytes: int = 64 << 20
    """Size at which a segment file is sealed and the next begun; also what is preallocated."""
    budget_bytes: int = 16 << 30
    """Maximum bytes of the log's files on disk, to the byte."""
    tail_bytes: int = 32 << 20
    """Newest batches kept in memory for readers that keep up."""
    pending_bytes_max: int = 64 << 20
    """Bytes appended and not durable at which listeners must stop reading sockets; at twice this, append refuses."""
    commit_interval_s: float | None = None
    """Time between the end of a commit and the beginning of the next: a larger one wears flash less and adds latency. 0
    commits as fast as the disk can; None adapts to the load (``commit.pacing``)."""
    compression_level: int | None = 1
    """Level of zstd compression for batches of 4 KiB and more; None stores them uncompressed."""

    @property
    def spare_bytes(self) -> int:
        """Return the part of the budget that appends never use, so that records can always be moved forward."""
        return self.segment_bytes // SPARE_SHARE

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}; choose {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            )
        if self.budget_bytes < BUDGET_SEGMENTS_MIN * self.segment_bytes:
            raise ValueError(
                f"budget_bytes is {self.budget_bytes}; a log of {self.segment_bytes}-byte segments needs at least "
                f"{BUDGET_SEGMENTS_MIN * self.segment_bytes}: raise the budget or make segments smaller"
            )
        if self.tail_bytes < 0 or self.pending_bytes_max <= 0 or (self.commit_interval_s or 0.0) < 0:
            raise ValueError(
                "tail_bytes and commit_interval_s must not be negative, pending_bytes_max must be positive"
            )
        if self.compression_level is not None and not 1 <= self.compression_level <= 19:
            raise ValueError(f"compression_level is {self.compression_level}; choose 1 to 19")


# Errors of a segment log, each with the caller's next step.


class LogError(Exception):
    """Base of the log's errors."""


class LogFull(LogError):
    """No room: nothing in the disk budget may be deleted, or too many bytes wait for the disk.

    Nothing of the refused run was appended. Do not acknowledge it; the device sends it again.
    """


class LogFailed(LogError):
    """A write or sync failed, so it is unknown what reached the disk. Reads still work; to append, open the log
    again."""


class WrongOwner(LogError):
    """The log belongs to another node, or this node had another name. Nothing was changed."""

    def __init__(self, directory: str, owner: NodeName, asked: NodeName) -> None:
        """Word the error, with the log's owner and the name that opened it."""
        super().__init__(
            f"the log in {directory} belongs to {owner}, not to {asked}. Put that name back in the configuration, or "
            "give the log the new one with weft edge rename"
        )
        self.owner = owner


class LogVersionError(LogError):
    """The directory was written by a later release. Nothing was changed."""


class RecordTooLarge(LogError, ValueError):
    """One record is longer than ``RECORD_BYTES_MAX``, or has too many headers: it can never be stored."""


# Names of the files in a log's directory that are not segments of it, or not yet.

UNFINISHED = ".new"
"""Suffix of a segment that is being created: after a crash, no start reads such a file."""
DAMAGED = ".damaged"
"""Suffix of the second name of a damaged segment, and of a file that may be another log's."""
STRANGE = ".strange"
"""Suffix of an object with a segment's name that is not a file."""


def aside_path(path: str) -> str:
    """Return the name under which a damaged segment is kept."""
    return path + DAMAGED


# Lengths and numbers of sealed bytes. Without the library, so that every reader can import them.

KEY_BYTES = 32
SALT_BYTES = 12
TAG_BYTES = 16
HEAD = struct.Struct("<I12sI")
"""Key id, salt, number: before the ciphertext."""
SEALED_BYTES = HEAD.size + TAG_BYTES
"""Bytes that sealed content has more than the plain one."""
FILE_MAGIC = b"WFX1"
"""First bytes of a file that is sealed as a whole."""


def entry_about(kind: int) -> bytes:
    """Return what binds sealed bytes to the kind of their entry of a log."""
    return b"entry %d" % kind


# Upper bounds of the bytes of runs in batches, and checks for records that no batch can hold.

RECORD_OVERHEAD_BYTES = 21
"""Maximum bytes of a record in a batch beside its key and payload: time, key index, payload offset, flag, and the
offset of its key in the key table."""
BATCH_OVERHEAD_BYTES = 512
"""Maximum bytes of a batch on disk beside its records: entry and batch headers, column lengths, commit mark."""


def batches_bytes(length: int) -> int:
    """Return the maximum bytes of the batches of runs with a total of ``length`` bytes, beside their records.

    The first batch of each run is not counted.
    """
    return BATCH_OVERHEAD_BYTES * (2 * (length // BATCH_BYTES_MAX))


def run_bytes(
    keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs] | None, payload_bytes: int | None = None
) -> int:
    """Return the maximum uncompressed bytes that a run adds to a batch.

    Args:
        payload_bytes: bytes of all payloads, if known.
    """
    if payload_bytes is None:
        payload_bytes = sum(map(len, payloads))
    size = sum(map(len, keys)) + payload_bytes + RECORD_OVERHEAD_BYTES * len(keys)
    for pairs in (headers or {}).values():
        size += 16 + len(pairs.packed) if type(pairs) is PackedHeaders else _pairs_bytes(pairs)
    return size


def record_sizes(keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs] | None) -> list[int]:
    """Return ``run_bytes`` of each single record."""
    sizes = [len(key) + len(payload) + RECORD_OVERHEAD_BYTES for key, payload in zip(keys, payloads, strict=True)]
    for index, pairs in (headers or {}).items():
        sizes[index] += 16 + len(pairs.packed) if type(pairs) is PackedHeaders else _pairs_bytes(pairs)
    return sizes


def _pairs_bytes(pairs: HeaderPairs) -> int:
    size = 16
    for name, value in pairs:  # most have one pair, with text: a call for each would cost as much as the rest
        size += len(name.encode()) + (len(value.encode()) if type(value) is str else header_bytes(value)) + 12
    return size


def check_records(keys: list[bytes], payloads: list[bytes], headers: dict[int, HeaderPairs] | None) -> None:
    """Check the records one by one: only for runs longer than the longest record, which are rare.

    Raises:
        RecordTooLarge: one of them can never be stored.
    """
    size = max(record_sizes(keys, payloads, headers))
    if size > RECORD_BYTES_MAX:
        raise RecordTooLarge(f"a record of {size} bytes; the log's limit is {RECORD_BYTES_MAX}")


def check_keys(keys: list[bytes]) -> None:
    """Refuse a key that no batch can hold. Raises RecordTooLarge."""
    longest = max(map(len, keys), default=0)
    if longest > batch.KEY_BYTES_MAX:
        raise RecordTooLarge(f"a record with a key of {longest} bytes; the log's limit is {batch.KEY_BYTES_MAX}")


def check_headers(headers: dict[int, HeaderPairs]) -> None:
    """Refuse headers that no batch can hold. Raises RecordTooLarge."""
    most = max(map(len, headers.values()))
    if most > batch.HEADER_PAIRS_MAX:
        raise RecordTooLarge(f"a record with {most} headers; the log's limit is {batch.HEADER_PAIRS_MAX}")
