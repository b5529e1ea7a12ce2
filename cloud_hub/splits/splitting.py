"""Beginning of a shard that a split makes: the SEAL record in the halved shard's log, and the new shard's manifest.

Any process may do it, whether others do the same or write to the halved shard meanwhile. A split is declared first
(``storage.cluster.declare_split``); who needs the new shard then puts it into force, in steps each of which may be the
last before a crash:

1. The state with which the new shard begins is stored, as if the SEAL were in the next chunk of the halved shard.
2. That chunk is created, or not: the log decides whether, and which of several states counts.
3. The new shard gets a manifest that names the state. Its log goes on behind the SEAL's number.

Nothing is written to a new shard that has no manifest (``storage.chunk_log.NotBegun``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import msgspec

from weft.protocols import chunk as chunks
from weft.protocols.chunk import Chunk, ChunkHeader, Control, ControlKind, StreamBlock, blocked
from weft.protocols.chunk_index.footer import BLOCKS, SPLITS
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.shard.fold import fold
from weft.protocols.shard.placement import ShardTree
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.splits import SPLIT_LEVEL, SealBody, Split
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.hub_keys import snapshot_key
from weft.storage.manifest import changed
from weft.storage.object_store import AlreadyExists, StoreError

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 100
"""Maximum number of attempts at chunk numbers that other processes may take first."""
LANES_INLINE = 512
"""Number of lanes up to which the new shard's state is made on the event loop; of more, in a thread."""

Hold = Callable[[int], AbstractAsyncContextManager[object]]
"""For a shard: a context in which this process itself writes no chunk of it."""


def _hold_nothing(shard: int) -> AbstractAsyncContextManager[object]:  # noqa: ARG001
    return contextlib.nullcontext()


class Splitter:
    """Puts declared splits into force.

    Args:
        log_of: makes the log of a shard.
        tree: the shards as declared.
        wall_clock: nanoseconds since 1970. It raises what makes a call end before anything is written.
        random_bits: for nonces.
        hold: keeps this process from taking the halved shard's next number itself.
    """

    def __init__(
        self,
        log_of: Callable[[int], ShardLog],
        tree: Callable[[], ShardTree],
        *,
        wall_clock: Callable[[], int],
        random_bits: Callable[[int], int],
        hold: Hold = _hold_nothing,
    ) -> None:
        self._log_of, self._tree = log_of, tree
        self._wall_clock, self._random_bits, self._hold = wall_clock, random_bits, hold

    async def begin(self, shard: int) -> None:
        """Make a shard ready to be loaded and written to; do nothing if it has begun, or is one of the first. Durable
        when this returns.

        Raises:
            StoreError: the store did not answer, or other processes took every number first; call again.
            Corrupt, UnsupportedVersion: the halved shard cannot be read.
        """
        above = self._tree().parent(shard)
        if above is None or await has_begun(self._log_of(shard)):
            return
        await self.begin(above)
        log, state = self._log_of(above), None
        for _ in range(ATTEMPTS_MAX):
            try:
                async with self._hold(above):
                    state = await log.load() if state is None else state
                    await log.extend(state)
                    split = await self._next(log, state, shard)
            except CollectedPast:
                state = None
                continue
            if split is not None and await _name(log.new_shard(split), split):
                return
        raise StoreError(f"shard {above}: other processes took {ATTEMPTS_MAX} chunk numbers first: try again")

    async def _next(self, log: ShardLog, state: ShardState, shard: int) -> Split | None:
        """Return the split that made a shard; if the log has none, try to write the shard's next one. The log decides
        whether that succeeded, so the caller reads on."""
        for bit, new in self._tree().children(log.shard):
            split = next((each for each in state.splits if each.shard == new), None)
            if split is None:
                await self._seal(log, state, new, bit)
                return None
            if new == shard:
                return split
        raise AssertionError(f"shard {shard} is not split from {log.shard}")

    async def _seal(self, log: ShardLog, state: ShardState, shard: int, bit: int) -> None:
        if not state.is_whole or state.extensions:
            raise UnsupportedVersion(f"the log of shard {state.shard} has features of a later release")
        nonce = self._random_bits(64)
        created = max(self._wall_clock(), state.created)
        header = ChunkHeader(
            state.cluster_id, state.n + 1, created, state.shard, state.footer_crc, self._random_bits(64)
        )
        body = msgspec.msgpack.encode(SealBody(shard, bit, nonce))
        told = StreamBlock([], [Control(ControlKind.SEAL, "", "", 0, "", body)], [])
        index = replace(blocked(header, max(SPLIT_LEVEL, state.fold_level), [], told), must_understand=BLOCKS | SPLITS)
        tail, crc = chunks.encode_footer(index)
        split = fold(state, Chunk(header, index, crc)).split
        assert split is not None, "the chunk splits the shard"
        data = await self._new_state(state, split, created, crc)
        with contextlib.suppress(AlreadyExists):  # also of the state, by a retry: the next attempt has another nonce
            await log.new_shard(split).put_snapshot(split.n, nonce, data)
            await log.create(header.n, chunks.encode_header(header) + tail)

    @staticmethod
    async def _new_state(state: ShardState, split: Split, created: int, crc: int) -> bytes:
        def make() -> bytes:
            return state.moved_half(split, created, crc).encode()

        return make() if len(state.lanes) <= LANES_INLINE else await asyncio.to_thread(make)


async def has_begun(log: ShardLog) -> bool:
    """Return whether a shard that a split makes can be written to."""
    return (await log.manifest())[0].snapshot is not None


async def _name(log: ShardLog, split: Split) -> bool:
    """Name the state with which a new shard begins in its manifest. Return whether the shard has begun.

    Chunks up to the SEAL's number count as collected: there are none.
    """
    manifest, etag = await log.manifest()
    if manifest.snapshot is None:
        key = snapshot_key(split.shard, split.n, split.nonce)
        if await log.swap_manifest(changed(manifest, snapshot_n=split.n, snapshot=key, watermark=split.n + 1), etag):
            logger.info("shard %d has begun, split from a shard at chunk %d", split.shard, split.n)
    return await has_begun(log)
