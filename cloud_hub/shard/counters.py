"""Counters of one shard."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.protocols.chunk import Chunk
from weft.storage.histogram import Histogram


@dataclass(slots=True)
class ShardCounters:
    """Counters since the start of this node."""

    chunks: int = 0
    records: int = 0
    bytes: int = 0
    foreign_chunks: int = 0
    """Chunks of other nodes."""
    unclear: int = 0
    """Number of chunk creations that did not end in a clean success."""
    reloads: int = 0
    """Number of times that the collector had passed this node."""
    put: Histogram = field(default_factory=Histogram)
    """Times that the store took to write one chunk."""
    commit: Histogram = field(default_factory=Histogram)
    """Time per commit from the first waiting batch until its acknowledgements."""

    def count(self, chunk: Chunk, own_bytes: int | None) -> None:
        """Count a chunk of the log; of this node's own with its length."""
        if own_bytes is None:
            self.foreign_chunks += 1
            return
        self.chunks += 1
        self.records += sum(section.count for section in chunk.footer.streams)
        self.bytes += own_bytes
