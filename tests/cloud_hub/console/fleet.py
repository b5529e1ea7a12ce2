"""A hub with a large fleet: real states of shards, and a stream that a real link has brought."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from weft.cloud_hub.hub import Hub
from weft.protocols import batch
from weft.protocols.batch import BatchHeader, ClockReading, ClockState
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import NodeReport
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import LaneState
from weft.replication.flow_control import LatestReport, SenderSettings
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore

NS = 1_000_000_000
PRESS = LinkIdentity("default", "press-1", 0xABC, "weft 0.1.0")
READINGS, STEP_S = 720, 5
LOST = (300, 360)
"""Readings that the edge never had room for."""


def add_edges(hub: Hub, edges: int, streams: int, now: int | None = None) -> None:
    """Put edges with two lanes each into the states of the hub's shards; of every 40, one is late and one lacks
    records."""
    now = time.time_ns() if now is None else now
    states = {each.log.shard: each.state for each in hub.sequencers}
    for number in range(edges):
        name = NodeName("default", f"edge-{number:05d}")
        state = states[hub._shards.place(name)]
        late = 900 * NS if number % 40 == 1 else (number % 50) * NS // 10
        for stream in {number % streams, (number * 7 + 1) % streams}:
            mark = Mark(now - late, 1000)
            held = LaneState(ranges=RangeSet([(0, 1000)]), mark=mark, whole_mark=mark, last_seen=now - late)
            if number % 40 == 2:
                held.ranges = RangeSet([(0, 400), (500, 1000)])
                held.mark = held.whole_mark = Mark(now - 400 * NS, 400)
                held.pending_marks = [mark]
            state.set_lane(Lane(*name, number + 1, f"line-{stream:03d}"), held)


def readings(
    first: int, end: int, start: int, topic: str = "plant/hall-2/press-1/telemetry", step_s: int = STEP_S
) -> tuple[BatchHeader, bytes]:
    """Readings of a machine, five seconds apart if nothing else is said."""
    seqs = range(first, end)
    times = struct.pack(f"<{len(seqs)}q", *(start + seq * step_s * NS for seq in seqs))
    payloads = [
        json.dumps(
            {
                "temperature": round(61 + 6 * math.sin(seq / 40) + math.sin(seq), 2),
                "running": seq % 9 > 0,
                "motor": {"current": round(4 + math.cos(seq / 25), 3)},
            }
        ).encode()
        for seq in seqs
    ]
    keys = [topic.encode()] * len(payloads)
    columns = batch.columns_from_lists(times, keys, payloads)
    data = batch.encode(1, first, columns, ClockReading(1, 1, ClockState.SYNCED))
    return batch.verify(data), data


def messages(first: int, topics: Sequence[str]) -> tuple[BatchHeader, bytes]:
    """A number of every topic, all of now."""
    times = struct.pack(f"<{len(topics)}q", *[time.time_ns()] * len(topics))
    columns = batch.columns_from_lists(
        times, [each.encode() for each in topics], [b"%d" % n for n in range(len(topics))]
    )
    data = batch.encode(1, first, columns, ClockReading(1, 1, ClockState.SYNCED))
    return batch.verify(data), data


def press_log(now: int) -> EdgeLog:
    """An hour of readings, of which some are a gap with a reason."""
    log = EdgeLog("telemetry", PayloadKind.JSON)
    start = now - READINGS * STEP_S * NS
    for first in range(0, READINGS, 60):
        if first != LOST[0]:
            log.append(*readings(first, first + 60, start))
    log.gaps = [GapRange(*LOST, GapReason.BUDGET)]
    return log


@asynccontextmanager
async def hub_with_fleet(
    edges: int = 40,
    streams: int = 6,
    *,
    token: str | None = None,
    store: ObjectStore | None = None,
    report: NodeReport | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Hub, EdgeLog]]:
    """A hub with a fleet, and a linked edge that has delivered what it has, and has told ``report`` of itself."""
    reported = LatestReport()
    reported.report = report
    async with running_hub(store or MemoryStore(), **settings) as hub:
        add_edges(hub, edges, streams)
        log = press_log(time.time_ns())
        async with running_link(hub, log, PRESS, token, sender=SenderSettings(report=reported)):
            await log.until_released(LOST[0])
            yield hub, log
