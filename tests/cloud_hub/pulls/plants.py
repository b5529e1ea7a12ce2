"""A plant with a log of its own, and links to a hub in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.support.waiting import Patience, until
from weft.cloud_hub.hub import Hub
from weft.config.links import Link, Pull
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.links import Links
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogSettings, SegmentLog

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND
"""Time of the first record of every plant."""
OVER = ("done", "refused", "failed", "cancelled", "expired")


class Plant:
    """An edge with the streams ``telemetry``, which its link carries, and ``vibration``, which stays."""

    def __init__(self, directory: Path, hub: str, pull: Pull | None, *, node: str = "press-7", **settings: Any) -> None:
        loop = asyncio.get_running_loop()

        def post(callback: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(callback)

        self.wall = BEGIN
        self.log = SegmentLog.open(
            str(directory),
            LogSettings(segment_bytes=1 << 20, tail_bytes=64 << 10),
            wall_clock=lambda: self.wall,
            clock_reading=lambda: ClockReading(1, self.wall, ClockState.SYNCED),
            random_bits=random.getrandbits,
            post=post,
        )
        streams = {"telemetry": Stream(from_=("t/+",)), "vibration": Stream(from_=("v/{axis}",))}
        link = Link(to=(hub,), streams=("telemetry",), retry_min_s=0.01, retry_max_s=0.05, pull=pull)
        link = msgspec.structs.replace(link, **settings)
        self.config = EdgeConfig(node=node, data_dir=str(directory), streams=streams, links={"hub": link})
        self.links = Links(self.config, self.log, wall_clock=lambda: self.wall)
        self.status = self.links.statuses[0]

    async def records(self, stream: str, count: int, *, batches: int = 1, every_s: float = 1.0) -> None:
        """Append records, in commits whose times are some seconds apart."""
        for _ in range(batches):
            number = self.log.stream(stream)
            first = self.log.next_seq(number)
            payloads = [b"%d of %s" % (first + each, stream.encode()) for each in range(count)]
            self.log.append(number, self.wall, [b"v/x"] * count, payloads)
            await self.log.durable()
            self.wall += int(every_s * SECOND)

    def with_pull(self, pull: Pull) -> EdgeConfig:
        """Return the configuration with another permission."""
        link = msgspec.structs.replace(self.config.links["hub"], pull=pull)
        return msgspec.structs.replace(self.config, links={"hub": link})

    async def delete(self, stream: str, first: int, end: int) -> None:
        """Delete records."""
        self.log.drop_backlog(self.log.stream(stream), first, end)
        await self.log.durable()

    async def close(self) -> None:
        await self.links.close()
        await asyncio.to_thread(self.log.close)


@contextlib.asynccontextmanager
async def linked_plant(
    directory: Path, hub: Hub, pull: Pull | None = Pull(streams=("vib*",), rate=64 << 20), **settings: Any
) -> AsyncIterator[Plant]:
    """Run a plant whose link is accepted."""
    plant = Plant(directory, hub.url, pull, **settings)
    plant.links.start()
    try:
        await until(lambda: plant.status.is_taken)
        yield plant
    finally:
        await plant.close()


async def call(hub: Hub, method: str, path: str, body: Any = None, *, token: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, hub.url + path, json=body) as answer,
    ):
        return answer.status, await answer.json()


async def ask(hub: Hub, since_s: float, until_s: float, stream: str = "vibration", **fields: Any) -> tuple[int, Any]:
    """Ask for a window, in seconds after ``BEGIN``."""
    first, end = (str(BEGIN + int(each * SECOND)) for each in (since_s, until_s))
    return await call(
        hub, "POST", "/v1/pulls", {"edge": "press-7", "stream": stream, "from": first, "to": end} | fields
    )


async def pull_of(hub: Hub, id_: str) -> Any:
    return (await call(hub, "GET", f"/v1/pulls?id={id_}"))[1]["pulls"][0]


async def over(hub: Hub, id_: str) -> Any:
    """Return a pull that is over."""
    patience = Patience()
    while (found := await pull_of(hub, id_))["state"] not in OVER:
        assert not patience.is_over(), found
        await asyncio.sleep(0.02)
    return found


def held(hub: Hub, plant: Plant, stream: str = "vibration") -> RangeSet:
    """Return the numbers of a stream that the hub has of a plant."""
    lane = Lane("default", "press-7", plant.log.log_id, stream)
    return next((each.state.lanes[lane].ranges for each in hub.sequencers if lane in each.state.lanes), RangeSet())
