"""Budget of what one request for records may read of log and table."""

from __future__ import annotations

from weft.cloud_hub.api.views import View

SEARCHED_MAX = 256
"""Maximum number of chunks that one request searches for the first record, in all shards together; slightly more than
the chunks between two snapshots of a busy shard."""
CHUNKS_READ_MAX = 512
"""Maximum number of chunks that one request reads in all shards together, beside those that it searches."""
LOOKS_MAX = 1024
"""Maximum number of indexes and snapshots that one request reads to find where to begin, in all shards together: about
twenty for each shard and ``since``. Further shards are left to another request."""
READ_BYTES_MAX = 128 << 20
"""Bytes of sections and row groups that one request reads, in all shards together. It reads one more at most."""


class Search:
    """Budget of one request, in all shards together. One thread uses it at a time.

    Args:
        left: chunks that it may search for first records.
        bytes_max: bytes that it may read.
        records_bytes: bytes of payload that it may return.
    """

    def __init__(
        self, left: int = SEARCHED_MAX, *, bytes_max: int = READ_BYTES_MAX, records_bytes: int = 1 << 62
    ) -> None:
        self.left = left
        self.bytes_left = bytes_max
        self.records_bytes = records_bytes
        self.chunks_left = CHUNKS_READ_MAX
        self.looks_left = LOOKS_MAX

    def goes_on(self) -> bool:
        """Count a chunk without a result. Return whether the search may continue."""
        self.left -= 1
        return self.left > 0

    @property
    def is_spent(self) -> bool:
        """Return whether no more records may be read."""
        return self.bytes_left <= 0 or self.chunks_left <= 0 or self.records_bytes <= 0

    def took(self, size: int) -> None:
        """Count bytes that were read."""
        self.bytes_left -= size

    def gave(self, records: list[View]) -> None:
        """Count the bytes of records of the answer, and take their sizes out."""
        self.records_bytes -= sum(len(record["key"]) + record.pop("_bytes") for record in records)
