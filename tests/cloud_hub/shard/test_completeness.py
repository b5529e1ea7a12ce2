"""Completeness never says more than is true, whatever order records, gaps, marks, sessions and restarts come in.

The oracle is the edge itself: it knows when it took each record in. A lane is complete up to T only if every record
of up to T is in the log or under a gap notice.
"""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, SETTINGS, SequencerNode, Session, read_chunks
from tests.support.outcomes import outcome
from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.views import completeness_view, stream_lanes
from weft.hub_api.answers import moment
from weft.protocols import batch
from weft.protocols.batch import BatchHeader, ClockReading, ClockState
from weft.protocols.chunk_index import ClockUpdate, GapRange, Mark
from weft.protocols.lane import Lane
from weft.protocols.shard.completeness import completeness
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store.directory import MemoryStore
from weft.storage.table.rows import RowsOf, rows_of

LANES = [Lane("default", "edge-1", 7, "telemetry"), Lane("default", "edge-2", 8, "telemetry")]
ACTIONS = [
    "take",
    "take",
    "mark",
    "mark",
    "send",
    "send",
    "send",
    "gap",
    "tell",
    "tell",
    "session",
    "leave",
    "kill",
    "wait",
]
LONGER_THAN_MARKS_WAIT_S = 1.0
BEGIN = 1_700_000_000 * 10**9
"""Nanoseconds since 1970. A mark of its first year is that of functions that have not begun."""


class OracleEdge:
    """Knows what it took in when, and says of it what it likes in any order; but never a mark that is not true."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.clock = BEGIN + 1
        self.times: list[int] = []
        """Of each record, by its sequence number."""
        self.marks = [Mark(BEGIN, 0)]
        self.epoch = 0
        self.session: Session | None = None

    def take(self, count: int) -> None:
        for _ in range(count):
            self.clock += 10
            self.times.append(self.clock)

    def mark(self) -> Mark:
        """Records still to come have later times."""
        self.clock += 1
        self.marks.append(Mark(self.clock, len(self.times)))
        return self.marks[-1]

    async def connect(self, node: SequencerNode) -> Session:
        assert node.sequencer is not None
        self.epoch += 1
        self.session = Session(node.sequencer, self.lane, self.epoch)
        assert await self.session.open()
        return self.session

    def check(self, state: ShardState) -> None:
        held = state.lanes.get(self.lane)
        if held is None or held.complete_up_to is None:
            return
        early = [seq for seq, time in enumerate(self.times) if time <= held.complete_up_to]
        assert all(held.ranges.covers(seq, seq + 1) for seq in early), (held.mark, held.ranges)


async def _act(action: str, edge: OracleEdge, node: SequencerNode, chance: random.Random) -> None:
    sequencer = node.sequencer
    assert sequencer is not None
    end = len(edge.times)
    first = chance.randrange(end) if end else 0
    last = min(end, first + chance.randrange(1, 4))
    if action == "take":
        edge.take(chance.randrange(1, 4))
    elif action == "mark":
        edge.mark()
    elif action == "wait":
        await asyncio.sleep(LONGER_THAN_MARKS_WAIT_S)
    elif action == "kill":
        await node.kill()
        await node.start()
        edge.session = None
    elif action == "leave" and edge.session is not None:
        sequencer.leave(edge.session.lane_session)
    elif action == "session" or edge.session is None or edge.session.sequencer is not sequencer:
        await edge.connect(node)
    elif action == "send" and first < last:
        await edge.session.send(first, last)
    elif action == "gap" and first < last:
        await sequencer.put_gap(edge.session.lane_session, GapRange(first, last, 1))
    elif action == "tell":
        sequencer.put_mark(edge.session.lane_session, chance.choice(edge.marks))


async def _history(actions: list[tuple[str, int]], seed: int) -> None:
    chance = random.Random(seed)
    node = SequencerNode(MemoryStore(), chance, replace(SETTINGS, mark_interval_s=0.1))
    await node.start()
    edges = [OracleEdge(lane) for lane in LANES]

    def check() -> None:
        assert node.sequencer is not None
        state = node.sequencer.state
        for edge in edges:
            edge.check(state)
        lanes = state.stream_lanes("default", "telemetry").values()
        known = [held.complete_up_to for held in lanes if held.counts]
        shown = completeness(state.stream_lanes("default", "telemetry"), (), 0).complete_up_to
        assert shown == (None if None in known or not known else min(time for time in known if time) // 1000 * 1000)

    for action, which in actions:
        await _act(action, edges[which], node, chance)
        await asyncio.sleep(chance.choice([0.0, 0.3]))
        check()
    for edge in edges:  # everything comes at last
        mark = edge.mark()
        session = await edge.connect(node)
        if edge.times:
            await session.send(0, len(edge.times))
        assert node.sequencer is not None
        node.sequencer.put_mark(session.lane_session, mark)
    await asyncio.sleep(LONGER_THAN_MARKS_WAIT_S)
    check()
    assert node.sequencer is not None
    state = await node.sequencer.log.load()
    for edge in edges:
        assert state.lanes[edge.lane].complete_up_to == edge.marks[-1].time
    for shard, lane, held in stream_lanes([state], "default", "telemetry"):
        assert completeness_view(lane, held, shard).holes == []
    await node.kill()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1)), min_size=8, max_size=60), st.integers(0, 1 << 20)
)
def test_completeness_never_says_more_than_is_true_and_arrives_at_last(
    actions: list[tuple[str, int]], seed: int
) -> None:
    virtual_time.run(_history(actions, seed))


# --- No claim of completeness is ever false by `_time`, however the edges' clocks step; and all readers agree on
# times
#
# A claim is false when a record with an earlier `_time` than the claimed moment comes after it.


STREAM = ("default", "telemetry")
EDGES = ("edge-1", "edge-2")
US = 1000
TRUE_START = 1_000_000 * US
"""True time of the beginning: behind it, clocks have room to be wrong."""


@dataclass
class Run:
    """Records that were taken in at one instant."""

    first: int
    stamps: list[int]
    reading: ClockReading


class SteppingEdge:
    """An edge with a wall clock that people set now and then, and that may not be set after a boot.

    Its marks and clock notices are those of a real edge: a mark speaks of what the clock showed when it was made; as
    long as the clock is not set, of what the notice makes of it.
    """

    def __init__(self, lane: Lane, chance: random.Random) -> None:
        self.lane = lane
        self.chance = chance
        self.true = TRUE_START
        self.wall_error = 0
        self.boot, self.boot_at = 1, 0
        self.clock = ClockState.SYNCED
        self.runs: list[Run] = []
        self.reported: dict[int, int] = {}
        """Boot -> its offset, once the edge found it out."""
        self.epoch = 0
        self.session: Session | None = None

    @property
    def wall(self) -> int:
        return self.true + self.wall_error

    @property
    def reading(self) -> ClockReading:
        return ClockReading(self.boot, self.true - self.boot_at, self.clock)

    @property
    def end(self) -> int:
        return self.runs[-1].first + len(self.runs[-1].stamps) if self.runs else 0

    def pass_time(self) -> None:
        self.true += self.chance.choice([1, 300, 7 * US, 900 * US])

    def step(self) -> None:
        self.wall_error += self.chance.choice([-1, 1]) * self.chance.choice([1, 500, 3 * US, 4_000 * US])

    def reboot(self) -> None:
        self.boot, self.boot_at = self.boot + 1, self.true
        self.clock = self.chance.choice([ClockState.SYNCED, ClockState.UNSYNCED])
        if self.clock is ClockState.UNSYNCED:
            self.wall_error = -self.chance.randrange(900_000) * US

    def take(self) -> None:
        self.pass_time()
        reading = self.reading
        stamps = [self.wall + at * self.chance.choice([0, 1, 2]) for at in range(self.chance.randrange(1, 4))]
        stamps.sort()
        self.true = max(self.true, stamps[-1] - self.wall_error)
        self.runs.append(Run(self.end, stamps, reading))

    def find_out(self) -> ClockUpdate | None:
        """What the edge tells of its clock before it sends anything of an unset one."""
        if self.clock is ClockState.SYNCED:
            return None
        offset = self.reported.setdefault(self.boot, self.boot_at)
        tenant, edge, log_id, _ = self.lane
        return ClockUpdate(tenant, edge, log_id, self.boot, self.reading.monotonic, offset, 0)

    def mark(self) -> Mark:
        """Everything so far is below the end; what is still to come has the clock's present time at least."""
        offset = self.reported.get(self.boot) if self.clock is ClockState.UNSYNCED else None
        now = self.wall if offset is None else offset + self.reading.monotonic
        self.true += 1
        return Mark(now - 1, self.end)

    def encoded(self, run: Run) -> tuple[BatchHeader, memoryview]:
        count = len(run.stamps)
        payloads = [b"%d" % (run.first + at) for at in range(count)]
        columns = batch.columns_from_lists(struct.pack(f"<{count}q", *run.stamps), [b"k"] * count, payloads)
        data = batch.encode(1, run.first, columns, run.reading)
        return batch.verify(data), memoryview(data)

    async def connect(self, node: SequencerNode) -> Session:
        assert node.sequencer is not None
        self.epoch += 1
        self.session = Session(node.sequencer, self.lane, self.epoch)
        assert await self.session.open()
        return self.session

    async def send(self, first: int, count: int) -> None:
        assert self.session is not None
        for run in self.runs[first : first + count]:
            lane_session, sequencer = self.session.lane_session, self.session.sequencer
            if not sequencer.put(lane_session, [self.encoded(run)]):
                await sequencer.sessions.room(lane_session)

    def stamps(self) -> list[int]:
        return [stamp for run in self.runs for stamp in run.stamps]


@dataclass
class Claim:
    """What was said of the stream when the log ended at a chunk."""

    n: int
    moment: int
    edges: tuple[str, ...]
    """The edges that it speaks of: those that it names, or all that are expected."""


async def act(action: str, edge: SteppingEdge, node: SequencerNode, chance: random.Random) -> None:
    sequencer = node.sequencer
    assert sequencer is not None
    if action == "take":
        edge.take()
    elif action == "step":
        edge.step()
    elif action == "reboot":
        edge.reboot()
    elif action == "wait":
        edge.pass_time()
    elif action == "kill":
        await node.kill()
        await node.start()
        edge.session = None
    elif edge.session is None or edge.session.sequencer is not sequencer:
        await edge.connect(node)
    elif action == "clock":
        notice = edge.find_out()
        if notice is not None:
            sequencer.put_clock(edge.session.lane_session, notice)
    elif action == "mark":
        sequencer.put_mark(edge.session.lane_session, edge.mark())
    elif edge.runs:
        await edge.send(chance.randrange(len(edge.runs)), chance.randrange(1, 4))


async def history(actions: list[tuple[str, int]], seed: int) -> tuple[MemoryStore, list[dict[str, Any]]]:
    chance = random.Random(seed)
    store = MemoryStore()
    node = SequencerNode(store, chance, replace(SETTINGS, mark_interval_s=0.1))
    await node.start()
    edges = [SteppingEdge(lane, chance) for lane in LANES]
    claims: list[Claim] = []

    def claim(state: ShardState) -> None:
        for expected in ((), EDGES):
            answer = completeness(state.stream_lanes(*STREAM), expected, 0)
            if answer.complete_up_to is not None:
                covers = EDGES if expected else tuple(lane.edge for lane in answer.covers)
                claims.append(Claim(state.n, answer.complete_up_to, covers))

    for action, which in actions:
        await act(action, edges[which], node, chance)
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.3]))
        assert node.sequencer is not None
        claim(node.sequencer.state)
    for edge in edges:  # everything comes at last
        session = await edge.connect(node)
        await edge.send(0, len(edge.runs))
        assert node.sequencer is not None
        node.sequencer.put_mark(session.lane_session, edge.mark())
    await asyncio.sleep(1.0)
    assert node.sequencer is not None
    claim(node.sequencer.state)
    with outcome():
        rows = await check(store, edges, claims)
    await node.kill()
    return store, rows


async def check(store: MemoryStore, edges: list[SteppingEdge], claims: list[Claim]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for chunk, data in await read_chunks(store):
        for section in chunk.footer.streams:
            body = data[section.position : section.position + section.length]
            made = rows_of([RowsOf(section, body, chunk.footer.lanes, chunk.footer.clocks)], 0, [], lambda _: ())
            found = [row for part in made for row in part.to_pylist()]
            for row in found:
                assert section.first_time // US <= micros(row["_time"]) <= section.last_time // US
            rows += [{**row, "n": chunk.header.n} for row in found]
    for said in claims:
        of_edges = [row for row in rows if row["_edge"] in said.edges]
        late = [row for row in of_edges if row["n"] > said.n and micros(row["_time"]) * US < said.moment]
        assert not late, (said, late[:3])
    for edge in edges:
        of_edge = sorted((row for row in rows if row["_edge"] == edge.lane.edge), key=lambda row: row["_seq"])
        assert [row["_seq"] for row in of_edge] == list(range(edge.end))
        for row, stamp in zip(of_edge, edge.stamps(), strict=True):
            if row["_clock"] in {"synced", "unsynced"}:
                assert (micros(row["_time"]), row["_edge_time"]) == (stamp // US, None)
            else:
                assert micros(row["_edge_time"]) == stamp // US, row
    return rows


async def check_reader(store: MemoryStore, rows: list[dict[str, Any]]) -> None:
    """The API says of each record what its row says."""
    read = await RecordReader(ShardLog(store, CLUSTER, 0), 1 << 20).read(STREAM, 0, len(rows), len(rows))
    said = [(each.seq, each.clock, each.time, each.edge_time) for each, _, _ in read.records]
    assert [each[:2] for each in said] == [(row["_seq"], row["_clock"]) for row in rows]
    for (_, _, time, stamp), row in zip(said, rows, strict=True):
        assert time[:26] == (moment(micros(row["_time"]) * US) or "")[:26]
        assert (stamp is UNSET) == (row["_edge_time"] is None)


def micros(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000)


STEPPING_CLOCK_ACTIONS = [
    "take",
    "take",
    "take",
    "send",
    "send",
    "send",
    "mark",
    "mark",
    "mark",
    "step",
    "clock",
    "reboot",
    "wait",
    "kill",
]
ACTIONS_OF_A_HISTORY = 60


@pytest.mark.parametrize("seed", range(40))
def test_no_claim_is_false_by_time(seed: int) -> None:
    # Long histories of plain chance: short ones, as a shrinking generator likes them, hardly ever contradict a claim.
    chance = random.Random(seed)
    actions = [(chance.choice(STEPPING_CLOCK_ACTIONS), chance.randrange(2)) for _ in range(ACTIONS_OF_A_HISTORY)]
    asyncio.run(check_reader(*virtual_time.run(history(actions, seed))))


def test_the_histories_have_every_kind_of_clock() -> None:
    found: set[str] = set()
    for seed in range(8):
        chance = random.Random(seed)
        actions = [(chance.choice(STEPPING_CLOCK_ACTIONS), chance.randrange(2)) for _ in range(ACTIONS_OF_A_HISTORY)]
        found |= {row["_clock"] for row in virtual_time.run(history(actions, seed))[1]}
    assert found == {"synced", "unsynced", "corrected", "stepped"}
