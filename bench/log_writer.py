"""Chunks written straight into a store, for benchmarks and tests that need a log and no hub."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from crc32c import crc32c

from weft.protocols import batch, chunk
from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    ChunkHeader,
    GapRange,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamSection,
    index_of,
)
from weft.protocols.lane import Origin
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.fold import apply
from weft.protocols.shard.placement import shard_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store


class Delivery(NamedTuple):
    """Encoded batches of one edge node that arrive together; none only makes its lane known."""

    edge: str
    batches: Sequence[bytes]
    log_id: int = 1
    topics: Sequence[str] = ()
    payload: PayloadKind = PayloadKind.BYTES
    origins: Sequence[Origin] = ()
    """Origins that the batches name."""
    mark: Mark | None = None
    """Statement of the edge about the lane; None says that everything up to now is here."""
    gaps: Sequence[GapRange] = ()
    """Numbers that can never come."""


class LogWriter:
    """Appends chunks as a hub node would, with offsets and lanes that continue."""

    def __init__(
        self,
        root: str,
        *,
        shards: int = 1,
        tenant: str = "default",
        stream: str = "telemetry",
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.root = root
        self.tenant = tenant
        self.stream = stream
        self.store = open_store(root, dict(options or {}))
        self.cluster = asyncio.run(open_cluster(self.store, shards))
        self._states = [ShardState(self.cluster.cluster_id, shard) for shard in range(shards)]

    def write(self, *deliveries: Delivery, received: int) -> dict[int, int]:
        """Make one chunk per shard that is concerned.

        Args:
            received: when the hub took them in, ns since 1970.

        Returns:
            The end of the log per shard.
        """
        for shard, state in enumerate(self._states):
            mine = [d for d in deliveries if shard_of(self.tenant, d.edge, self.cluster.shards) == shard]
            if mine:
                asyncio.run(self._create(state, mine, received))
        return {shard: state.next_offset.get((self.tenant, self.stream), 0) for shard, state in enumerate(self._states)}

    def read_on(self) -> None:
        """Take in what others have written, such as a hub."""
        self._states = [asyncio.run(ShardLog(self.store, self.cluster, state.shard).load()) for state in self._states]

    async def _create(self, state: ShardState, deliveries: list[Delivery], received: int) -> None:
        section, data = self._section(state, deliveries, received)
        lanes = [self._lane(delivery, received) for delivery in deliveries]
        header = ChunkHeader(self.cluster.cluster_id, state.n + 1, received, state.shard, state.footer_crc, 0)
        sections = [section] if section.count else []
        tail, crc = chunk.encode_footer(index_of(header, FIRST_LEVEL, sections, StreamBlock(lanes, [], [])))
        whole = b"".join((chunk.encode_header(header), data, tail))
        await ShardLog(self.store, self.cluster, state.shard).create(state.n + 1, whole)
        apply(state, chunk.decode(whole))
        assert state.footer_crc == crc

    def _section(self, state: ShardState, deliveries: list[Delivery], received: int) -> tuple[StreamSection, bytes]:
        parts: list[bytes] = []
        headers = []
        for lane, delivery in enumerate(deliveries):
            for data in delivery.batches:
                headers.append(batch.decode_header(data))
                parts += (chunk.encode_entry_header(lane, 0, headers[-1].count, len(data), received), data)
        whole = b"".join(parts)
        section = StreamSection(
            self.tenant,
            self.stream,
            state.next_offset.get((self.tenant, self.stream), 0),
            sum(header.count for header in headers),
            min((header.first_time for header in headers), default=0),
            max((header.last_time for header in headers), default=0),
            chunk.HEADER_BYTES,
            len(whole),
            crc32c(whole),
        )
        return section, whole

    def _lane(self, delivery: Delivery, received: int) -> LaneUpdate:
        headers = [batch.decode_header(data) for data in delivery.batches]
        ranges = [(header.base_seq, header.end_seq) for header in headers]
        mark = delivery.mark or Mark(received, headers[-1].end_seq if headers else 0)
        topics = list(delivery.topics) or None
        lane = mark, topics, delivery.payload
        return LaneUpdate(
            self.tenant,
            delivery.edge,
            delivery.log_id,
            self.stream,
            1,
            ranges,
            [*delivery.gaps],
            *lane,
            [*delivery.origins],
        )
