"""A log as the source of a link to another region: its position never passes what the region did not acknowledge."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import pytest

from tests.cloud_hub.tables.logs import LANE, START, LogWriter, Run
from weft.cloud_hub.regions import source as sources
from weft.cloud_hub.regions.source import AGAIN_MAX_S, RegionSource, Selection
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import GapRange
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.replication.events import LaneEnded, LaneTaken
from weft.replication.source import OfferedLane
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store.directory import MemoryStore

LANES = [
    Lane(tenant, f"press-{edge}", edge, stream)
    for tenant in ("default", "other")
    for edge in (1, 2, 3)
    for stream in ("telemetry", "events")
]
PEER = "ab" * 16
WINDOW = 4


class Log:
    """A log that grows by chance: lanes with gaps, and records that fill some of them later."""

    def __init__(self, writer: LogWriter, rng: random.Random) -> None:
        self.writer, self.rng = writer, rng
        self.chunks: list[list[Run]] = []
        self._ends: dict[Lane, int] = {}
        self._gaps: list[tuple[Lane, GapRange]] = []

    async def grow(self) -> None:
        runs = []
        for lane in self.rng.sample(LANES, self.rng.randint(1, 4)):
            first, count = self._ends.get(lane, 0), self.rng.randint(1, 5)
            gaps: list[GapRange] = []
            if self.rng.random() < 0.3:
                reason = self.rng.choice([GapReason.BUDGET, GapReason.ABSENT])
                gaps = [GapRange(first, first + 3, reason)]
                self._gaps.append((lane, gaps[0]))
                first += 3
            runs.append(Run(lane, first, count, gaps=gaps))
            self._ends[lane] = first + count
        if self._gaps and self.rng.random() < 0.4:
            lane, gap = self._gaps[0]
            if lane not in {run.lane for run in runs}:
                del self._gaps[0]
                runs.append(Run(lane, gap.first, gap.end - gap.first))
        await self.writer.append(0, *runs)
        self.chunks.append(runs)

    def late(self) -> dict[Lane, RangeSet]:
        """By lane, the records that came behind later ones."""
        late: dict[Lane, RangeSet] = {}
        ends: dict[Lane, int] = {}
        for run in (run for runs in self.chunks for run in runs):
            if run.first < ends.get(run.lane, 0):
                late.setdefault(run.lane, RangeSet()).add(run.first, run.first + run.count)
            ends[run.lane] = max(ends.get(run.lane, 0), run.first + run.count)
        return late


class Region:
    """What a region has, and the connection to it, as a sender and a receiver make it."""

    def __init__(self) -> None:
        self.records: dict[Lane, RangeSet] = {}
        self.gaps: dict[Lane, RangeSet] = {}
        self.stored = 0
        self.refuses: set[Lane] = set()
        self.order: dict[Lane, list[int]] = {}
        """Records by lane as they came."""
        self._open: dict[int, OfferedLane] = {}
        self._known: dict[int, RangeSet] = {}

    def disconnect(self) -> None:
        self._open, self._known = {}, {}

    def follow(self, source: RegionSource) -> None:
        lanes = {each.lane: each for each in source.lanes()}
        for number, lane in list(self._open.items()):
            if lane.identity in self.refuses:
                lane.answered(LaneEnded(number, RefuseCode.UNAUTHORISED, "not this one", "see the operator"))
            if lanes.get(number) != lane or lane.identity in self.refuses:
                del self._open[number], self._known[number]
        for number, lane in lanes.items():
            if number not in self._open:
                assert lane.identity is not None
                if lane.identity in self.refuses:
                    lane.answered(LaneEnded(number, RefuseCode.UNAUTHORISED, "not this one", "see the operator"))
                    continue
                lane.answered(LaneTaken(number))
                self._open[number] = lane
                held = self.records.setdefault(lane.identity, RangeSet()).copy()
                self._known[number] = held
                source.released(number, held.copy())

    async def take(self, source: RegionSource, number: int, *, answers: bool) -> bool:
        """Send the next batches and gaps of a lane. Return whether there was something to send."""
        lane, known = self._open[number].identity, self._known[number]
        assert lane is not None
        state = source.states([number])[number]
        missing = [hole for run in state.held for hole in known.missing(*run)]
        reports = [part for gap in state.gaps for part in known.missing(gap.first, gap.end)]
        for part in reports:
            known.add(*part)
            self.gaps.setdefault(lane, RangeSet()).add(*part)
        if missing:
            batches = await source.read(number, missing[0][0], 100)
            assert batches
            assert decode_header(batches[0]).base_seq <= missing[0][0] < decode_header(batches[0]).end_seq
            for header in map(decode_header, batches):
                new = self.records[lane].missing(header.base_seq, header.end_seq)
                self.stored += sum(end - first for first, end in new)
                self.order.setdefault(lane, []).extend(seq for run in new for seq in range(*run))
                self.records[lane].add(header.base_seq, header.end_seq)
                known.add(header.base_seq, header.end_seq)
        if answers:
            ranges = self.records[lane].copy()
            for part in self._told(number, lane):
                ranges.add(*part)
            source.released(number, ranges)
        return bool(missing or reports)

    def _told(self, number: int, lane: Lane) -> Sequence[tuple[int, int]]:
        return [part for run in self._known[number] for part in self.gaps.get(lane, RangeSet()).within(*run)]

    @property
    def numbers(self) -> list[int]:
        return list(self._open)


def check(log: Log, region: Region, position: int, takes: Selection) -> None:
    for runs in log.chunks[:position]:
        for run in runs:
            if not takes.has_stream((run.lane.tenant, run.lane.stream)):
                continue
            records = region.records.get(run.lane, RangeSet())
            assert records.covers(run.first, run.first + run.count), f"{run} is missing at the region"
            for gap in run.gaps:
                accounted = records.copy()
                accounted.update(region.gaps.get(run.lane, RangeSet()))
                assert gap.reason == GapReason.ABSENT or accounted.covers(gap.first, gap.end)


@pytest.mark.parametrize("seed", range(12))
async def test_a_position_passes_nothing_that_is_not_acknowledged_wherever_the_link_breaks(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CHUNKS_MAX", WINDOW)
    rng, now = random.Random(seed), [0.0]
    writer = await LogWriter.open(MemoryStore(), 1)
    log, region = Log(writer, rng), Region()
    takes = rng.choice([Selection(), Selection(tenant="default"), Selection(streams=("tele*",))])

    def begin(position: int) -> RegionSource:
        shard = ShardLog(writer.store, writer.cluster, 0)
        return RegionSource(
            shard,
            lambda: writer.states[0],
            takes,
            position,
            hub=lambda: PEER,
            peer=PEER,
            now=lambda: now[0],
            lanes_open_max=3,
        )

    async def settle(source: RegionSource) -> None:
        for _ in range(2000):
            now[0] += 40.0
            await source.fill()
            region.follow(source)
            for number in region.numbers:
                while await region.take(source, number, answers=True):
                    pass
            if source.position > writer.states[0].n:
                return
        raise AssertionError(f"the position stays at {source.position} of {writer.states[0].n}")

    source, kept = begin(0), 0
    for _ in range(150):
        now[0] += rng.choice([0.1, 40.0])
        match rng.choice(["grow", "fill", "take", "take", "take", "break", "restart", "refuse", "admit"]):
            case "grow":
                await log.grow()
            case "fill":
                await source.fill()
                region.follow(source)
            case "take" if region.numbers:
                await region.take(source, rng.choice(region.numbers), answers=rng.random() < 0.7)
            case "break":
                region.disconnect()
                region.follow(source)
            case "refuse" if len(region.refuses) < 4:
                region.refuses.add(rng.choice(LANES))
            case "admit" if region.refuses:
                region.refuses.remove(rng.choice(sorted(region.refuses)))
            case "restart" if rng.random() < 0.3:
                region.disconnect()
                source = begin(kept)
            case _:
                kept = source.position
        assert len(region.numbers) <= 3
        window = sum(state.held.count() for state in source.states(region.numbers).values())
        assert window <= WINDOW * 5 * 5
        check(log, region, source.position, takes)
    region.refuses.clear()
    await settle(source)
    check(log, region, len(log.chunks), takes)
    wanted = sum(
        run.count for runs in log.chunks for run in runs if takes.has_stream((run.lane.tenant, run.lane.stream))
    )
    assert region.stored == wanted
    assert (source.ahead, source.refusals) == (0, "")
    late = log.late()
    for lane, order in region.order.items():
        in_order = [seq for seq in order if seq not in late.get(lane, RangeSet())]
        assert in_order == sorted(in_order), "records of a lane come in its order"


async def test_acknowledgements_of_another_cluster_count_for_nothing() -> None:
    writer = await LogWriter.open(MemoryStore(), 1)
    await writer.append(0, Run(LANE, 0, 5))
    source = RegionSource(
        ShardLog(writer.store, writer.cluster, 0),
        lambda: writer.states[0],
        Selection(),
        0,
        hub=lambda: "cd" * 16,
        peer=PEER,
        now=lambda: 0.0,
    )
    await source.fill()
    [lane] = source.lanes()
    source.released(lane.lane, RangeSet([(0, 5)]))
    assert source.position == 0
    with pytest.raises(OSError, match="another cluster"):
        await source.prepare_to_send("cd" * 16, {lane.lane: 5})


async def test_a_link_follows_a_lane_that_is_offered_again_whoever_looked_at_the_lanes_meanwhile() -> None:
    """The status of a link looks at them once a second."""
    writer = await LogWriter.open(MemoryStore(), 1)
    await writer.append(0, Run(LANE, 3, 2, gaps=[GapRange(0, 3, GapReason.BUDGET)]))
    source = RegionSource(
        ShardLog(writer.store, writer.cluster, 0),
        lambda: writer.states[0],
        Selection(),
        0,
        hub=lambda: PEER,
        peer=PEER,
        now=lambda: 0.0,
    )
    await source.fill()
    [before] = source.lanes()
    [gap] = source.states([before.lane])[before.lane].gaps
    assert (gap.first, gap.end) == (0, 3)
    followed: list[list[OfferedLane]] = []

    def see(lanes: Collection[int] | None) -> None:
        looked = source.lanes()
        if lanes is None:
            followed.append(looked)

    source.listen(see)
    await writer.append(0, Run(LANE, 0, 3))
    await source.fill()
    [[after]] = followed
    assert after.lane != before.lane, "the region says again what it holds"


async def test_other_lanes_come_although_the_region_closes_one_again_and_again_at_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the lane each time, and to read the log again takes longer than the link waits to offer it."""
    monkeypatch.setattr(sources, "CHUNKS_MAX", WINDOW)
    now = 0.0
    writer = await LogWriter.open(MemoryStore(), 1)
    closed, other = LANES[0], LANES[1]
    await writer.append(0, Run(closed, 0, 1), Run(other, 0, 1))
    for seq in range(1, 10 * WINDOW):
        await writer.append(0, Run(other, seq, 1))
    source, region = (
        RegionSource(
            ShardLog(writer.store, writer.cluster, 0),
            lambda: writer.states[0],
            Selection(),
            0,
            hub=lambda: PEER,
            peer=PEER,
            now=lambda: now,
        ),
        Region(),
    )
    for _ in range(40):
        now += AGAIN_MAX_S
        await source.fill()
        region.refuses.clear()
        region.follow(source)
        if any(each.identity == closed and source.states([each.lane])[each.lane].held for each in source.lanes()):
            region.refuses.add(closed)
            region.follow(source)
        for number in region.numbers:
            while await region.take(source, number, answers=True):
                pass
    assert region.records[other] == RangeSet([(0, 10 * WINDOW)])
    assert source.position == 0
    assert not region.records[closed]


async def test_streams_that_are_behind_are_named_with_what_the_region_lacks_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "CHUNKS_MAX", 2)
    writer = await LogWriter.open(MemoryStore(), 1)
    telemetry, events = LANES[:2]
    source = RegionSource(
        ShardLog(writer.store, writer.cluster, 0),
        lambda: writer.states[0],
        Selection(),
        0,
        hub=lambda: PEER,
        peer=PEER,
        now=lambda: 0.0,
    )
    await writer.append(0, Run(telemetry, 0, 5), Run(events, 0, 2))
    await writer.append(0, Run(telemetry, 5, 5))
    writer.created += 1
    await writer.append(0, Run(telemetry, 10, 5), Run(events, 2, 7))
    await source.fill()

    def behind() -> dict[str, int]:
        return {each.key[1]: each.records for each in source.behind()}

    assert behind() == {"telemetry": 15, "events": 9}
    assert all(each.oldest == START and each.bytes for each in source.behind())
    numbers = {each.lane: each.stream for each in source.lanes()}
    of = {stream: number for number, stream in numbers.items()}
    source.released(of["telemetry"], RangeSet([(0, 10)]))
    assert behind() == {"events": 9, "telemetry": 5}, "the last chunk stands behind the window"
    source.released(of["events"], RangeSet([(0, 2)]))
    await source.fill()
    assert behind() == {"events": 7, "telemetry": 5}
    assert all(each.oldest == START + 1 for each in source.behind())
    source.released(of["telemetry"], RangeSet([(0, 15)]))
    source.released(of["events"], RangeSet([(0, 9)]))
    assert behind() == {}
