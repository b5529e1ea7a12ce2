"""The API, the console's list, Spark and the audit give one answer to the question up to when a stream is complete."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_sinks import complete_until, complete_windows
from spark_sinks.blocking import run
from spark_sinks.completeness.watermark import Complete, at_head, evaluate
from spark_sinks.source.options import parse_options
from spark_sinks.source.stream_log import StreamLog
from tests.spark_sinks.completeness.conftest import HOUR, MIDNIGHT, PER_HOUR, STREAM, Fleet
from tests.spark_sinks.source.test_through_hub import Serving
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
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, Change, ClusterLog
from weft.storage.object_store import ObjectStore, open_store

NO_SPARK = cast(SparkSession, None)
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

    def moment(rule: Complete) -> float | None:
        found = evaluate(run(at_head(log)), rule).moment
        return None if found is None else (found.timestamp() * SECOND - MIDNIGHT) / HOUR

    assert moment(Complete()) == 2
    asyncio.run(declare(store, STREAM, ("welder-*", "press-1")))
    assert moment(Complete()) is None
    assert moment(Complete(edges=["press-*"])) == 2, "who asks for the presses waits for no welder"
    assert moment(Complete(edges=["press-*", "w*"])) is None, "and who asks for both does"
    asyncio.run(declare(store, STREAM, ("press-9",)))
    assert moment(Complete(edges=["press-*"])) is None, "it is one of the presses that were asked for"
    asyncio.run(declare(store, STREAM, (UNREADABLE,)))
    for edges in ("all", ["press-*"]):
        assert moment(Complete(edges=edges)) is None, "whom a later release waits for, this one cannot know"
    asyncio.run(declare(store, STREAM, None))
    assert moment(Complete()) == 2


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
            complete=Complete(grace="0s"),
        ).awaitTermination()

    look()
    assert list(rows.values()) == [(False, 2 * PER_HOUR)] * 2
    fleet.deliver(fleet.records("paint-1", 2 * PER_HOUR), hour=2)
    look()
    assert list(rows.values()) == [(True, 3 * PER_HOUR)] * 2
