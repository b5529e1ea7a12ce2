"""Shards of other processes as readers of single streams need them: of each, the parts of the streams that were asked
for, and nothing else.

A shard that this process owns, or has loaded for a link, is not followed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from weft.cloud_hub.shard.retry import told_to_others
from weft.cloud_hub.shard.shards import LOAD_S_MAX, READ_AGE_S_MAX
from weft.config.log_lines.repeats import Repeats, left_out
from weft.protocols.errors import CodecError
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.object_store import NotFound, StoreError

logger = logging.getLogger(__name__)

IDLE_S = 300.0
"""Time after which a stream is no longer followed that no reader asked for."""
FOLLOWED_MAX = 16_384
"""Maximum number of followed streams, counted once for each shard: 1,000 streams in 16 shards. The one that was asked
for the longest ago goes."""
UNKNOWN_MAX = 64
"""Maximum number of names that no shard knows and that are followed. Any name can be asked for: it must not push out
streams."""
LOOKS_AT_ONCE = 64
"""Number of looks that read from the store at a time; as many as the requests of one owner begin. Others wait."""


class FollowedShard(NamedTuple):
    """A shard for a reader of one stream."""

    log: ShardLog
    state: ShardState | None
    """Its part of the stream; None while nothing could be read."""
    trouble: str
    """Reason why it could not be read, or not further, for readers."""


class _Followed:
    def __init__(self, log: ShardLog) -> None:
        self.log = log
        self.state: ShardState | None = None
        self.trouble = ""
        self.looked_at = float("-inf")
        """Start of the last look that reached the log's head."""
        self.look: asyncio.Task[None] | None = None


class StreamFollowers:
    """The followed streams of one process. Event loop's thread only.

    Args:
        log: returns the log of a shard.
        monotonic: seconds.
    """

    def __init__(self, log: Callable[[int], ShardLog], monotonic: Callable[[], float]) -> None:
        self._log, self._monotonic = log, monotonic
        self._followed: dict[tuple[int, StreamKey], _Followed] = {}
        """In the order in which they were asked for last."""
        self._used_at: dict[tuple[int, StreamKey], float] = {}
        self._unknown: dict[StreamKey, None] = {}
        """Names that no shard knew when they were asked for last, in the order in which this was found."""
        self._repeats = Repeats()
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE)

    def __len__(self) -> int:
        """Return the number of followed streams, counted once for each shard."""
        return len(self._followed)

    async def read(self, shard: int, key: StreamKey) -> FollowedShard:
        """Return a stream's part of a shard as of at most ``READ_AGE_S_MAX`` ago, unless the store fails or is slow."""
        asked_at = self._monotonic()
        followed = self._of(shard, key, asked_at)
        # A look that began before may end below the head of that moment.
        for _ in range(2):
            if followed.looked_at >= asked_at - READ_AGE_S_MAX:
                break
            if followed.look is None or followed.look.done():
                followed.look = asyncio.create_task(self._look(followed, key), name=f"follow-shard-{shard}")
            await asyncio.wait([followed.look], timeout=LOAD_S_MAX)
            if not followed.look.done() or followed.look.cancelled():
                break
            followed.look.result()
            if followed.trouble:
                break
        return FollowedShard(followed.log, followed.state, followed.trouble or "it is being loaded")

    def _of(self, shard: int, key: StreamKey, now: float) -> _Followed:
        place = shard, key
        found = self._followed.pop(place, None) or _Followed(self._log(shard))
        self._followed[place], self._used_at[place] = found, now
        while len(self._followed) > 1:
            oldest = next(iter(self._followed))
            if len(self._followed) <= FOLLOWED_MAX and now - self._used_at[oldest] < IDLE_S:
                break
            self._forget(oldest)
        return found

    def note(self, key: StreamKey, *, is_known: bool) -> None:
        """Note whether any shard has a stream that was read, and forget the oldest of too many without."""
        self._unknown.pop(key, None)
        if is_known:
            return
        self._unknown[key] = None
        if len(self._unknown) > UNKNOWN_MAX:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            for place in [each for each in self._followed if each[1] == oldest]:
                self._forget(place)

    def _forget(self, place: tuple[int, StreamKey]) -> None:
        del self._used_at[place]
        if (look := self._followed.pop(place).look) is not None:
            look.cancel()

    async def _look(self, followed: _Followed, key: StreamKey) -> None:
        """Read up to the head of the log."""
        async with self._looks:
            await self._read_on(followed, key)

    async def _read_on(self, followed: _Followed, key: StreamKey) -> None:
        began, only = self._monotonic(), frozenset([key])
        try:
            if followed.state is None:
                followed.state = await followed.log.load(only)
            else:
                try:
                    await followed.log.extend(followed.state)
                except CollectedPast:
                    followed.state = await followed.log.load(only)
        except CodecError as error:
            self._note(followed, error)
            followed.state = None  # what was read before may be a part of a chunk
            return
        except (StoreError, NotFound) as error:
            self._note(followed, error)
            return
        followed.trouble, followed.looked_at = "", began

    def _note(self, followed: _Followed, error: Exception) -> None:
        followed.trouble = told_to_others(error)
        count = self._repeats.say(str(error), self._monotonic())
        if count is not None:
            logger.warning("shard %d cannot be read for a reader: %s%s", followed.log.shard, error, left_out(count))
