"""The moment at a batch's end speaks of that batch's records, whatever the log has learned since."""

from __future__ import annotations

import asyncio
import copy
import random
import shutil
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_sinks import Complete, ReadError, complete_until, complete_windows, lanes
from spark_sinks.blocking import run
from spark_sinks.completeness.watermark import Complete as WatermarkComplete
from spark_sinks.completeness.watermark import CompleteUntil, at_head, evaluate
from spark_sinks.source.options import parse_options
from spark_sinks.source.stream_log import StreamLog
from tests.spark_sinks.completeness.conftest import EDGES, HOUR, MIDNIGHT, PER_HOUR, STREAM, Fleet
from tests.spark_sinks.completeness.test_windows import Table, recomputed, windows
from tests.spark_sinks.source.test_hub import Serving
from tests.support.waiting import wait_until
from weft.client import Client
from weft.cloud_hub.facts.streams import expect_edges
from weft.hub_api.answers import parse_moment
from weft.proofs.audit.audit import audit
from weft.protocols import chunk
from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    ChunkHeader,
    Control,
    ControlKind,
    GapRange,
    LaneFlag,
    LaneUpdate,
    Mark,
    StreamBlock,
    index_of,
)
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import UNREADABLE, Reason
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import ConflictBody, RetireBody, RetiredBy
from weft.protocols.shard.placement import shard_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage import hub_keys
from weft.storage.chunk_log import Manifest, ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, Change, ClusterLog
from weft.storage.object_store import ObjectStore, open_store

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


# --- The API, the console's list, Spark and the audit give one answer to the question up to when a stream is complete


SHARDS, STREAMS, SEED = 4, 24, 7
SECOND = 10**9
HERE = ["press-1", "press-2", "press-3", "welder-1", "welder-2", "paint-1"]
"""Edges that a stream may have."""
EXPECTED = [*HERE, "oven-1", "press-*", "weld*-2", "*", "o*", "*-9"]
"""Names and patterns that an operator may expect; no edge is called oven or something with 9."""
Lanes = list[tuple[list[LaneUpdate], list[Control]]]
"""What each of some chunks says of the lanes of a stream."""


class Situation(NamedTuple):
    """A stream."""

    stream: str
    expected: tuple[str, ...]
    chunks: Lanes


def situation(number: int, now: int) -> Situation:
    """Lanes of every kind, and edges that are expected, by chance."""
    chance, stream = random.Random(f"{SEED}:{number}"), f"s{number}"
    first: list[LaneUpdate] = []
    then: list[LaneUpdate] = []
    controls: list[Control] = []
    for log_id, edge in enumerate(chance.sample(HERE, chance.randint(1, 4)), 1):
        at = now - chance.randrange(1, 600) * SECOND
        name = ("default", edge, log_id, stream)
        mark, kind = Mark(at, 10), chance.choice(KINDS)
        update = LaneUpdate(*name, 1, [(0, 10)], [], mark, ["plant/{machine}"])
        match kind:
            case "hole":
                update = replaced(update, ranges=[(0, 4)])
            case "no mark":
                update = replaced(update, mark=None)
            case "never a word":
                update = replaced(update, ranges=[], mark=None)
            case "a part":
                update = replaced(update, flags=LaneFlag.PARTIAL)
            case "lost":
                update = replaced(update, ranges=[(0, 4)], gaps=[GapRange(4, 10, GapReason.BUDGET)])
            case "absent":
                update = replaced(update, ranges=[(0, 4)], gaps=[GapRange(4, 10, GapReason.ABSENT)])
            case "stopped":
                update = replaced(update, flags=LaneFlag.LAST_WORD)
            case "renamed":
                update = replaced(update, flags=LaneFlag.LAST_WORD)
                gap, later = GapRange(0, 10, GapReason.RENAMED), Mark(now - SECOND, 12)
                then.append(LaneUpdate("default", f"{edge}-b", log_id, stream, 2, [(10, 12)], [gap], later, None))
            case "retired" | "not seen":
                by = RetiredBy.OPERATOR if kind == "retired" else RetiredBy.AGE
                controls.append(Control(ControlKind.RETIRE, *name, msgspec.msgpack.encode(RetireBody(by, kind))))
            case "conflict":
                controls.append(Control(ControlKind.CONFLICT, *name, msgspec.msgpack.encode(ConflictBody(0, kind))))
                then.append(LaneUpdate(*name, 1, [(10, 20)], [], Mark(now - SECOND, 20), None))
        first.append(update)
    expected = [UNREADABLE] if number % 10 == 0 else chance.sample(EXPECTED, chance.choice([0, 0, 1, 1, 2]))
    return Situation(stream, tuple(expected), [(first, []), ([], controls), (then, [])])


KINDS = [
    *["good"] * 6,
    "hole",
    "no mark",
    "never a word",
    "a part",
    "lost",
    "absent",
    "stopped",
    "renamed",
    "retired",
    "not seen",
    "conflict",
]


def replaced(update: LaneUpdate, **fields: object) -> LaneUpdate:
    return msgspec.structs.replace(update, **fields)


async def write(store: ObjectStore, situations: list[Situation], now: int) -> None:
    """Make the chunks of all streams, and declare what is expected."""
    cluster = await open_cluster(store, SHARDS)
    for shard in range(SHARDS):
        state, log = ShardState(cluster.cluster_id, shard), ShardLog(store, cluster, shard)
        for step in range(3):
            parts = [each.chunks[step] for each in situations]
            lanes = [lane for part in parts for lane in part[0] if shard_of("default", lane.edge, SHARDS) == shard]
            controls = [each for part in parts for each in part[1] if shard_of("default", each.edge, SHARDS) == shard]
            header = ChunkHeader(cluster.cluster_id, state.n + 1, now, shard, state.footer_crc, 0)
            tail, _ = chunk.encode_footer(index_of(header, FIRST_LEVEL, [], StreamBlock(lanes, controls, [])))
            whole = chunk.encode_header(header) + tail
            await log.create(state.n + 1, whole)
            apply(state, chunk.decode(whole))
    for each in situations:
        if each.expected:
            await declare(store, each.stream, each.expected)


async def declare(store: ObjectStore, stream: str, edges: tuple[str, ...] | None) -> None:
    log = ClusterLog(store, (await open_cluster(store, None)).cluster_id)
    decide = (
        expect_edges(("default", stream), edges)
        if edges != (UNREADABLE,)
        else lambda _: Change("stream", f"default/{stream}", b'{"expected_edges": {"of_a_later_release": ["oven-1"]}}')
    )
    await log.append(decide, Author(time.time_ns(), "mara", ""))


def never_heard(reasons: Iterable[Any]) -> list[str]:
    """The expected edges among the reasons of an answer."""
    named: dict[object, Callable[[Any], str]] = {
        Reason.EXPECTED: lambda each: each.edge,
        Reason.DECLARATION: lambda _: UNREADABLE,
    }
    return sorted(named[each.reason](each) for each in reasons if each.reason in named)


def in_ns(text: str | None) -> int | None:
    return None if text is None else parse_moment(text)


def test_all_who_are_asked_give_one_answer(tmp_path: Path) -> None:
    now, root = time.time_ns(), str(tmp_path / "hub")
    situations = [situation(number, now) for number in range(STREAMS)]
    asyncio.run(write(open_store(root), situations, now))
    reasons: set[str] = set()
    with Serving(root) as serving:
        client = Client(serving.url)
        wait_until(lambda: len(client.streams(limit=1000).streams) == STREAMS)
        listed = {each.stream: each for each in client.streams(limit=1000).streams}
        for each in situations:
            api, one = client.completeness(each.stream), client.stream(each.stream)
            spark = complete_until(NO_SPARK, each.stream, store=root)
            through = complete_until(NO_SPARK, each.stream, hub=serving.url)
            audited = asyncio.run(audit(open_store(root), "default", each.stream))
            answers = [
                in_ns(api.complete_up_to),
                spark.moment_ns,
                through.moment_ns,
                in_ns(one.complete_up_to),
                in_ns(listed[each.stream].complete_up_to),
            ]
            missing = [never_heard(api.held_back_by), never_heard(spark.held_back_by), audited.never_heard]
            assert answers == [answers[0]] * 5, each
            assert list(map(sorted, missing)) == [missing[0]] * 3, each
            assert answers[0] is None or not missing[0], each
            reasons |= {str(reason.reason) for reason in api.held_back_by}
    assert {"expected_edge_missing", "declaration_unreadable", "hole", "no_mark", "silent"} <= reasons, (
        "the streams differ"
    )


def test_what_is_declared_meanwhile_counts_at_the_next_look(fleet: Fleet) -> None:
    fleet.hours(0, 2)
    store = open_store(fleet.root)
    log = run(StreamLog.open(parse_options({"store": fleet.root, "stream": STREAM})))

    def moment(rule: WatermarkComplete) -> float | None:
        found = evaluate(run(at_head(log)), rule).moment
        return None if found is None else (found.timestamp() * SECOND - MIDNIGHT) / HOUR

    assert moment(WatermarkComplete()) == 2
    asyncio.run(declare(store, STREAM, ("welder-*", "press-1")))
    assert moment(WatermarkComplete()) is None
    assert moment(WatermarkComplete(edges=["press-*"])) == 2, "who asks for the presses waits for no welder"
    assert moment(WatermarkComplete(edges=["press-*", "w*"])) is None, "and who asks for both does"
    asyncio.run(declare(store, STREAM, ("press-9",)))
    assert moment(WatermarkComplete(edges=["press-*"])) is None, "it is one of the presses that were asked for"
    asyncio.run(declare(store, STREAM, (UNREADABLE,)))
    for edges in ("all", ["press-*"]):
        assert moment(WatermarkComplete(edges=edges)) is None, "whom a later release waits for, this one cannot know"
    asyncio.run(declare(store, STREAM, None))
    assert moment(WatermarkComplete()) == 2


@pytest.mark.slow
def test_windows_are_not_complete_while_an_expected_edge_was_never_heard(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    """The backlog of an edge that the hub had not heard of comes into windows that were given out before."""
    fleet.hours(0, 2, ["press-1", "press-2"])
    asyncio.run(declare(open_store(fleet.root), STREAM, ("paint-*",)))
    rows: dict[datetime, tuple[bool | None, int]] = {}

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows.update({row.window_start: (row._complete, row.records) for row in frame.collect()})

    def look() -> None:
        complete_windows(
            spark,
            STREAM,
            store=fleet.root,
            sink=keep,
            checkpoint=tmp_path / "state",
            every="1h",
            by=[],
            trigger=None,
            aggregate={"records": "count(*)"},
            complete=WatermarkComplete(grace="0s"),
        ).awaitTermination()

    look()
    assert list(rows.values()) == [(False, 2 * PER_HOUR)] * 2
    fleet.deliver(fleet.records("paint-1", 2 * PER_HOUR), hour=2)
    look()
    assert list(rows.values()) == [(True, 3 * PER_HOUR)] * 2


# --- Windows of a store that was restored from a backup


@pytest.mark.spark
@pytest.mark.slow
def test_a_state_of_a_log_that_was_restored_and_has_grown_past_it_is_refused(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.hours(0, 2)
    backup, states, delivered = tmp_path / "backup", copy.deepcopy(fleet._writer._states), dict(fleet.delivered)
    shutil.copytree(fleet.root, backup)
    fleet.hours(2, 4)
    table, checkpoint = Table(), tmp_path / "checkpoint"
    windows(spark, fleet, table, checkpoint).awaitTermination()
    assert table.values() == recomputed(spark, fleet)
    shutil.rmtree(fleet.root)
    shutil.copytree(backup, fleet.root)
    fleet._writer._states, fleet.delivered = states, delivered
    # The same records come again, in other chunks, and more of them.
    fleet.deliver(*(fleet.records(edge, 7 * PER_HOUR) for edge in EDGES), hour=7.5)
    fleet.hours(7, 10)
    with pytest.raises(ReadError, match=r"checkpoint: it goes up to .* has another chunk \d\. The hub"):
        windows(spark, fleet, table, checkpoint).awaitTermination()
    again = Table()
    windows(spark, fleet, again, tmp_path / "new").awaitTermination()
    assert again.values() == recomputed(spark, fleet)
