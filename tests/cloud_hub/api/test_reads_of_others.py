"""What one tenant's reads of the past cost does not depend on what others have, and does not hold up theirs."""

from __future__ import annotations

import asyncio
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from weft.cloud_hub.reads.history import READERS_MAX, LowestRecords, LowestTable, _Readers
from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.views import FoundRecord, Search
from weft.hub_api.answers import RecordOfStream
from weft.protocols.chunk_index import Chunk, StreamKey
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store.directory import MemoryStore

STREAM = LANE.tenant, LANE.stream
OTHERS, CHUNKS = 300, 8


async def test_indexes_are_decoded_for_the_stream_that_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = await LogWriter.open(MemoryStore(), 1)
    for n in range(CHUNKS):
        others = [Run(LANE._replace(tenant="busy", stream=f"s{at}"), n, 1) for at in range(OTHERS)]
        await writer.append(0, Run(LANE, 5 * n, 5), *others)
    decoded = []
    index = ShardLog.index

    async def counted(log: ShardLog, n: int, only: frozenset[StreamKey] | None = None) -> Chunk | None:
        chunk = await index(log, n, only)
        if chunk is not None:
            decoded.append(len(chunk.footer.streams))
        return chunk

    monkeypatch.setattr(ShardLog, "index", counted)
    reader = RecordReader(ShardLog(writer.store, writer.cluster, 0), 1 << 20)
    helping = await reader.read(STREAM, 0, 5 * CHUNKS, 1000)
    assert [record.record.seq for record in helping.records] == list(range(5 * CHUNKS))
    beginning = await reader.first(writer.states[0], STREAM, Search(), since=writer.created)
    assert beginning.offset == 0
    assert set(decoded) == {1}


def found(row: dict[str, int]) -> FoundRecord:
    record = RecordOfStream(
        shard=0,
        offset=row["offset"],
        edge="",
        log="",
        stream="",
        seq=0,
        time="",
        clock="",
        received="",
        key="",
        resent=False,
    )
    return FoundRecord(record, row["bytes"])


def lowest(rows: list[dict[str, int]], limit: int, bytes_max: int) -> list[int]:
    """The rows that are wanted, by the rule alone."""
    kept: list[int] = []
    size = 0
    for each in sorted(rows, key=lambda each: each["offset"])[:limit]:
        size += each["bytes"]
        if kept and size > bytes_max:
            break
        kept.append(each["offset"])
    return kept


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_any_order_leave_the_lowest_and_each_batch_is_cut_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    rows = [{"offset": offset, "bytes": random.choice((0, 1, 90, 900))} for offset in range(400)]
    random.shuffle(rows)
    limit, bytes_max = random.choice((1, 50, 1_000)), random.choice((1, 5_000, 1_000_000))
    cuts: list[int] = []
    cut = LowestRecords.cut

    def counted(rows: LowestRecords, end: int) -> None:
        cuts.append(end)
        cut(rows, end)

    monkeypatch.setattr(LowestRecords, "cut", counted)
    kept = LowestRecords(1_000, limit, bytes_max, found)
    kept.add(pa.Table.from_pylist(rows[:200]))
    kept.add(pa.Table.from_pylist(rows[200:]))
    assert sorted(kept.rows) == lowest(rows, limit, bytes_max)
    assert len(cuts) <= 2


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_rows_as_arrow_are_as_many_as_the_bounds_allow(seed: int) -> None:
    chance = Random(seed)
    limit, bytes_max = chance.choice((1, 50, 1_000)), chance.choice((1, 5_000, 1_000_000))
    end = chance.choice((90, 999))
    offsets = chance.sample(range(1_000), 300)
    rows = pa.table({"_offset": offsets, "payload": [b"x" * chance.randrange(200) for _ in offsets]})
    found = LowestTable(end, limit, bytes_max, lambda rows: rows)
    for first in range(0, 300, 30):
        found.add(rows.slice(first, 30))
    below = rows.sort_by("_offset").filter(pc.less(pc.field("_offset"), end)).combine_chunks()
    count = found.table().num_rows
    assert found.table() == below.slice(0, count)
    assert count == 1 or (count <= limit and found.table().nbytes <= bytes_max)
    if count < below.num_rows:
        assert found.end == below["_offset"][count].as_py(), "the next row is not lost"
        assert count == limit or below.slice(0, count + 1).nbytes > bytes_max


async def test_tenants_take_turns_at_tables() -> None:
    readers, order = _Readers(), []
    may_end = asyncio.Event()

    async def read(tenant: str) -> None:
        async with readers.place(tenant):
            order.append(tenant)
            await may_end.wait()

    tasks = [asyncio.create_task(read("evil")) for _ in range(20)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(read("good")))
    await asyncio.sleep(0)
    tasks[READERS_MAX].cancel()  # a reader that left while it waited
    may_end.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order.index("good") <= READERS_MAX + 1
    assert len(order) == 20
    async with readers.place("good"), readers.place("evil"):
        pass
