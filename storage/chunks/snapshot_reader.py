"""Reader of snapshot objects: of all streams, of some alone, or of their offsets."""

from __future__ import annotations

from collections.abc import Collection

from weft.protocols.batch import Buffer
from weft.protocols.errors import Truncated
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard import snapshot_blocks
from weft.protocols.shard.shard_state import StreamKey
from weft.protocols.shard.snapshot import HEADER_BYTES
from weft.protocols.shard.snapshot_blocks import DecodedSnapshot
from weft.storage.object_store import ObjectStore

HEAD_READ_BYTES = 256 << 10
"""First guess at the bytes of a snapshot's head, which has some 100 bytes for each stream."""


async def read_snapshot(store: ObjectStore, key: str, only: Collection[StreamKey] | None = None) -> DecodedSnapshot:
    """Read a snapshot.

    Args:
        only: read the lanes and streams of these alone, and no clocks.

    Raises:
        NotFound: there is none.
        Truncated, UnsupportedVersion, Corrupt: as ``snapshot_blocks.decode``.
    """
    if only is None:
        return snapshot_blocks.decode((await store.get(key)).data)
    data = await _head(store, key)
    if snapshots.check_header(data) == snapshots.VERSION:
        return snapshot_blocks.decode(data, only)
    head = snapshot_blocks.decode_head(data)
    behind, (first, end) = HEADER_BYTES + snapshots.body_bytes(data), snapshot_blocks.span(head, only)
    if behind + end <= len(data):
        return snapshot_blocks.with_lanes(head, data, behind, only)
    blocks = await store.get_range(key, behind + first, end - first)
    return snapshot_blocks.with_lanes(head, blocks, -first, only)


async def read_offsets(store: ObjectStore, key: str) -> tuple[tuple[bytes, int], dict[StreamKey, int]]:
    """Return cluster and shard of a snapshot, and the next offset of each stream with one. Raises as
    ``read_snapshot``."""
    return snapshot_blocks.decode_offsets(await _head(store, key))


async def _head(store: ObjectStore, key: str) -> Buffer:
    """Return the first bytes of a snapshot, with all of its head; at level 1 the whole."""
    data: Buffer = await store.get_range(key, 0, HEAD_READ_BYTES)
    if len(data) < HEADER_BYTES:
        raise Truncated(f"a snapshot header has {HEADER_BYTES} bytes, {len(data)} are there")
    needed = HEADER_BYTES + snapshots.body_bytes(data)
    if snapshots.check_header(data) == snapshots.VERSION and len(data) == HEAD_READ_BYTES:
        return (await store.get(key)).data
    return data if needed <= len(data) else await store.get_range(key, 0, needed)
