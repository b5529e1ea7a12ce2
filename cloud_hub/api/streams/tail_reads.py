"""Looks and reads that the tails of a process share: however many follow a stream, it is looked at and read once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from weft.cloud_hub.api.records import Helping, ShardsView
from weft.cloud_hub.api.search import Search
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import ShardState, StreamKey

RECORDS_AT_ONCE = 200
BYTES_AT_ONCE = 1 << 20
"""Records and bytes of payload of one event; one record more may go beyond."""
BYTES_OF_ALL = 64 << 20
"""Bytes of payload of an event for each tail together: with many, an event has fewer."""
BYTES_AT_ONCE_MIN = 32 << 10
LOOK_AGE_S = 0.1
"""Maximum age of a look at a stream that another tail made."""
READ_AGE_S = 2.0
"""Time for which a read is kept for tails that come to the same place."""
READS_MAX = 16
"""Maximum number of reads that are kept; the oldest goes first."""

ShardsOf = Callable[[StreamKey], Awaitable[ShardsView]]
"""Function that returns the shards of a stream, or raises ``ApiError``."""
KindOf = Callable[[ShardsView, str, str], Awaitable[PayloadKind]]
"""Function that returns the payload kind of a stream."""
T = TypeVar("T")


class SharedRead(NamedTuple):
    """Records of one shard from an offset on."""

    helping: Helping
    end: int
    """The stream's next offset in the shard when they were read."""


class _Shared(Generic[T]):
    def __init__(self, task: asyncio.Task[T], at: float) -> None:
        self.task, self.at = task, at


class TailReads:
    """Shared looks and reads. Event loop's thread only.

    Args:
        tails: returns the number of tails that are open.
        monotonic: seconds.
    """

    def __init__(
        self, shards_of: ShardsOf, kind_of: KindOf, tails: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self._shards_of, self._kind_of, self._tails, self._monotonic = shards_of, kind_of, tails, monotonic
        self._looks: dict[Hashable, _Shared[ShardsView]] = {}
        self._reads: dict[Hashable, _Shared[SharedRead]] = {}

    async def look(self, key: StreamKey) -> ShardsView:
        """Return the shards of a stream. Raises as a request for it does."""
        return await self._share(self._looks, key, lambda: self._shards_of(key), LOOK_AGE_S)

    async def read(self, shards: ShardsView, state: ShardState, key: StreamKey, at: int, chunk: int) -> SharedRead:
        """Return the records of a shard from an offset on, at least one unless the search for it met its bound or they
        are gone. Raises as ``RecordReader.read``.

        Args:
            chunk: number of a chunk; the offset is not in an earlier one.
        """

        async def read() -> SharedRead:
            end = state.next_offset.get(key, 0)
            share = max(BYTES_AT_ONCE_MIN, min(BYTES_AT_ONCE, BYTES_OF_ALL // max(1, self._tails())))
            helping = await shards.readers[state.shard].read(
                key, at, end, RECORDS_AT_ONCE, payload=await self._kind_of(shards, *key), chunk=chunk,
                search=Search(records_bytes=share),
            )  # fmt: skip
            return SharedRead(helping, end)

        return await self._share(self._reads, (key, state.shard, at, chunk), read, READ_AGE_S)

    async def _share(
        self, held: dict[Hashable, _Shared[T]], name: Hashable, make: Callable[[], Awaitable[T]], age_s: float
    ) -> T:
        now = self._monotonic()
        for each in [each for each, shared in held.items() if shared.task.done() and now - shared.at >= age_s]:
            del held[each]
        if (found := held.get(name)) is None:
            while len(held) >= READS_MAX:
                del held[next(iter(held))]  # its readers still get it
            found = held[name] = _Shared(asyncio.create_task(_made(make), name="tail-read"), now)
        try:
            # A reader that leaves takes nothing from the others.
            return await asyncio.shield(found.task)
        except Exception:
            if held.get(name) is found:
                del held[name]
            raise


async def _made(make: Callable[[], Awaitable[T]]) -> T:
    return await make()
