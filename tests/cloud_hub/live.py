"""A real hub and real links over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import aiohttp

from tests.support.epochs import MemoryEpochs
from tests.support.tokens import declare_tokens
from tests.support.waiting import PATIENCE_S
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings, SequencerSettings
from weft.network.reload import read_token
from weft.network.tls import ClientTlsFiles
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.lane import Origin
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.runner import ConfigReceiver, LinkIdentity, LinkSettings, run_link
from weft.replication.runner.control import LinkControl
from weft.replication.source import LaneSnapshot, OfferedLane
from weft.storage.object_store import ObjectStore

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
