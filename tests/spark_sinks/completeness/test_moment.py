"""The moment at a batch's end speaks of that batch's records, whatever the log has learned since."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_sinks import Complete, ReadError, complete_until, lanes
from spark_sinks.completeness.watermark import CompleteUntil
from tests.spark_sinks.completeness.conftest import HOUR, MIDNIGHT, PER_HOUR, STREAM, Fleet
from weft.protocols.chunk_index import Mark
from weft.storage import hub_keys
from weft.storage.chunk_log import Manifest, ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

NO_SPARK = cast(SparkSession, None)
"""``complete_until`` asks the store alone."""


def at_hour(hour: float) -> datetime:
    return datetime(2023, 11, 15, tzinfo=UTC) + timedelta(hours=hour)


def until(fleet: Fleet, at: dict[int, int] | None = None, **options: object) -> CompleteUntil:
    return complete_until(NO_SPARK, STREAM, store=fleet.root, at=at, **options)  # type: ignore[arg-type]


def test_the_state_at_a_batchs_end_claims_no_record_that_the_batch_lacks(fleet: Fleet) -> None:
    # Shards of their own: the end offsets of a batch say how far it is in each.
    fleet.hours(0, 2)
    fleet.hours(2, 5, ["press-1", "press-2"])
    batch = fleet.heads()
    fleet.deliver(fleet.records("paint-1", 5 * PER_HOUR), hour=5)
    fleet.hours(5, 6)
    assert until(fleet).moment == at_hour(6), "the head has everything"
    assert until(fleet, batch).moment == at_hour(2), "the batch lacks three hours of paint-1"
    # A batch may end within a chunk. Of such a chunk nothing is believed.
    paint = fleet.shard("paint-1")
    for short in range(1, PER_HOUR + 1):
        inside = {**fleet.heads(), paint: fleet.heads()[paint] - short}
        moment = until(fleet, inside).moment
        assert moment is not None
        assert moment <= at_hour(5), short


def test_every_position_claims_only_what_is_below_it(fleet: Fleet) -> None:
    """The oracle is the fleet: record i of an edge was taken in at MIDNIGHT + 10 min * i."""
    fleet.hours(0, 1)
    fleet.deliver(fleet.records("press-1", 3 * PER_HOUR, Mark(MIDNIGHT + 4 * HOUR, 4 * PER_HOUR)), hour=4)
    fleet.deliver(fleet.records("press-1", 4 * PER_HOUR, Mark(MIDNIGHT + 4 * HOUR, 4 * PER_HOUR)), hour=4.1)
    fleet.hours(4, 5, ["press-1"])
    shard = fleet.shard("press-1")
    heads = fleet.heads()
    claimed = []
    for offset in range(heads[shard] + 1):
        moment = until(fleet, {**heads, shard: offset}, edges="press-1").moment
        claimed.append(moment)
        if moment is not None:
            assert (moment - at_hour(0)) / timedelta(minutes=10) <= offset, (
                "the claim speaks of records that the position lacks"
            )
    known = [moment for moment in claimed if moment is not None]
    assert known == sorted(known), "a moment never goes back"
    assert known[-1] == at_hour(5)


def test_positions_older_than_all_that_is_kept_claim_nothing(fleet: Fleet) -> None:
    fleet.hours(0, 3)
    old = fleet.heads()
    fleet.hours(3, 6)
    asyncio.run(_collect(fleet, kept_from=4))
    assert until(fleet).moment == at_hour(6)
    found = until(fleet, old)
    assert found.moment is None
    assert "in the table only" in str(found)


def test_a_snapshot_below_the_position_is_enough(fleet: Fleet) -> None:
    fleet.hours(0, 3)
    asyncio.run(_collect(fleet, kept_from=3))
    at = fleet.heads()
    fleet.hours(3, 6)
    asyncio.run(_snapshot(fleet))
    assert until(fleet, at).moment == at_hour(3)


async def _collect(fleet: Fleet, kept_from: int) -> None:
    """Delete chunks as the collector does, a snapshot taking their place."""
    store = open_store(fleet.root)
    cluster = await open_cluster(store, None)
    for shard in range(cluster.shards):
        log = ShardLog(store, cluster, shard)
        state = await log.load()
        if state.n < 0:
            continue
        key = await log.put_snapshot(state.n, 0, state.encode())
        _, etag = await log.manifest()
        watermark = min(kept_from, state.n + 1)
        assert await log.swap_manifest(Manifest(snapshot=key, snapshot_n=state.n, watermark=watermark), etag)
        for n in range(watermark):
            await store.delete(hub_keys.chunk_key(shard, n))


async def _snapshot(fleet: Fleet) -> None:
    store = open_store(fleet.root)
    cluster = await open_cluster(store, None)
    for shard in range(cluster.shards):
        log = ShardLog(store, cluster, shard)
        state = await log.load()
        manifest, etag = await log.manifest()
        key = await log.put_snapshot(state.n, 1, state.encode())
        assert await log.swap_manifest(Manifest(snapshot=key, snapshot_n=state.n, watermark=manifest.watermark), etag)


def test_named_edges_are_waited_for_and_no_others(fleet: Fleet) -> None:
    fleet.hours(0, 2)
    fleet.hours(2, 4, ["press-1", "press-2"])
    assert until(fleet).moment == at_hour(2)
    assert until(fleet, edges=["press-1", "press-2"]).moment == at_hour(4)
    assert until(fleet, edges="press-*").moment == at_hour(4)
    missing = until(fleet, edges=["press-1", "weld-7"])
    assert missing.moment is None
    assert "weld-7" in str(missing)


def test_an_edge_that_was_silent_for_long_is_not_waited_for_until_it_is_back(fleet: Fleet) -> None:
    fleet.hours(0, 2)
    fleet.hours(2, 10, ["press-1", "press-2"])
    assert until(fleet, retired_after="8h").moment == at_hour(10)
    assert until(fleet, edges=["press-1", "paint-1"], retired_after="8h").moment == at_hour(10)
    assert until(fleet, retired_after="9h").moment == at_hour(2)
    found = until(fleet, retired_after="8h")
    [gap] = found.open_gaps
    assert (gap.edge, gap.first) == ("paint-1", 2 * PER_HOUR)
    assert (gap.since, gap.until) == (MIDNIGHT + 2 * HOUR, MIDNIGHT + 10 * HOUR), "until it was not waited for"
    assert "open gap: paint-1/" in str(found)
    assert until(fleet, edges="press-*", retired_after="8h").open_gaps == []
    fleet.deliver(fleet.records("paint-1", 3 * PER_HOUR, Mark(MIDNIGHT + 3 * HOUR, 3 * PER_HOUR)), hour=10)
    assert until(fleet, retired_after="8h").moment == at_hour(3)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"at": {0: 10**9, 1: 0}}, "past the end of the log"),
        ({"at": {0: 1}}, "name each shard"),
        ({"at": "latest"}, "offsets by shard"),
        ({"at": {0: -1, 1: 0}}, "an offset for each shard"),
        ({"edges": []}, "edges: expected all"),
        ({"retired_after": "7 days"}, "retired_after: expected a duration"),
    ],
)
def test_wrong_questions(fleet: Fleet, options: dict[str, object], problem: str) -> None:
    fleet.hours(0, 1)
    with pytest.raises(ReadError, match=problem):
        until(fleet, **options)  # type: ignore[arg-type]


def test_a_grace_is_a_duration() -> None:
    with pytest.raises(ReadError, match="grace: expected a duration"):
        Complete(grace="soon")
    with pytest.raises(ReadError, match="0 or more"):
        Complete(grace=timedelta(seconds=-1))


@pytest.mark.slow
def test_lanes_name_every_gap(spark: SparkSession, fleet: Fleet) -> None:
    fleet.hours(0, 2)
    batch = fleet.heads()
    fleet.deliver(fleet.records("paint-1", 3 * PER_HOUR, Mark(MIDNIGHT + 4 * HOUR, 4 * PER_HOUR)), hour=4)
    fleet.hours(2, 4, ["press-1", "press-2"])
    found = {row.edge: row for row in lanes(spark, STREAM, store=fleet.root).collect()}
    assert [found[edge].records for edge in ("press-1", "paint-1")] == [24, 18]
    assert [tuple(each) for each in found["paint-1"].ranges] == [(0, 17)]
    assert found["paint-1"].missing == 6
    assert found["paint-1"].held_back_by.reason == "hole"
    assert found["press-1"].held_back_by is None
    assert found["paint-1"].newest_mark.seq == 24
    ago = {row.edge: row for row in lanes(spark, STREAM, store=fleet.root, at=batch).collect()}
    assert ago["press-1"].records == 12
    assert ago["press-1"].complete_until == ago["paint-1"].complete_until
