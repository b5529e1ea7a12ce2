"""Upper bounds of the bytes of runs in batches, and checks for records that no batch can hold."""

from __future__ import annotations

from weft.protocols import batch
from weft.protocols.batch import HeaderPairs
from weft.protocols.columns import header_bytes
from weft.protocols.fields import PackedHeaders
from weft.storage.segment_log.errors import RecordTooLarge
from weft.storage.segment_log.settings import BATCH_BYTES_MAX, RECORD_BYTES_MAX

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
    keys: list[bytes],
    payloads: list[bytes],
    headers: dict[int, HeaderPairs] | None,
    payload_bytes: int | None = None,
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
        raise RecordTooLarge(f"a record of {size} bytes; the log takes records of up to {RECORD_BYTES_MAX}")


def check_keys(keys: list[bytes]) -> None:
    """Refuse a key that no batch can hold. Raises RecordTooLarge."""
    longest = max(map(len, keys), default=0)
    if longest > batch.KEY_BYTES_MAX:
        raise RecordTooLarge(
            f"a record with a key of {longest} bytes; the log takes keys of up to {batch.KEY_BYTES_MAX}"
        )


def check_headers(headers: dict[int, HeaderPairs]) -> None:
    """Refuse headers that no batch can hold. Raises RecordTooLarge."""
    most = max(map(len, headers.values()))
    if most > batch.HEADER_PAIRS_MAX:
        raise RecordTooLarge(f"a record with {most} headers; the log takes up to {batch.HEADER_PAIRS_MAX} of each")
