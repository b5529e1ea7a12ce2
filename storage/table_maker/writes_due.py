"""Streams whose new rows are written now: a stream with enough bytes, and all streams at common moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from weft.protocols.chunk import Chunk
from weft.protocols.shard.shard_state import StreamKey

FILES_PER_ROUND = 2000
"""Files that a tenant with more than twice as many has in a round on average, one for each stream and shard: at a round
each two minutes in a bucket they cost 220 US dollars a month, however many streams there are."""
WAIT_S_MAX = 1800.0
"""Longest time for which they wait unasked."""


class WritesDue:
    """Decides in which rounds a stream's rows become a file.

    The moments are common because a chunk has records of many streams: each chunk that is no longer in memory is read
    once for all of them.

    Args:
        bytes_min: bytes of log from which on a stream does not wait.
        after_s: seconds between the moments; None makes every round one, or one of several for a tenant with many
            streams: a round of all of them then has ``FILES_PER_ROUND`` files on average.
        interval_s: seconds between rounds.
        monotonic: seconds.
    """

    def __init__(
        self, bytes_min: int, after_s: float | None, interval_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._bytes_min = bytes_min
        self._given_s, self._interval_s = after_s, interval_s
        self._monotonic = monotonic
        self._after_s: dict[str, float | None] = {}
        """Time between the moments of each tenant."""
        self._waiting: Counter[StreamKey] = Counter()
        """Bytes of log since a stream's last write. What came before this process did is written in its first round."""
        self._last: dict[str, int] = {}
        """The last moment of each tenant."""
        self._late: set[StreamKey] = set()
        """Streams that have not been written completely since the last moment."""

    def arrived(self, chunk: Chunk) -> None:
        """Count the records of a chunk."""
        for section in chunk.footer.streams:
            self._waiting[section.tenant, section.stream] += section.length

    def is_due(self, key: StreamKey) -> bool:
        """Return whether the rows of a stream are written now."""
        return self._after_s.get(key[0]) is None or key in self._late or self._waiting[key] >= self._bytes_min

    def begin(self, keys: list[StreamKey], shards: int) -> None:
        """Begin a round; in the first one after a tenant's moment, all of its ``keys`` are due."""
        streams = Counter(tenant for tenant, _ in keys)
        # By tenant: many streams of one must not make the tables of another old.
        self._after_s = {tenant: self._time_between(count * shards) for tenant, count in streams.items()}
        now, begun = self._monotonic(), set[str]()
        for tenant, after_s in self._after_s.items():
            if after_s is not None and (moment := int(now // after_s)) != self._last.get(tenant):
                self._last[tenant] = moment
                begun.add(tenant)
        self._late.update(key for key in keys if key[0] in begun)

    def _time_between(self, files: int) -> float | None:
        if self._given_s is not None:
            return self._given_s
        rounds = files // FILES_PER_ROUND
        return None if rounds <= 1 else min(rounds * self._interval_s, WAIT_S_MAX)

    def written(self, key: StreamKey) -> None:
        """Note that all records of a stream are rows."""
        self._waiting.pop(key, None)
        self._late.discard(key)
