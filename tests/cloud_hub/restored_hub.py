"""Edges with logs on disk, and a hub whose store is lost and restored from a backup, all in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.links import Links
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.segment_log.settings import LogFull

STREAM = "telemetry"
SEGMENT_BYTES = 4096


class Edge:
    """A node's log and links.

    Args:
        segments: budget of its log; what hubs have acknowledged goes first when it is full.
    """

    def __init__(self, directory: Path, name: str, url: str, segments: int) -> None:
        loop = asyncio.get_running_loop()

        def post(callback: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(callback)

        self.name, self.sent = name, 0
        self.log = SegmentLog.open(
            str(directory / name / "log"),
            LogSettings(segment_bytes=SEGMENT_BYTES, budget_bytes=segments * SEGMENT_BYTES, tail_bytes=0),
            wall_clock=time.time_ns,
            clock_reading=lambda: ClockReading(1, time.monotonic_ns(), ClockState.SYNCED),
            random_bits=random.getrandbits,
            post=post,
        )
        config = EdgeConfig(
            node=name,
            data_dir=str(directory / name),
            streams={STREAM: Stream(from_=(f"{STREAM}/+",))},
            links={"cloud": LinkConfig(to=(url,), retry_min_s=0.01, retry_max_s=0.05)},
        )
        self.links = Links(config, self.log, wall_clock=time.time_ns)
        self.lane = self.log.stream(STREAM)

    async def __aenter__(self) -> Edge:
        self.links.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.links.close()
        await asyncio.to_thread(self.log.close)

    async def bring(self, count: int) -> None:
        """Take records in, until they are on disk."""
        durable = asyncio.get_running_loop().create_future()
        payloads = [
            b"%s %d %s" % (self.name.encode(), self.sent + i, os.urandom(60).hex().encode()) for i in range(count)
        ]
        self.log.append(self.lane, time.time_ns(), [b"plant/1"] * count, payloads)
        self.sent += count
        self.log.on_durable(durable.set_result)
        assert await durable is None

    async def load(self, ended: asyncio.Event) -> None:
        """Take records in until an event, as long as the log has room: a hub may be slow to acknowledge."""
        while not ended.is_set():
            with contextlib.suppress(LogFull):
                await self.bring(5)
            await asyncio.sleep(0.01)

    @property
    def held(self) -> RangeSet:
        """The records that the log has."""
        return self.log.snapshot(self.lane).held
