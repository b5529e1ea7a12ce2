"""A real hub and real links over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.support.epochs import MemoryEpochs
from tests.support.tokens import declare_tokens
from tests.support.waiting import PATIENCE_S, Patience, until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings, SequencerSettings
from weft.config.links import Link, Pull
from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.links import Links
from weft.network.reload import read_token
from weft.network.tls import ClientTlsFiles
from weft.protocols.batch import BatchHeader, ClockReading, ClockState
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.lane import Lane, Origin
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.runner import ConfigReceiver, LinkIdentity, LinkSettings, run_link
from weft.replication.runner.control import LinkControl
from weft.replication.source import LaneSnapshot, OfferedLane
from weft.storage.object_store import ObjectStore
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.segment_log.settings import LogFull

TOPICS = ("plant/{line}/{machine}/telemetry",)


@contextlib.asynccontextmanager
async def running_hub(store: ObjectStore, **settings: Any) -> AsyncIterator[Hub]:
    """A hub. Beside its settings, ``clocks`` may have its ``wall_clock`` and ``boot_clock``, and ``tokens`` the name of
    a file of tokens, which are declared before it starts."""
    clocks, tokens = settings.pop("clocks", {}), settings.pop("tokens", None)
    if tokens is not None:
        await declare_tokens(store, tokens, shards=settings.get("shards", 2))
    sequencer = SequencerSettings(commit_interval_s=0.01, mark_interval_s=0.05, follow_interval_s=0.05)
    hub = await Hub.open(
        HubSettings(
            store="given", **{"port": 0, "sequencer": sequencer, "shards": 2, "table_interval_s": None, **settings}
        ),
        store=store,
        **clocks,
    )
    try:
        yield hub
    finally:
        await hub.close()


class EdgeLog:
    """A log in memory (``replication.source.LogSource``) with one lane."""

    def __init__(self, stream: str = "telemetry", payload: PayloadKind = PayloadKind.BYTES) -> None:
        self.stream = stream
        self.payload = payload
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.gaps: list[GapRange] = []
        self.origins: dict[int, Origin] = {}
        self.released_ranges = RangeSet()
        self._listeners: list[Callable[[Collection[int] | None], None]] = []
        self._news = asyncio.Event()

    def append(self, header: BatchHeader, data: bytes | memoryview) -> None:
        self.batches.append((header, bytes(data)))
        for listener in self._listeners:
            listener([1])

    def lanes(self) -> list[OfferedLane]:
        return [OfferedLane(1, self.stream, TOPICS, self.payload, origin=self.origins.get)]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        held = RangeSet((header.base_seq, header.end_seq) for header, _ in self.batches)
        end = max([held.end, *(gap.end for gap in self.gaps)])
        return {lane: LaneSnapshot(held, end, self.gaps, Mark(time.time_ns(), end)) for lane in lanes}

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        return [data for header, data in self.batches if header.end_seq > seq][:4]

    def high_watermark(self, hub: str, lane: int) -> int:
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        pass

    def released(self, lane: int, ranges: RangeSet) -> None:
        self.released_ranges.update(ranges)
        self._news.set()

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    async def until_released(self, end: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.released_ranges.covers(0, end):
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def running_link(
    hub: Hub,
    log: EdgeLog,
    identity: LinkIdentity,
    token: str | None = None,
    epochs: MemoryEpochs | None = None,
    *,
    token_file: str | None = None,
    url: str | None = None,
    tls: ClientTlsFiles | None = None,
    redirects: tuple[str, ...] | None = None,
    config: ConfigReceiver | None = None,
    sender: SenderSettings | None = None,
    control: LinkControl | None = None,
) -> AsyncIterator[LinkStatus]:
    status = LinkStatus("hub")
    read = (lambda: token) if token_file is None else partial(read_token, token_file)
    settings = LinkSettings(
        (url or hub.url,),
        token=read,
        retry_min_s=0.05,
        tls=tls or ClientTlsFiles(),
        redirects=redirects,
        sender=sender or SenderSettings(),
    )
    task = asyncio.create_task(
        run_link(log, identity, settings, epochs or MemoryEpochs(), status, config=config, control=control)
    )
    try:
        yield status
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def get(hub: Hub, path: str, token: str | None = None, accept: str = "*/*") -> tuple[int, Any]:
    headers = {"Accept": accept} | ({"Authorization": f"Bearer {token}"} if token else {})
    async with aiohttp.ClientSession() as session, session.get(hub.url + path, headers=headers) as answer:
        return answer.status, await (answer.json() if answer.content_type.endswith("json") else answer.text())


# --- A plant with a log of its own, and links to a hub in the same process


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


# --- Edges with logs on disk, and a hub whose store is lost and restored from a backup, all in this process


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
