"""Edges that send what they were not asked for, over real links to a real hub."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec
import pytest

from tests.cloud_hub.fabric import make_batch
from tests.cloud_hub.live import running_hub
from tests.cloud_hub.pulls.plants import BEGIN, SECOND, ask, over, pull_of
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.pulls import REPORTS_MAX
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import GapRange, LaneFlag
from weft.protocols.lane import Lane
from weft.protocols.link import PullRequest, PullStage, PullState
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.runner.settings import Tell
from weft.replication.source import LaneSnapshot, LogSource, OfferedLane
from weft.storage.object_store.directory import MemoryStore

pytestmark = pytest.mark.slow
LOG = 7
IDENTITY = LinkIdentity("default", "press-7", LOG, "test")


class Liar:
    """An edge that says and sends what a test wants (``LogSource`` and ``Puller``)."""

    def __init__(self) -> None:
        self.asked: list[PullRequest] = []
        self.tell: Tell = lambda _: None
        self.lane: OfferedLane | None = None
        self.batches: list[bytes] = []
        self.gaps: list[GapRange] = []
        self.closed_lanes: list[str] = []
        self._listeners: list[Callable[[Collection[int] | None], None]] = []

    # -- what tests call

    def says(self, ranges: list[tuple[int, int]], **fields: Any) -> None:
        """Announce records for the first pull."""
        count = sum(end - first for first, end in ranges)
        said = PullState(self.asked[0].id, PullStage.SENDING, LOG, ranges, count, 10_000, 0)
        self.tell(msgspec.structs.replace(said, **fields))

    def sends(self, first: int, end: int, at_s: float = 10.0, stream: str = "vibration") -> None:
        """Open a lane of a pull, and send a batch on it."""
        lane = Lane("default", "press-7", LOG, stream)
        self.batches = [bytes(make_batch(lane, first, end, BEGIN + int(at_s * SECOND))[1])]
        self.opens(stream)

    def opens(self, stream: str = "vibration") -> None:
        self.lane = OfferedLane(2, stream, (), flags=LaneFlag.PARTIAL, is_background=True, continues_hub=True)
        for listener in self._listeners:
            listener(None)

    # -- Puller

    is_offered = True

    def over(self, _source: LogSource) -> LogSource:
        return self

    def opened(self, _hub: str, tell: Tell) -> None:
        self.tell = tell

    def take(self, pulls: list[PullRequest]) -> None:
        self.asked = pulls

    def lane_ended(self, reason: str) -> None:
        self.closed_lanes.append(reason)

    def closed(self) -> None:
        self.asked, self.lane = [], None

    # -- LogSource

    def lanes(self) -> list[OfferedLane]:
        own = OfferedLane(1, "telemetry", ())
        return [own] if self.lane is None else [own, self.lane]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        headers = [decode_header(batch) for batch in self.batches]
        held = RangeSet((header.base_seq, header.end_seq) for header in headers)
        gaps = self.gaps
        nothing = LaneSnapshot(RangeSet(), 0, [], None)
        return {lane: LaneSnapshot(held, SEQ_END - 1, gaps, None) if lane == 2 else nothing for lane in lanes}

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        return [batch for batch in self.batches if decode_header(batch).end_seq > seq]

    def high_watermark(self, hub: str, lane: int) -> int:
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        pass

    def released(self, lane: int, ranges: RangeSet) -> None:
        pass

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)


@contextlib.asynccontextmanager
async def lied_to() -> AsyncIterator[tuple[Hub, Liar, LinkStatus]]:
    liar, status = Liar(), LinkStatus("hub")
    async with running_hub(MemoryStore()) as hub:
        settings = LinkSettings((hub.url,), retry_min_s=0.02, retry_max_s=0.05)
        task = asyncio.create_task(run_link(liar, IDENTITY, settings, MemoryEpochs(), status, puller=liar))
        try:
            await until(lambda: status.is_taken)
            yield hub, liar, status
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def held(hub: Hub, stream: str = "vibration") -> list[tuple[int, int]]:
    found = [
        state.ranges for each in hub.sequencers for lane, state in each.state.lanes.items() if lane.stream == stream
    ]
    return [run for ranges in found for run in ranges]


async def asked(hub: Hub, liar: Liar, since_s: float = 0, until_s: float = 50, **fields: Any) -> str:
    _, answer = await ask(hub, since_s, until_s, **fields)
    await until(lambda: any(each.id == answer["id"] for each in liar.asked))
    return str(answer["id"])


async def test_records_that_were_not_announced_are_not_taken() -> None:
    async with lied_to() as (hub, liar, _):
        id_ = await asked(hub, liar)
        liar.says([(0, 10)])
        liar.sends(10, 20)
        found = await over(hub, id_)
        assert (found["state"], held(hub)) == ("failed", [])
        assert "records 10 to 19 of stream vibration are in none of the windows" in found["reason"]


async def test_records_of_another_time_are_not_taken() -> None:
    async with lied_to() as (hub, liar, _):
        id_ = await asked(hub, liar)
        liar.says([(0, 10)])
        liar.sends(0, 10, at_s=60)
        assert ((await over(hub, id_))["state"], held(hub)) == ("failed", [])


async def test_a_lane_that_was_not_asked_for_is_not_opened() -> None:
    async with lied_to() as (hub, liar, status):
        await asked(hub, liar)
        liar.says([(0, 10)])
        liar.sends(0, 10, stream="alarms")
        await until(lambda: bool(liar.closed_lanes))
        assert "did not ask for records of stream alarms" in liar.closed_lanes[0]
        assert (held(hub, "alarms"), status.is_taken) == ([], True)


async def test_a_lane_without_a_pull_is_not_opened() -> None:
    async with lied_to() as (hub, liar, _):
        liar.sends(0, 10)
        await until(lambda: bool(liar.closed_lanes))
        assert held(hub) == []


async def test_gap_notices_claim_nothing_in_place_of_records() -> None:
    async with lied_to() as (hub, liar, _):
        id_ = await asked(hub, liar)
        liar.says([(0, 10)])
        liar.gaps = [GapRange(0, 10, 1)]
        liar.opens()
        assert ((await over(hub, id_))["state"], held(hub)) == ("failed", [])


@pytest.mark.parametrize(
    "fields", [{"bytes": 1 << 50}, {"records": 3}, {"ranges": [(0, 20), (5, 30)]}], ids=lambda each: next(iter(each))
)
async def test_announcements_that_cannot_be_end_the_link(fields: dict[str, Any]) -> None:
    async with lied_to() as (hub, liar, status):
        await asked(hub, liar)
        connections = status.connections
        liar.says(**{"ranges": [(0, 10)]} | fields)
        await until(lambda: "announced" in status.last_error)
        await until(lambda: status.connections > connections)
        assert held(hub) == []


async def test_words_without_end_end_the_link() -> None:
    async with lied_to() as (hub, liar, status):
        await asked(hub, liar)
        for _ in range(REPORTS_MAX + 1):
            liar.says([(0, 10)])
        await until(lambda: "more than 256 words" in status.last_error)


async def test_words_about_pulls_of_others_change_nothing() -> None:
    async with lied_to() as (hub, liar, _):
        id_ = await asked(hub, liar)
        for stage in (PullStage.DONE, PullStage.REFUSED, 99):
            liar.says([], id="another", stage=stage)
        liar.says([], stage=99)
        liar.says([(0, 10)])
        liar.sends(0, 10)
        await until(lambda: held(hub) == [(0, 10)])
        assert (await pull_of(hub, id_))["state"] == "sending"
