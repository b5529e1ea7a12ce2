"""A query that continues in another region's store, whose log has the same records in another order."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bench.log_writer import Delivery
from spark_sinks.errors import ReadError
from spark_sinks.sinks import DeltaSink
from spark_sinks.source.moving import MovedPosition, moved_position
from spark_sinks.source.options import READ, ReadOptions
from spark_sinks.source.partitions import read_partition
from spark_sinks.source.readers import WeftStreamReader
from spark_sinks.source.stream_log import subset
from tests.cloud_hub.live import running_hub, running_link
from tests.cloud_hub.regions.fabric import LANE, NODE, has, log_of, to
from tests.cloud_hub.regions.test_regions import OTHER, OTHER_NODE
from tests.spark_sinks.conftest import EDGES, SECOND, START, STREAM, TOPIC, Hub, encoded, payload
from tests.spark_sinks.source.following import Follower, Place, Record, collect
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cli import cli
from weft.cloud_hub.shard.lane_ends import Ending, write_ending
from weft.protocols.chunk_index import Control, ControlKind
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import shard_of
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import open_store
from weft.storage.table.rows import row_schema

pytestmark = pytest.mark.spark

BATCHES = 8
"""Batches of ten records of each edge."""
Batch = tuple[str, int]
LANES = subset(row_schema([]), ("_edge", "_seq"))


class Region(Hub):
    """A region's log, which gets batches of edges in any order."""

    def __init__(self, root: Path, shards: int) -> None:
        super().__init__(str(root), shards=shards)
        self.has: list[Batch] = []

    def take(self, *batches: Batch) -> None:
        """Add a chunk to each shard of these batches."""
        deliveries = [
            Delivery(edge, [encoded(edge, number)], EDGES.index(edge) + 1, [TOPIC]) for edge, number in batches
        ]
        self.has += batches
        self._writer.write(*deliveries, received=START + len(self.has) * SECOND)

    def drop(self, edge: str) -> None:
        """Let the lane of an edge leave the state, as after months of silence."""
        lane = Lane("default", edge, EDGES.index(edge) + 1, STREAM)
        shard = shard_of("default", edge, self._writer.cluster.shards)

        async def plan(_: ShardState) -> Ending:
            return Ending([Control(ControlKind.DROP, *lane, b"")], [])

        log = ShardLog(self._writer.store, self._writer.cluster, shard)
        asyncio.run(write_ending(log, plan, wall_clock=lambda: START, random_bits=random.getrandbits))

    @property
    def options(self) -> ReadOptions:
        return ReadOptions(self.root, STREAM)


def rows(batches: list[Batch]) -> list[Record]:
    return sorted((edge, 10 * at + i, payload(edge, 10 * at + i)) for edge, at in batches for i in range(10))


def regions(folder: Path) -> tuple[Region, Region]:
    return Region(folder / "west", 2), Region(folder / "east", 4)


def moved(position: Place, there: Region, here: Region) -> MovedPosition:
    """Move a position, and check that Spark's files can have it."""
    found = moved_position(position, there.options, here.options)
    assert json.loads(json.dumps(found.position)) == found.position
    return found


def in_some_order(random_: random.Random, batches: list[Batch]) -> list[list[Batch]]:
    """Chunks with the batches of all edges in some order. Few batches come before an earlier one of their edge, as
    where another region heals a gap."""
    numbers = {edge: sorted(number for each, number in batches if each == edge) for edge in EDGES}
    for of_edge in numbers.values():
        if len(of_edge) > 1 and random_.random() < 0.3:
            at = random_.randrange(len(of_edge) - 1)
            of_edge[at : at + 2] = reversed(of_edge[at : at + 2])
    edges = [edge for edge, _ in batches]
    random_.shuffle(edges)
    order = [(edge, numbers[edge].pop(0)) for edge in edges]
    chunks: list[list[Batch]] = []
    while order:
        taken = random_.randint(1, 3)
        chunks.append(order[:taken])
        del order[:taken]
    return chunks


@pytest.mark.parametrize("seed", range(6))
def test_each_record_comes_once_however_the_logs_differ(seed: int, tmp_path: Path) -> None:
    """Both regions get all records at last. The query moves to the other one and back, at any place, while each lacks
    some records of the other; tables and deleted chunks are between."""
    random_ = random.Random(seed)
    everything = [(edge, number) for edge in EDGES for number in range(BATCHES)]
    west, east = regions(tmp_path)
    coming = {at: in_some_order(random_, everything) for at in (west, east)}

    def grow(region: Region, share: float) -> None:
        for _ in range(round(share * len(coming[region]))):
            if coming[region]:
                region.take(*coming[region].pop(0))

    def age(region: Region) -> None:
        if random_.random() < 0.5:
            region.tier()
            if random_.random() < 0.5:
                collect(region)

    grow(west, 0.5)
    grow(east, random_.uniform(0.1, 1))
    at = Follower(west).reader.initialOffset()
    read: list[Record] = []

    def follow(region: Region, batches: int) -> None:
        nonlocal at
        for _ in range(batches):
            at, found = Follower(region).batch(at, ReadMaxRows(random_.randint(1, 60)))
            read.extend(found)

    follow(west, random_.randint(0, 4))
    for there, here in ((west, east), (east, west), (west, east)):
        for region in (west, east):
            age(region)
        at = moved(at, there, here).position
        grow(here, random_.random() / 2)
        follow(here, random_.randint(1, 3))
        grow(there, random_.random() / 2)
    grow(east, 1)
    at, rest = Follower(east).batch(at)
    assert sorted(read + rest) == rows(everything)
    assert READ not in at, "what the other region has is forgotten once it is here and passed"
    assert Follower(east).batch(at) == (at, [])


def test_records_that_were_read_and_not_relayed_are_left_out_when_they_come(tmp_path: Path) -> None:
    west, east = regions(tmp_path)
    a, b = EDGES[:2]
    west.take((a, 0))
    west.take((b, 0))
    west.take((a, 1))
    east.take((b, 0), (b, 1))
    at, first = Follower(west).batch(Follower(west).reader.initialOffset())
    found = moved(at, west, east)
    assert (found.read, found.unread, found.coming) == (30, 10, 20)
    at, second = Follower(east).batch(found.position)
    east.take((a, 0), (a, 1), (a, 2))
    middle = Follower(east).batch(at, ReadMaxRows(15))
    end, last = Follower(east).batch(middle[0])
    assert sorted(first + second + middle[1] + last) == rows([(a, 0), (a, 1), (a, 2), (b, 0), (b, 1)])
    assert READ in middle[0]
    assert READ not in end


def test_a_record_that_only_the_other_table_has_is_read(tmp_path: Path) -> None:
    """The other region took it long ago from an edge that could not reach the first one."""
    west, east = regions(tmp_path)
    a, b = EDGES[:2]
    for number in range(3):
        east.take((b, number), (a, number))
        west.take((a, number))
    east.tier()
    collect(east)
    at, first = Follower(west).batch(Follower(west).reader.initialOffset())
    found = moved(at, west, east)
    assert found.unread == 30
    _, second = Follower(east).batch(found.position)
    assert sorted(first + second) == rows(east.has)


def test_a_lane_that_left_the_state_of_the_first_region_was_read(tmp_path: Path) -> None:
    west, east = regions(tmp_path)
    for region in (west, east):
        region.take((EDGES[0], 0), (EDGES[1], 0))
    at, _ = Follower(west).batch(Follower(west).reader.initialOffset())
    west.drop(EDGES[0])
    found = moved(at, west, east)
    assert (found.read, found.unread) == (20, 0)
    assert Follower(east).batch(found.position)[1] == []


@pytest.mark.parametrize("in_both", [False, True])
def test_records_of_a_lane_that_left_the_state_of_the_other_region_are_read_there(
    in_both: bool, tmp_path: Path
) -> None:
    west, east = regions(tmp_path)
    west.take((EDGES[1], 0))
    at, first = Follower(west).batch(Follower(west).reader.initialOffset())
    west.take((EDGES[0], 0))
    east.take((EDGES[0], 0))
    east.take((EDGES[1], 0))
    for region in (west, east) if in_both else (east,):
        region.drop(EDGES[0])
    found = moved(at, west, east)
    assert (found.read, found.unread) == (10, 10)
    _, second = Follower(east).batch(found.position)
    assert sorted(first + second) == rows(east.has)


def test_a_position_of_another_store_is_refused(tmp_path: Path) -> None:
    west, east = regions(tmp_path)
    west.take((EDGES[0], 0))
    east.take((EDGES[1], 0))
    at, _ = Follower(west).batch(Follower(west).reader.initialOffset())
    with pytest.raises(ReadError, match="checkpoint: "):
        moved_position(at, east.options, west.options)
    with pytest.raises(ReadError, match="of the same cluster"):
        moved_position(at, west.options, west.options)


async def test_a_query_goes_over_between_two_hubs_and_reads_each_record_once(tmp_path: Path) -> None:
    """It moves while one region has records of both edges that the other gets only afterwards."""
    west_store, east_store = (open_store(str(tmp_path / name)) for name in ("west", "east"))
    read: list[tuple[str, int]] = []

    def follow(name: str, start: Place | None) -> Place:
        reader = WeftStreamReader({"store": str(tmp_path / name), "stream": STREAM}, from_arrow_schema(LANES))
        start = reader.initialOffset() if start is None else start
        end = reader.latestOffset(start, ReadAllAvailable())
        for task in reader.partitions(start, end):
            for rows in read_partition(task, LANES):
                read.extend(zip(*(rows.column(name).to_pylist() for name in LANES.names), strict=True))
        return end

    async with running_hub(east_store) as east:
        log = log_of(0, 6, lane=OTHER)
        async with running_link(east, log, OTHER_NODE, epochs=MemoryEpochs(1)):
            await until(lambda: has(east, 6, OTHER))
        url = east.url
        async with running_hub(west_store, regions=to(url)) as west:
            async with running_link(west, log_of(0, 6), NODE, epochs=MemoryEpochs(1)):
                await until(lambda: has(east, 6))
    async with running_hub(west_store) as west:
        log = log_of(6, 12)
        async with running_link(west, log, NODE, epochs=MemoryEpochs(5)):
            await until(lambda: has(west, 12))
    at = follow("west", None)
    assert read == [(LANE.edge, seq) for seq in range(12)]
    options = [ReadOptions(str(tmp_path / name), STREAM) for name in ("west", "east")]
    found = moved_position(at, *options)
    assert (found.read, found.unread, found.coming) == (12, 6, 6)
    at = follow("east", found.position)
    async with running_hub(east_store) as east, running_hub(west_store, regions=to(east.url)):
        await until(lambda: has(east, 12))
    assert READ not in follow("east", at)
    assert sorted(read) == [(edge, seq) for edge, end in ((LANE.edge, 12), (OTHER.edge, 6)) for seq in range(end)]


# --- ``weft spark move`` on files as Spark writes them: what it replaces, keeps and refuses


BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":1795832083943,"conf":{}}'


def checkpoint(folder: Path, *sources: Any, done: int = 10) -> Path:
    """Write the files of a query whose batch 10 is planned, and make ``done`` the last complete one."""
    for kind, last in (("offsets", 10), ("commits", done)):
        (folder / kind).mkdir(parents=True)
        for number in (9, last):
            lines = ["v1", BATCH, *map(json.dumps, sources)] if kind == "offsets" else ["v1", "{}"]
            (folder / kind / str(number)).write_text("\n".join(lines))
            (folder / kind / f".{number}.crc").write_bytes(b"crc")
    return folder


def move(folder: Path, there: Region, here: Region, *options: str) -> tuple[int, str]:
    command = ["spark", "move", str(folder), "--from", there.root, "--to", here.root, *options]
    result = CliRunner().invoke(cli, command)
    return result.exit_code, f"{result.output} {result.exception}"


def read_up(region: Region) -> dict[str, Any]:
    return Follower(region).batch(Follower(region).reader.initialOffset())[0]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Region, Region]:
    west, east = regions(tmp_path)
    west.take((EDGES[0], 0))
    east.take((EDGES[1], 0), (EDGES[0], 0))
    return west, east


@pytest.mark.parametrize("of_several", [False, True])
def test_the_last_position_is_replaced_and_all_else_stays(
    pair: tuple[Region, Region], tmp_path: Path, *, of_several: bool
) -> None:
    west, east = pair
    at = read_up(west)
    folder = checkpoint(tmp_path / "query", {"streams": {STREAM: at}} if of_several else at)
    before = (folder / "offsets" / "9").read_text()
    status, reported = move(folder, west, east, *([] if of_several else ["--stream", STREAM]))
    assert status == 0, reported
    assert "10 records read" in reported
    version, batch, position = (folder / "offsets" / "10").read_text().splitlines()
    assert (version, batch) == ("v1", BATCH)
    assert (folder / "offsets" / "9").read_text() == before
    assert not (folder / "offsets" / ".10.crc").exists(), "Hadoop would compare it with the new file"
    found = json.loads(position)
    assert Follower(east).batch(found["streams"][STREAM] if of_several else found)[1] == rows([(EDGES[1], 0)])


def test_what_cannot_be_moved_is_refused_and_stays(pair: tuple[Region, Region], tmp_path: Path) -> None:
    west, east = pair
    at = read_up(west)
    stream = ("--stream", STREAM)
    for name, folder, options, reported in (
        ("one", checkpoint(tmp_path / "a", at, done=9), stream, "batch 10 of the query"),
        ("two", checkpoint(tmp_path / "b", at, at), stream, "several sources"),
        ("unnamed", checkpoint(tmp_path / "c", at), (), "name the stream"),
        ("other", checkpoint(tmp_path / "d", read_up(east)), stream, "checkpoint: "),
        ("none", tmp_path / "e", stream, "no offsets of a streaming query"),
    ):
        file = folder / "offsets" / "10"
        before = file.read_text() if file.exists() else None
        status, answer = move(folder, west, east, *options)
        assert status != 0, name
        assert reported in " ".join(answer.split()), name
        assert (file.read_text() if file.exists() else None) == before, name


# --- ``weft spark move`` on the checkpoints of Spark's own queries: docs/how-to/two-regions.md


def moved_queries_move(checkpoint: Path, there: Region, here: Region) -> tuple[int, str]:
    command = ["spark", "move", str(checkpoint), "--from", there.root, "--to", here.root, "--stream", STREAM]
    result = CliRunner().invoke(cli, command)
    return result.exit_code, result.output


@pytest.mark.slow
def test_rows_and_state_go_on_in_the_other_region(spark: SparkSession, tmp_path: Path) -> None:
    """A table gets each record once, and a count continues, although the other log has another order and lacks some."""
    west, east = regions(tmp_path)
    a, b = EDGES[:2]
    counts: dict[str, int] = {}

    def count(frame: DataFrame, _: int) -> None:
        counts.update({row["_edge"]: row["count"] for row in frame.collect()})

    def drain(region: Region, name: str) -> None:
        sink = DeltaSink(tmp_path / "table", store=region.root, stream=STREAM, name=name)
        plain = spark.readStream.format("weft").options(store=region.root, stream=STREAM, max_records_per_trigger=15)
        run(plain.load(), sink, "rows")
        run(plain.load().groupBy("_edge").count(), count, "counts")

    def run(frame: DataFrame, sink: Any, name: str) -> None:
        writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True).outputMode("update")
        writer.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination()

    def table() -> list[tuple[str, int, bytes]]:
        found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["_edge", "_seq", "payload"]).to_pylist()
        return sorted((row["_edge"], row["_seq"], row["payload"]) for row in found)

    west.take((a, 0), (b, 0))
    west.take((a, 1))
    east.take((b, 1), (b, 0))
    drain(west, "west")
    commits = tmp_path / "rows" / "commits"
    last = max((file for file in commits.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name))
    shutil.move(last, tmp_path / "kept")
    status, reported = moved_queries_move(tmp_path / "rows", west, east)
    assert (status, "is not complete" in reported) == (1, True)
    shutil.move(tmp_path / "kept", last)
    for name in ("rows", "counts"):
        assert moved_queries_move(tmp_path / name, west, east)[0] == 0
    drain(east, "east")
    assert table() == rows([(a, 0), (a, 1), (b, 0), (b, 1)])
    east.take((a, 0), (a, 1), (a, 2))
    drain(east, "east")
    assert table() == rows([(a, 0), (a, 1), (a, 2), (b, 0), (b, 1)])
    assert counts == {a: 30, b: 20}
