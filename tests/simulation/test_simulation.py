"""Histories of the whole fabric; ``python -m tests.simulation --seed SEED`` repeats one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.simulation.fabric import simulate
from tests.simulation.regions import simulate_regions
from tests.storage.fakes import FakeFile
from tests.support.slices import SLICE
from weft.cloud_hub.regions.source import RegionSource
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.edge_node.links.source import SegmentLogSource
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.replication.events import Acked
from weft.replication.runner.connection import SenderConnection
from weft.replication.sender import Sender
from weft.replication.sender_lanes import SenderLane
from weft.replication.source import Epochs, OfferedLane, ReleaseLedger
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError


def test_whatever_fails_nothing_acknowledged_is_lost_doubled_or_claimed() -> None:
    for seed in range(4):
        simulate(seed)


def test_a_seed_gives_the_same_history_each_time() -> None:
    assert simulate(11) == simulate(11)


@pytest.mark.search
@pytest.mark.timeout(590)
def test_whatever_fails_nothing_acknowledged_is_lost_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=15, night=250):
        simulate(seed)


# --- The simulation bites: without any one of these checks, one of a few histories breaks a promise


HISTORIES = 1000
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def acknowledge_before_the_sync(patch: Patch) -> None:
    """A log does not wait for its disk."""
    patch.setattr(FakeFile, "sync", lambda _file: None)


def acknowledge_before_the_chunk(patch: Patch) -> None:
    """A hub takes a failed write for done."""
    create = ShardLog.create

    async def hopeful(log: ShardLog, n: int, data: bytes) -> None:
        with contextlib.suppress(StoreError):
            await create(log, n, data)

    patch.setattr(ShardLog, "create", hopeful)


def release_for_the_first_party(patch: Patch) -> None:
    """The log forgets what the link has and a function has not read."""
    patch.setattr(ReleaseLedger, "_release_common", lambda ledger, stream, ranges: ledger._release(stream, ranges))


def store_what_is_held(patch: Patch) -> None:
    """A hub stores a batch again that it has."""
    patch.setattr(LaneState, "missing_records", lambda _held, first, end: [(first, end)])


def claim_what_was_not_sent(patch: Patch) -> None:
    """A mark goes out ahead of the records that it covers, and the hub believes it."""
    patch.setattr(SenderLane, "take_mark", lambda lane, _held_back: lane._newest)

    def prove_marks(held: LaneState) -> None:
        marks = [mark for mark in (held.mark, held.newest_mark) if mark is not None]
        held.mark = max(marks, key=lambda mark: mark.time, default=None)

    patch.setattr(LaneState, "prove_marks", prove_marks)


def offer_the_same_epoch(patch: Patch) -> None:
    """An epoch is not kept: a node that was started again looks like one that was overtaken."""
    patch.setattr(Epochs, "propose", lambda _epochs: 1)


def send_before_the_end_is_kept(patch: Patch) -> None:
    """A link that lost its connection begins behind what it sent there."""
    opened = SenderLane.opened

    def forgetful(lane: SenderLane, held: RangeSet) -> None:
        opened(lane, held)
        if held:
            lane.sent.add(0, min(held.end + 3, max(lane.end, 1)))

    patch.setattr(SenderLane, "opened", forgetful)


def give_up_at_a_lost_connection(patch: Patch) -> None:
    """A link that was cut off does not come back."""
    run = SenderConnection.run

    async def last(connection: SenderConnection, socket: Any) -> Any:
        await run(connection, socket)
        await asyncio.Event().wait()

    patch.setattr(SenderConnection, "run", last)


def take_a_chunk_of_another_for_ours(patch: Patch) -> None:
    """A sequencer does not look who wrote the chunk that it meant to write."""

    async def trusting(self: Sequencer, drafted: Any) -> bool:
        draft, folded = drafted
        with contextlib.suppress(Exception):
            await self.log.create(draft.chunk.header.n, draft.data)
        return self._accept(folded)

    patch.setattr(Sequencer, "_place", trusting)


def release_what_was_sent(patch: Patch) -> None:
    """A log forgets what a link has read to send, before a hub has it."""
    feed = Sender.feed

    def hasty(sender: Sender, lane: int, batches: Sequence[bytes]) -> None:
        feed(sender, lane, batches)
        headers = [decode_header(batch) for batch in batches]
        sender._events.append(Acked(lane, RangeSet((header.base_seq, header.end_seq) for header in headers)))

    patch.setattr(Sender, "feed", hasty)


def believe_any_hub(patch: Patch) -> None:
    """A log does not know which numbers it gave to a hub."""
    patch.setattr(SegmentLogSource, "high_watermark", lambda _source, _hub, _lane: 1 << 62)


PLANTS: tuple[Plant, ...] = (
    acknowledge_before_the_sync,
    acknowledge_before_the_chunk,
    release_for_the_first_party,
    store_what_is_held,
    claim_what_was_not_sent,
    offer_the_same_epoch,
    send_before_the_end_is_kept,
    give_up_at_a_lost_connection,
    take_a_chunk_of_another_for_ours,
    release_what_was_sent,
    believe_any_hub,
)


def first_broken(histories: int, **options: float) -> tuple[int, BaseException] | None:
    """Return the first seed whose history breaks a promise."""
    for seed in range(histories):
        try:
            simulate(seed, **options)
        except BaseException as error:
            return seed, error
    return None


@pytest.mark.search(turns=4)
@pytest.mark.timeout(590)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    # Only a copy of a card needs it, and that one seldom.
    found = first_broken(HISTORIES, clones=1.0) if plant is believe_any_hub else first_broken(HISTORIES)
    assert found is not None, "no history needs this check"
    print(f"seed {found[0]}: {type(found[1]).__name__}: {str(found[1])[:200]}")


# --- Histories of regions; ``python -m tests.simulation --regions --seed SEED`` repeats one


REGIONS_HISTORIES = 200


def test_whatever_fails_regions_end_with_the_same_records_and_no_gap() -> None:
    reports = [simulate_regions(seed) for seed in range(1, 4)]
    assert any(report.failed_over for report in reports)
    assert any(report.healed for report in reports), "an edge had deleted what a region had not relayed yet"


def test_a_seed_gives_the_same_history_of_regions_each_time() -> None:
    assert simulate_regions(7) == simulate_regions(7)


@pytest.mark.search
@pytest.mark.timeout(590)
def test_whatever_fails_regions_end_with_the_same_records_in_many_histories() -> None:
    for seed in SLICE.seeds(ci=8, night=100):
        simulate_regions(seed)


# --- that the search finds mistakes


def pass_what_was_sent(patch: Patch) -> None:
    """The position passes what was read to be sent, before the region has it on its disk."""
    read = RegionSource.read

    async def hasty(source: RegionSource, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        found = await read(source, lane, seq, bytes_max)
        headers = [decode_header(batch) for batch in found]
        source.released(lane, RangeSet((header.base_seq, header.end_seq) for header in headers))
        return found

    patch.setattr(RegionSource, "read", hasty)


def _offer_as(patch: Patch, change: Callable[[OfferedLane], OfferedLane]) -> None:
    lanes = RegionSource.lanes
    patch.setattr(RegionSource, "lanes", lambda source: [change(lane) for lane in lanes(source)])


def relay_under_another_name(patch: Patch) -> None:
    """Records lose their edge's name on the way."""

    def rename(lane: OfferedLane) -> OfferedLane:
        assert lane.identity is not None
        return lane._replace(identity=lane.identity._replace(edge=f"{lane.identity.edge}-relayed"))

    _offer_as(patch, rename)


def relay_as_if_from_the_edge(patch: Patch) -> None:
    """A link of a region opens lanes as their edge does, with an epoch."""
    _offer_as(patch, lambda lane: lane._replace(flags=lane.flags & ~LaneFlag.RELAY))


def drop_what_heals(patch: Patch) -> None:
    """A hub takes an edge's word that it lacks records for the last one, and drops them when a region has them."""
    patch.setattr(LaneState, "missing_records", lambda held, first, end: held.ranges.missing(first, end))
    patch.setattr(LaneState, "holds", lambda held, first, end: held.ranges.covers(first, end))


def claim_what_another_region_has(patch: Patch) -> None:
    """A region claims that a stream is complete while it waits for another region's records."""
    prove = LaneState.prove_marks

    def prove_marks(held: LaneState) -> None:
        prove(held)
        held.whole_mark = held.mark

    patch.setattr(LaneState, "prove_marks", prove_marks)


def end_with_the_first_connection(patch: Patch) -> None:
    """The link to a region does not come back after a partition."""
    run = SenderConnection.run

    async def last(connection: SenderConnection, socket: object) -> object:
        ended = await run(connection, socket)  # type: ignore[arg-type]
        if isinstance(connection._source, RegionSource):
            connection._source.lanes = list  # type: ignore[method-assign]
        return ended

    patch.setattr(SenderConnection, "run", last)


def go_on_with_a_lane_that_was_refused(patch: Patch) -> None:
    """A lane that a region takes again continues where the window is, without what was left behind."""
    patch.setattr(RegionSource, "_go_back", lambda source: source._refused.go_back())


REGIONS_PLANTS: tuple[Plant, ...] = (
    pass_what_was_sent,
    relay_under_another_name,
    relay_as_if_from_the_edge,
    drop_what_heals,
    claim_what_another_region_has,
    end_with_the_first_connection,
    go_on_with_a_lane_that_was_refused,
    store_what_is_held,
)


@pytest.mark.search(turns=4)
@pytest.mark.timeout(590)
@pytest.mark.parametrize("plant", REGIONS_PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_of_regions_is_found(plant: Plant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(REGIONS_HISTORIES):
        try:
            simulate_regions(seed)
        except BaseException as error:
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:200]}")
            return
    raise AssertionError("no history needs this check")
