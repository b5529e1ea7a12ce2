"""Snapshots, and where readers have been, as an index of stream offsets: for readers that begin in the middle of a
shard's log."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import NamedTuple

from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.chunks.snapshot_reader import read_offsets
from weft.storage.object_store import NotFound, ObjectStore

OFFSETS_MAX = 64
"""Maximum number of snapshots whose offsets are remembered."""
PLACES_MAX = 1024
"""Maximum number of streams of which the place where a reader last ended is remembered."""


class Around(NamedTuple):
    """Offsets of a stream at the two snapshots around a chunk."""

    start: int
    """The stream's next offset at the newest snapshot before the chunk; 0 without one."""
    n: int | None
    """Number of the oldest snapshot at or after the chunk; None without one."""
    end: int
    """The stream's next offset there; ``start`` without one."""


class OffsetIndex:
    """Next offsets of streams at each snapshot of a shard, and in the chunks that were read last.

    Args:
        store: the store with the snapshots.
        cluster_id: id of the cluster that made them.
        shard: number of the shard.
    """

    def __init__(self, store: ObjectStore, cluster_id: bytes, shard: int) -> None:
        self._store = store
        self._owner = cluster_id, shard
        self._offsets: OrderedDict[str, dict[StreamKey, int]] = OrderedDict()
        self._places: OrderedDict[StreamKey, tuple[int, int]] = OrderedDict()

    def ended(self, stream: StreamKey, offset: int, n: int) -> None:
        """Remember that chunk ``n`` has records of a stream below ``offset``, where a reader will go on.

        Without this each look of one who follows a stream would read all chunks since the newest snapshot again.
        """
        if offset >= self._places.get(stream, (0, 0))[0]:
            self._places[stream] = offset, n
        self._places.move_to_end(stream)
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    async def locate(self, snapshots: list[tuple[int, str]], stream: StreamKey, offset: int) -> int:
        """Return a number n such that the chunk with ``offset`` is n or a later one.

        Args:
            snapshots: (n, key), ascending. A damaged or missing one only makes the answer coarser.
        """
        known = list(snapshots)
        low, high = 0, len(known)  # every snapshot before `low` ends at or below the offset
        while low < high:
            middle = (low + high) // 2
            found = await self._next(known[middle][1], stream)
            if found is None:
                del known[middle]
                high -= 1
            elif found <= offset:
                low = middle + 1
            else:
                high = middle
        ended, n = self._places.get(stream, (0, 0))
        return max(known[low - 1][0] + 1 if low else 0, n if ended <= offset else 0)

    async def around(self, snapshots: list[tuple[int, str]], stream: StreamKey, n: int) -> Around:
        """Return the known bounds of a stream's offset at chunk ``n``, before the chunk's own records.

        Args:
            snapshots: as of ``locate``.
        """
        known = list(snapshots)
        middle = bisect_left(known, (n, ""))
        start, end = 0, None
        for before in reversed(known[:middle]):
            found = await self._next(before[1], stream)
            if found is not None:
                start = found
                break
        for after in known[middle:]:
            end = await self._next(after[1], stream)
            if end is not None:
                return Around(start, after[0], end)
        return Around(start, None, start)

    async def _next(self, key: str, stream: StreamKey) -> int | None:
        """Return a stream's next offset at a snapshot; None if it is damaged or gone."""
        try:
            return (await self._of(key)).get(stream, 0)
        except (NotFound, CodecError):
            return None

    async def _of(self, key: str) -> dict[StreamKey, int]:
        if key not in self._offsets:
            # Without the lanes: there may be ten thousand, which are not needed here.
            owner, offsets = await read_offsets(self._store, key)
            if owner != self._owner:
                raise Corrupt(f"{key} belongs to shard {owner[1]} of cluster {owner[0].hex()}")
            self._offsets[key] = offsets
            if len(self._offsets) > OFFSETS_MAX:
                self._offsets.popitem(last=False)
        return self._offsets[key]
