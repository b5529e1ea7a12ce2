"""Snapshots as an index of stream offsets, for readers that begin in the middle of a shard's log."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from weft.protocols.errors import CodecError
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.storage.object_store import NotFound

OFFSETS_MAX = 64
"""Maximum number of snapshots whose offsets are remembered."""


class OffsetIndex:
    """Next offsets of streams at each snapshot of a shard.

    Args:
        read: reads the snapshot with a key.
    """

    def __init__(self, read: Callable[[str], Awaitable[ShardState]]) -> None:
        self._read = read
        self._offsets: OrderedDict[str, dict[StreamKey, int]] = OrderedDict()

    async def locate(self, snapshots: list[tuple[int, str]], stream: StreamKey, offset: int) -> int:
        """Return a number n such that the chunk with ``offset`` is n or a later one.

        Args:
            snapshots: (n, key), ascending. One that is damaged or gone only makes the answer coarser.
        """
        known = list(snapshots)
        low, high = 0, len(known)  # every snapshot before `low` ends at or below the offset
        while low < high:
            middle = (low + high) // 2
            try:
                offsets = await self._of(known[middle][1])
            except (NotFound, CodecError):
                del known[middle]
                high -= 1
                continue
            if offsets.get(stream, 0) <= offset:
                low = middle + 1
            else:
                high = middle
        return known[low - 1][0] + 1 if low else 0

    async def _of(self, key: str) -> dict[StreamKey, int]:
        if key not in self._offsets:
            self._offsets[key] = (await self._read(key)).next_offset
            if len(self._offsets) > OFFSETS_MAX:
                self._offsets.popitem(last=False)
        return self._offsets[key]
