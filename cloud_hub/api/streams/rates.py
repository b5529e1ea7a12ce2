"""Rates of streams: records added to the log in the last minutes.

Positions of all streams are noted once a minute, and a request compares the newest ones with these. This needs no
reads: this process follows its own shards anyway, and others for the work on the tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from weft.bounds.background import BackgroundTask
from weft.cloud_hub.api.streams.summary import StreamPart
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.shard.shard_state import StreamKey

NOTE_INTERVAL_S = 60.0
"""Interval of notes: a rate covers one to two of them."""
AGE_S_MIN = 10.0
"""Minimum age of the notes for a rate. Over a shorter time, a rate would show single commits."""


class ShardPositions(NamedTuple):
    """Positions of a shard's streams at one moment."""

    shard: int
    at: float
    """Monotonic seconds."""
    ends: Mapping[StreamKey, int]
    """Offset after the last record, by stream."""


class _Tables(Protocol):
    def positions(self) -> list[tuple[int, float, dict[StreamKey, int]]]: ...


def followed(shards: Iterable[Sequencer], tables: _Tables | None, now: float) -> list[ShardPositions]:
    """Return the positions of the shards that a process follows: those it holds, and those its tables are made from."""
    known = {at[0]: ShardPositions(*at) for at in tables.positions()} if tables is not None else {}
    held = {
        each.log.shard: ShardPositions(each.log.shard, now, each.state.next_offset) for each in shards if each.loaded
    }
    return list({**known, **held}.values())


class StreamRates:
    """The rates of all streams of a hub.

    Args:
        positions: the newest positions of the shards that this process follows.
        monotonic: seconds.
    """

    def __init__(self, positions: Callable[[], Iterable[ShardPositions]], monotonic: Callable[[], float]) -> None:
        self._positions = positions
        self._monotonic = monotonic
        self._older: dict[int, ShardPositions] = {}
        self._newer: dict[int, ShardPositions] = {}
        self._task = BackgroundTask()

    def start(self) -> None:
        """Start to note positions."""
        self._task.start(self._run(), name="stream-rates")

    async def close(self) -> None:
        """Stop to note positions."""
        await self._task.close()

    async def _run(self) -> None:
        while True:
            await self.note()
            # A start needs some time to read the store, so the first notes are replaced soon.
            await asyncio.sleep(NOTE_INTERVAL_S if self._older else AGE_S_MIN)

    async def note(self) -> None:
        """Note the present positions."""
        noted = {}
        for each in list(self._positions()):
            noted[each.shard] = each._replace(ends=dict(each.ends))
            await asyncio.sleep(0)
        # A shard that is new in this note has a rate only from it on.
        self._older, self._newer = {**noted, **self._newer}, noted

    def rate(self, parts: Iterable[StreamPart], key: StreamKey, ages: Mapping[int, float]) -> float | None:
        """Return the records per second of a stream over the last one to two minutes; None while unknown.

        Args:
            parts: of all shards.
            ages: seconds since a part was made, by shard; a shard without was looked at just now.
        """
        now, total = self._monotonic(), 0.0
        for part in parts:
            if part.end is None:
                continue
            noted, at = self._older.get(part.shard), now - ages.get(part.shard, 0)
            if noted is None or at - noted.at < AGE_S_MIN:
                return None
            total += (part.end - noted.ends.get(key, 0)) / (at - noted.at)
        return max(total, 0.0)
