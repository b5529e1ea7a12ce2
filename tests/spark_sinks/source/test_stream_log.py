"""Stores that were restored from a backup: a kept checkpoint is refused, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from bench.log_writer import Delivery, LogWriter
from spark_sinks.errors import ReadError
from spark_sinks.source.readers import decode
from spark_sinks.source.stream_log import WentBack, find_chunk
from tests.spark_sinks.conftest import START, STREAM, Hub, encoded, records
from tests.spark_sinks.source.following import Follower, Place, collect, offsets
from weft.protocols.chunk_index import Chunk, StreamKey
from weft.storage.chunk_log import ShardLog

REFUSED = (
    r"checkpoint: it goes up to offset \d+ of shard \d of telemetry, and the log has another chunk \d\. The hub's "
    r"store was restored to an earlier state, .*\. Move the checkpoint away, and what the query has written"
)


def since_the_restore(edge: str, seq: int) -> bytes:
    return f"{edge}:{seq} since the restore".encode()


def read_all(hub: Hub) -> Place:
    """Return the position of a query that has read everything."""
    query = Follower(hub)
    return query.batch(query.reader.initialOffset())[0]


def text(place: Place) -> str:
    """Return a position as Spark compares it."""
    return json.dumps(place)


@pytest.mark.spark
def test_a_log_that_has_grown_past_the_checkpoint_again_is_refused(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.write(1)
    restore = hub.backup()
    hub.write(1)
    at = read_all(hub)
    restore()
    hub.payload = since_the_restore
    hub.write(3)
    with pytest.raises(WentBack, match=REFUSED):
        Follower(hub).batch(at)
    # Spark shows traces of Java and Python before the sentence; the log has it first.
    [record] = [each for each in caplog.records if each.name == "weft.spark"]
    assert re.search(REFUSED, record.getMessage())
    with pytest.raises(WentBack, match=REFUSED):
        Follower(hub).rows(at, hub.heads())
    # What the advice comes to: all of the present log.
    new = Follower(hub)
    assert len(new.batch(new.reader.initialOffset())[1]) == len(hub.expected())


@pytest.mark.spark
def test_so_is_a_batch_that_a_crash_cut_short(hub: Hub) -> None:
    """Its start is in both histories, its end is not: a sink may have some of its rows."""
    hub.write(1)
    start = read_all(hub)
    restore = hub.backup()
    hub.write(1)
    end = Follower(hub).batch(start)[0]
    restore()
    hub.payload = since_the_restore
    hub.write(2)
    with pytest.raises(WentBack, match=REFUSED):
        Follower(hub).rows(start, end)
    assert Follower(hub).batch(start)[1]


@pytest.mark.spark
def test_a_restore_that_lost_only_what_the_query_had_not_read_stops_it_not(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset(), ReadMaxRows(35))
    restore = hub.backup()
    hub.write(2)
    restore()
    hub.write(1)
    after = Follower(hub)
    at, more = after.batch(at, ReadMaxRows(30))
    _, rest = after.batch(at)
    assert sorted(first + more + rest) == hub.expected()


@pytest.mark.spark
def test_a_running_query_stops_when_its_log_goes_on_with_other_chunks(hub: Hub) -> None:
    hub.write(1)
    restore = hub.backup()
    hub.write(1)
    query = Follower(hub)
    at, _ = query.batch(query.reader.initialOffset())
    restore()
    assert query.batch(at) == (at, []), "no log is shorter for a reader that has seen its end"
    hub.payload = since_the_restore
    hub.write(3)
    with pytest.raises(ReadError, match="restored to an earlier state"):
        query.batch(at)


@pytest.mark.spark
def test_so_is_one_whose_chunks_were_deleted_since(hub: Hub) -> None:
    """The table has other rows at these offsets, which came later."""
    hub.write(1)
    restore = hub.backup()
    hub.write(1)
    at = read_all(hub)
    restore()
    hub.rounds = 3600
    hub.write(3)
    hub.tier()
    assert collect(hub) > 0
    with pytest.raises(WentBack, match=r"and the record before it came later\. The hub's store was restored"):
        Follower(hub).batch(at)


@pytest.mark.spark
def test_a_query_that_slept_until_its_chunks_were_deleted_compares_too(hub: Hub) -> None:
    hub.write(1)
    restore = hub.backup()
    hub.write(1)
    query = Follower(hub)
    at, _ = query.batch(query.reader.initialOffset())
    restore()
    hub.rounds = 3600
    hub.write(3)
    hub.tier()
    assert collect(hub) > 0
    query.sleep()
    with pytest.raises(WentBack, match="restored to an earlier state"):
        query.batch(at)


@pytest.mark.spark
def test_a_position_that_does_not_move_keeps_its_text(hub: Hub) -> None:
    """Spark makes a micro-batch of every other text."""
    hub.write(2)
    old = offsets(read_all(hub))
    for place in (old, read_all(hub), {shard: offset // 2 for shard, offset in old.items()}):
        query = Follower(hub)
        at = query.batch(place, ReadMaxRows(1))[0] if place != old else place
        assert text(Follower(hub).reader.latestOffset(at, ReadMaxRows(0))) == text(at)
    hub.tier()
    collect(hub)
    for place in (old, read_all(hub)):
        assert text(Follower(hub).batch(place)[0]) == text(place)


@pytest.mark.spark
def test_a_checkpoint_of_an_earlier_release_goes_on_and_gets_its_chunks(hub: Hub) -> None:
    hub.write(1)
    old = offsets(read_all(hub))
    hub.write(1, edges=["press-1"])
    at, rows = Follower(hub).batch(old)
    assert {row[0] for row in rows} == {"press-1"}
    (moved,) = [shard for shard, offset in old.items() if at[shard] != offset]
    assert set(at["chunks"]) == {moved}
    hub.write(2)
    at, _ = Follower(hub).batch(at)
    places = decode(at)
    assert {shard for shard, kept in places.items() if kept.witness} == {
        shard for shard, kept in places.items() if kept.end
    }


@pytest.mark.spark
def test_the_chunk_is_that_of_the_last_record_whether_followed_or_looked_up(hub: Hub) -> None:
    hub.write(1)
    running = Follower(hub)
    at = running.reader.initialOffset()
    hub.write(8)
    hub.tier()
    while at != (end := running.reader.latestOffset(at, ReadMaxRows(17))):
        fresh = Follower(hub).reader.latestOffset(at, ReadMaxRows(17))
        assert text(end) == text(fresh)
        assert {shard: n for shard, (n, *_) in end["chunks"].items()} == {
            shard: (offset - 1) // (offsets(hub_ends(hub))[shard] // 9)
            for shard, offset in offsets(end).items()
            if offset
        }
        at = end


def hub_ends(hub: Hub) -> Place:
    return dict(hub.heads())


@pytest.mark.spark
def test_a_running_query_asks_for_no_chunk_twice(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    index = ShardLog.index

    async def noted(self: ShardLog, n: int, only: frozenset[StreamKey] | None = None) -> object:
        found = await index(self, n, only)
        if found is not None:
            asked.append((self.shard, n))
        return found

    hub.write(3)
    monkeypatch.setattr(ShardLog, "index", noted)
    query = Follower(hub)
    at = query.batch(query.reader.initialOffset())[0]
    asked.clear()
    for _ in range(3):
        hub.write(2)
        at = query.batch(at)[0]
    assert len(asked) == len(set(asked))
    again = Follower(hub)
    again.reader._opened()
    asked.clear()
    again.batch(at)
    assert len(asked) == len(at["chunks"]), "a start takes one GET for each shard"


@pytest.mark.spark
@pytest.mark.parametrize(
    "place",
    [
        {"0": 1, "chunks": {"0": [1]}},
        {"0": 1, "chunks": {"0": [1, -1, 1]}},
        {"0": 1, "chunks": {"3": [1, 1, 1]}},
        {"0": 1, "chunks": [1]},
        {"0": 1, "chunks": {"x": [1, 1]}},
        {"0": "1"},
        ["0"],
        {"x": 1},
    ],
)
def test_what_is_no_position_is_refused(place: Place) -> None:
    with pytest.raises(ReadError, match="checkpoint: expected offsets by shard, got"):
        decode(place)


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_of_spark_ends_with_one_sentence(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    def drain() -> list[tuple[str, int, bytes]]:
        frame = spark.readStream.format("weft").options(store=hub.root, stream=STREAM).load()
        writer = frame.writeStream.format("parquet").trigger(availableNow=True)
        folder = tmp_path / "out"
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(folder)).awaitTermination()
        return records(spark.read.parquet(str(folder)))

    hub.write(1)
    restore = hub.backup()
    assert drain() == hub.expected()
    hub.write(1)
    assert drain() == hub.expected()
    restore()
    hub.payload = since_the_restore
    hub.write(3)
    with pytest.raises(StreamingQueryException, match=REFUSED):
        drain()


# --- Search for the chunk with an offset: the right one, in few requests


CHUNKS = 200
GETS_MAX = 24
KEY = ("default", STREAM)


class Searched(ShardLog):
    """A log that counts the indexes that it is asked for."""

    asked = 0

    async def index(self, n: int, only: frozenset[StreamKey] | None = None) -> Chunk | None:
        self.asked += 1
        return await super().index(n, only)


def write(root: Path, holding: range) -> LogWriter:
    """Make chunks, of which some hold ten records and the others none."""
    writer = LogWriter(str(root), stream=STREAM)
    for number in range(CHUNKS):
        batches = [encoded("press-1", holding.index(number))] if number in holding else []
        writer.write(Delivery("press-1", batches), received=START + number)
    return writer


@pytest.mark.slow
@pytest.mark.parametrize("holding", [range(CHUNKS), range(3, CHUNKS, 40)])
def test_each_offset_is_found(tmp_path: Path, holding: range) -> None:
    writer = write(tmp_path, holding)

    async def search() -> None:
        for at, n in enumerate(holding):
            for offset in (10 * at, 10 * at + 9):
                log = Searched(writer.store, writer.cluster, 0)
                found = await find_chunk(log, KEY, offset, 0)
                assert found is not None
                assert (found.n, found.first, found.end) == (n, 10 * at, 10 * at + 10)
                assert len(holding) < CHUNKS or log.asked <= GETS_MAX
        assert await find_chunk(log, KEY, 10 * len(holding), 0) is None

    asyncio.run(search())


def test_a_chunk_that_the_hub_deleted_is_none(tmp_path: Path) -> None:
    hub = Hub(str(tmp_path))
    hub.write(4)
    hub.tier()
    collect(hub)
    writer = hub._writer
    shard = next(shard for shard, end in hub.heads().items() if end)
    log = ShardLog(writer.store, writer.cluster, int(shard))
    end = hub.heads()[shard]

    async def search() -> list[int | None]:
        found = [await find_chunk(log, KEY, offset, 0) for offset in (0, end - 1)]
        return [None if each is None else each.n for each in found]

    assert asyncio.run(search()) == [None, 3]
