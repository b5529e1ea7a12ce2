"""Hub nodes and link sessions in miniature, and what must hold of the log that they leave behind."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from tests.cloud_hub.faulty_store import FaultyStore
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.support.outcomes import outcome
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.cluster import Owners, Site
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession, SessionRefused
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols import batch, chunk
from weft.protocols.batch import BatchHeader, ClockReading, ClockState
from weft.protocols.chunk_index import FIRST_LEVEL, RELEASE, Chunk, FoldRules
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState, lane_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import NotFound, ObjectStore

CLUSTER = Cluster(b"0123456789abcdef", 1)
SETTINGS = SequencerSettings(
    commit_interval_s=0.1,
    mark_interval_s=2.0,
    chunk_bytes_max=2000,
    pending_bytes_max=4000,
    follow_interval_s=1.0,
    retry_min_s=0.02,
    retry_max_s=0.5,
    snapshot_chunks=7,
    snapshot_interval_s=5.0,
    unavailable_after_s=1e9,
)
CLOCK = ClockReading(1, 1, ClockState.SYNCED)
TRUE_START = 1_800_000_000 * NS
"""Time by right clocks when a history begins."""


def payload(lane: Lane, seq: int) -> bytes:
    return f"{lane.edge} {lane.log_id} {seq}".encode()


def make_batch(lane: Lane, first: int, end: int, time: int = 0, origin: int = 0) -> tuple[BatchHeader, memoryview]:
    """Records [first, end) of a lane; each payload says which record it is."""
    seqs = range(first, end)
    times = struct.pack(f"<{len(seqs)}q", *(time + seq for seq in seqs))
    columns = batch.columns_from_lists(times, [b"key"] * len(seqs), [payload(lane, seq) for seq in seqs])
    data = batch.encode(1, first, columns, CLOCK, origin=origin)
    return batch.verify(data), memoryview(data)


def machine(shards: int, *, processes: int = 1) -> Owners:
    """The first process of a machine that is alone."""
    return Owners(lambda: shards, Site("here", 8090, 0, processes), "first")


def make_sequencer(
    store: ObjectStore,
    rng: random.Random,
    settings: SequencerSettings = SETTINGS,
    cluster: Cluster = CLUSTER,
    *,
    rules: FoldRules = RELEASE,
    level: Callable[[], int] = lambda: FIRST_LEVEL,
    clock: HubClock | None = None,
) -> Sequencer:
    return Sequencer(
        ShardLog(store, cluster, 0, now_ns, rules=rules),
        settings,
        clock=clock or HubClock(now_ns, now_ns),
        random_bits=rng.getrandbits,
        level=level,
    )


class SequencerNode:
    """A hub node that can be killed and started again."""

    def __init__(
        self, inner: ObjectStore, rng: random.Random, settings: SequencerSettings = SETTINGS, cluster: Cluster = CLUSTER
    ) -> None:
        self.store, self.cluster = FaultyStore(inner, rng), cluster
        self.rng = rng
        self.settings = settings
        self.rules = RELEASE
        self.level = FIRST_LEVEL
        """Of the cluster, as the node last read it."""
        self.sequencer: Sequencer | None = None
        self.is_asleep = False
        self.off_s = 0.0
        """By how much the node's wall clock is ahead, where the store has a clock."""
        self.is_synchronised = True
        self.measures = True
        """False for a node of a release that believes its clock."""
        self.clock = HubClock(self.wall, now_ns)
        self.names: str | None = None
        """URL of the node that this one sends edges to."""

    def wall(self) -> int:
        return TRUE_START + now_ns() + int(self.off_s * NS)

    async def start(self) -> None:
        faults, self.store.faults = self.store.faults, type(self.store.faults)()
        clock = HubClock(self.wall, now_ns, lambda: self.is_synchronised)
        if self.measures:
            await clock.measure(self.store)
        self.clock = clock
        sequencer = make_sequencer(
            self.store,
            self.rng,
            self.settings,
            self.cluster,
            rules=self.rules,
            level=lambda: min(self.level, self.rules.level),
            clock=clock,
        )
        await sequencer.start()
        self.store.faults = faults
        self.sequencer = sequencer

    async def kill(self) -> None:
        sequencer, self.sequencer = self.sequencer, None
        if sequencer is not None:
            await sequencer.close()


class Session:
    """One link session of one lane, as its edge sees it."""

    def __init__(
        self,
        sequencer: Sequencer,
        lane: Lane,
        epoch: int,
        topics: list[str] | None = None,
        *,
        payload: int = 0,
        flags: int = 0,
        offered_end: int | None = None,
    ) -> None:
        self.sequencer = sequencer
        self.acked = RangeSet()
        self.news = asyncio.Event()
        self.refusal: RefuseCode | None = None
        self.reported = ""
        """Message of the refusal."""
        self.lane_session = LaneSession(
            lane,
            LaneClaim(epoch, offered_end),
            topics or [],
            self._acknowledge,
            self._refuse,
            payload=payload,
            flags=flags,
        )

    def _acknowledge(self, ranges: RangeSet) -> None:
        self.acked.update(ranges)
        self.news.set()

    def _refuse(self, code: RefuseCode, message: str, advice: str) -> None:
        assert message
        assert advice
        self.refusal, self.reported = code, message
        self.news.set()

    async def open(self) -> bool:
        self.sequencer.open(self.lane_session)
        try:
            self.acked.update(await self.lane_session.opened)
        except SessionRefused as refusal:
            self.refusal, self.reported = refusal.code, refusal.message
            return False
        return True

    async def send(self, first: int, end: int) -> None:
        if not self.sequencer.put(self.lane_session, [make_batch(self.lane_session.lane, first, end)]):
            await self.sequencer.sessions.room(self.lane_session)

    async def until_acked(self, first: int, end: int) -> None:
        while not self.acked.covers(first, end):
            assert self.refusal is None
            self.news.clear()
            await self.news.wait()


async def read_chunks(store: ObjectStore, collected: Mapping[int, bytes] = {}) -> list[tuple[Chunk, bytes]]:
    """Every chunk of the log.

    Args:
        collected: those that the collector has deleted. What a store has under such a number came too late.
    """
    found: list[tuple[Chunk, bytes]] = []
    while True:
        n = len(found)
        try:
            data = collected[n] if n in collected else (await store.get(chunk_key(0, n))).data
        except NotFound:
            return found
        found.append((chunk.decode(data), data))


Content = Callable[[Lane, int, bytes], bool]
"""(lane, seq, payload) -> whether the record has that payload."""


def _is_own(lane: Lane, seq: int, found: bytes) -> bool:
    return found == payload(lane, seq)


def records_of(
    index: Chunk, data: bytes, offsets: dict[tuple[str, str], int], is_right: Content = _is_own
) -> Iterator[tuple[Lane, list[int]]]:
    """Yield the lane and the numbers of each entry of a chunk, whose payloads are right.

    Args:
        offsets: next offset of each stream before the chunk; after the last entry, behind it.
    """
    for section in index.footer.streams:
        assert section.base_offset == offsets[section.tenant, section.stream]  # I3
        offsets[section.tenant, section.stream] += section.count
        body = data[section.position : section.position + section.length]
        own = index.footer.lanes_of(section)
        for entry in chunk.section_entries(section, body, own):
            lane = lane_of(own[entry.lane])
            records = list(batch.records(entry.batch))[entry.skip : entry.skip + entry.take]
            wrong = [record.seq for record in records if not is_right(lane, record.seq, bytes(record.payload))]
            assert not wrong, f"{lane}: {wrong} are other records"
            yield lane, [record.seq for record in records]


@outcome()
def check_log(
    chunks: list[tuple[Chunk, bytes]],
    healed: RangeSet | Mapping[Lane, RangeSet] | None = None,
    rules: FoldRules = RELEASE,
    is_right: Content = _is_own,
    cluster: Cluster = CLUSTER,
) -> tuple[ShardState, dict[Lane, list[int]]]:
    """Fold the log and read every record of it.

    Checks that offsets are contiguous (I3), that no record is there twice (I1), that a lane's offsets follow its
    sequence numbers (I2), that each payload is the one its lane and number stand for, and that completeness was never
    claimed too early or taken back (I6).

    Args:
        healed: by lane, or of the only lane, numbers that may have come behind their gap, out of order.
    """
    state = ShardState(cluster.cluster_id, 0, rules)
    offsets: dict[tuple[str, str], int] = defaultdict(int)
    lanes: dict[Lane, list[int]] = defaultdict(list)
    for index, data in chunks:
        before = dict(state.lanes)
        apply(state, index)
        check_claims(before, state.lanes)
        updates = index.footer.lanes
        new: dict[Lane, RangeSet] = defaultdict(RangeSet)
        for lane, seqs in records_of(index, data, offsets, is_right):
            lanes[lane] += seqs
            new[lane].add(seqs[0], seqs[-1] + 1)
        for lane in {lane_of(update) for update in updates}:
            reported = RangeSet(r for update in updates if lane_of(update) == lane for r in update.ranges)
            assert reported == new[lane]
    for lane, seqs in lanes.items():
        assert len(seqs) == len(set(seqs)), f"{lane}: doubled"
        late = healed.get(lane) if isinstance(healed, Mapping) else healed
        in_order = [seq for seq in seqs if late is None or seq not in late]
        assert in_order == sorted(in_order), f"{lane}: out of order"
        held = RangeSet((seq, seq + 1) for seq in seqs)
        assert held == state.lanes[lane].records
        held.update((gap.first, gap.end) for gap in state.lanes[lane].gaps)
        assert held == state.lanes[lane].ranges
    assert dict(offsets) == state.next_offset
    return state, lanes


@outcome()
def check_claims(before: Mapping[Lane, LaneState], after: Mapping[Lane, LaneState]) -> None:
    """Check what the lanes that a chunk changed claim to be complete."""
    for lane, held in after.items():
        was = before.get(lane)
        if was is held:
            continue
        accounted = held.ranges.contiguous_end()
        absent = [gap.first for gap in held.gaps if gap.reason == GapReason.ABSENT]
        for mark, end, earlier in (
            (held.mark, accounted, was.complete_up_to if was else None),
            (held.whole_mark, min([accounted, *absent]), was.whole_up_to if was else None),
        ):
            assert mark is None or mark.seq <= end, f"{lane}: complete up to {mark}, and {end} is missing"
            assert earlier is None or (mark is not None and mark.time >= earlier), f"{lane}: a claim was taken back"
