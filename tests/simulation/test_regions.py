"""Histories of regions; ``python -m tests.simulation --regions --seed SEED`` repeats one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.regions import simulate_regions
from tests.simulation.test_planted_faults import store_what_is_held
from tests.support.slices import SLICE
from weft.cloud_hub.regions.source import RegionSource
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.replication.runner.connection import SenderConnection
from weft.replication.source import OfferedLane

HISTORIES = 200
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


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


PLANTS: tuple[Plant, ...] = (
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
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_of_regions_is_found(plant: Plant, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(HISTORIES):
        try:
            simulate_regions(seed)
        except BaseException as error:
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:200]}")
            return
    raise AssertionError("no history needs this check")
