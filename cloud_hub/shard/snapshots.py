"""Snapshots of a shard's state: a node starts from the newest one instead of the log's first chunk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from weft.protocols.errors import CodecError
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import SNAPSHOTS_TO_START, ShardLog
from weft.storage.manifest import changed
from weft.storage.object_store import AlreadyExists, StoreError

logger = logging.getLogger(__name__)

LANES_INLINE = 512
"""Number of lanes up to which a state is encoded on the event loop, in about 2 ms; a larger one in a thread."""
CHUNKS_MIN = 32
"""Number of chunks from which on a snapshot is due after its interval: a shard with a chunk of marks a minute would pay
for two objects more with each. A start reads this many chunks more at most."""
SNAPSHOTS_TO_LOCATE = 64
"""Maximum number of older snapshots that are kept as an index of offsets."""
WRITTEN_PER_THINNING = 8
"""Number of snapshots after which old ones are deleted, which takes a listing."""


async def write_snapshot(log: ShardLog, n: int, data: bytes, nonce: int) -> bool:
    """Store an encoded state and name it in the manifest, unless the manifest names a later one.

    Losing the swap to another node is fine: its snapshot serves as well.

    Returns:
        True if the manifest now names this snapshot.

    Raises:
        StoreError: the outcome is unknown. The next snapshot replaces this one.
    """
    manifest, etag = await log.manifest()
    if manifest.snapshot_n >= n:
        return False
    key = await log.put_snapshot(n, nonce, data)
    return await log.swap_manifest(changed(manifest, snapshot_n=n, snapshot=key), etag)


async def thin_snapshots(log: ShardLog) -> int:
    """Delete snapshots that are no longer useful, and return their number.

    The manifest's and the newest ``SNAPSHOTS_TO_START`` remain for starting nodes. ``SNAPSHOTS_TO_LOCATE`` of the
    older ones remain for ``locate``, spread over the log.
    """
    manifest, _ = await log.manifest()
    known = await log.snapshots()
    newest = {key for _, key in known[-SNAPSHOTS_TO_START:]} | {manifest.snapshot}
    older = [(n, key) for n, key in known if key not in newest and n < manifest.snapshot_n]
    useless = [key for n, key in older if n < manifest.watermark - 1]
    spread = [(n, key) for n, key in older if n >= manifest.watermark - 1]
    while len(spread) > SNAPSHOTS_TO_LOCATE:
        # The one whose neighbours are closest together is the least useful index.
        least = min(range(1, len(spread) - 1), key=lambda i: spread[i + 1][0] - spread[i - 1][0])
        useless.append(spread.pop(least)[1])
    for key in useless:
        await log.store.delete(key)
    return len(useless)


class Snapshotter:
    """Decides when a snapshot is due, and writes it concurrently with commits. One per shard.

    Args:
        monotonic: seconds.
        random_bits: for the object's nonce.
    """

    def __init__(
        self,
        log: ShardLog,
        interval_s: float,
        chunks: int,
        monotonic: Callable[[], float],
        random_bits: Callable[[int], int],
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._chunks = chunks
        self._monotonic = monotonic
        self._random_bits = random_bits
        self._last_n = -1
        self._last_time = monotonic()
        self._written = 0
        self._task: asyncio.Task[None] | None = None

    def loaded(self, snapshot_n: int) -> None:
        """Note that the state was loaded from a snapshot of chunk ``snapshot_n`` (-1: from the beginning)."""
        self._last_n, self._last_time = snapshot_n, self._monotonic()

    def consider(self, state: ShardState) -> None:
        """Start a snapshot when one is due.

        Args:
            state: just checked against the watermark. A snapshot of a state that the collector has passed would
                mislead every reader that uses snapshots as an index.
        """
        behind, waited = state.n - self._last_n, self._monotonic() - self._last_time
        due = behind >= self._chunks or (behind >= CHUNKS_MIN and waited >= self._interval_s)
        if not due or (self._task is not None and not self._task.done()):
            return
        self.loaded(state.n)
        if not state.is_whole:
            return  # the log has features that this release does not keep: a later release makes its snapshots
        self._task = asyncio.create_task(self._write(state.n, state.freeze(), len(state.lanes)))

    async def _write(self, n: int, encode: Callable[[], bytes], lanes: int) -> None:
        try:
            data = encode() if lanes <= LANES_INLINE else await asyncio.to_thread(encode)
            named = await write_snapshot(self._log, n, data, self._random_bits(64))
            self._written += named
            if named and self._written % WRITTEN_PER_THINNING == 0:
                await thin_snapshots(self._log)
        except (StoreError, AlreadyExists, CodecError) as error:
            logger.warning("shard %d: no snapshot of chunk %d was made: %s", self._log.shard, n, error)

    async def close(self) -> None:
        """Wait for the snapshot that is being written."""
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
