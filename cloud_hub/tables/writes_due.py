"""Streams whose new rows are written now: a stream with enough bytes, and all streams at common moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from weft.protocols.chunk import Chunk
from weft.protocols.shard.shard_state import StreamKey

FILES_PER_ROUND = 2000
"""Files of a round, one for each stream and shard, from which on quiet streams wait: at a round each two minutes in a
bucket they cost 220 US dollars a month, however many streams there are."""
WAIT_S_MAX = 1800.0
"""Longest time for which they wait unasked."""


class WritesDue:
    """Decides in which rounds a stream's rows become a file.

    The moments are common because a chunk has records of many streams: each chunk that is no longer in memory is read
    once for all of them.

    Args:
        bytes_min: bytes of log from which on a stream does not wait.
        after_s: seconds between the moments; None makes every round one, or one of several where there are many
            streams: a round of all of them then has ``FILES_PER_ROUND`` files on average.
        interval_s: seconds between rounds.
        monotonic: seconds.
    """

    def __init__(
        self, bytes_min: int, after_s: float | None, interval_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._bytes_min = bytes_min
        self._after_s = after_s
        self._adapts, self._interval_s = after_s is None, interval_s
        self._monotonic = monotonic
        self._waiting: Counter[StreamKey] = Counter()
        """Bytes of log since a stream's last write. What came before this process did is written in its first round."""
        self._last = -1
        self._late: set[StreamKey] = set()
        """Streams that have not been written completely since the last moment."""

    def arrived(self, chunk: Chunk) -> None:
        """Count the records of a chunk."""
        for section in chunk.footer.streams:
            self._waiting[section.tenant, section.stream] += section.length

    def is_due(self, key: StreamKey) -> bool:
        """Return whether the rows of a stream are written now."""
        return self._after_s is None or key in self._late or self._waiting[key] >= self._bytes_min

    def begin(self, keys: list[StreamKey], shards: int) -> None:
        """Begin a round; in the first one after a moment, all of ``keys`` are due."""
        if self._adapts:
            rounds = len(keys) * shards // FILES_PER_ROUND
            self._after_s = None if rounds <= 1 else min(rounds * self._interval_s, WAIT_S_MAX)
        if self._after_s is not None and (moment := int(self._monotonic() // self._after_s)) != self._last:
            self._last = moment
            self._late.update(keys)

    def written(self, key: StreamKey) -> None:
        """Note that all records of a stream are rows."""
        self._waiting.pop(key, None)
        self._late.discard(key)
