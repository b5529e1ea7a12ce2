"""Record batches from sections of chunks, and the runs that readers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("kio", reason="kio is not installed: pip install weft-fabric[kafka]")
pytest.importorskip("aiokafka", reason="aiokafka is not installed: pip install weft-fabric[kafka]")

from aiokafka.record import MemoryRecords

from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import Owner, OwnerKind, Refusals
from weft.cloud_hub.auth.access import Charged
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.kafka import partitions
from weft.cloud_hub.kafka.partitions import NONE, ZSTD, OffsetGone, PartitionReads, Place, ProcessorTime, Run
from weft.cloud_hub.reads.records import RecordReader
from weft.protocols.ranges import RangeSet
from weft.storage.object_store.directory import MemoryStore

STREAM = ("default", "telemetry")
COUNT = 200
READER = Charged(Owner(OwnerKind.TOKEN, "reader"), Owner(OwnerKind.TENANT, "default"))


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    """A hub whose log has the records in several chunks."""
    log = EdgeLog()
    async with running_hub(MemoryStore(), shards=1) as hub, running_link(hub, log, EDGE), asyncio.timeout(PATIENCE_S):
        for first in range(0, COUNT, 50):
            log.append(*records(first, [b"%d" % each for each in range(first, first + 50)]))
            await log.until_released(first + 50)
        yield hub


def new_reads(now: Any = lambda: 0.0) -> PartitionReads:
    return PartitionReads(ProcessorTime(Refusals(now), now), now)


async def read(reads: PartitionReads, hub: Hub, offset: int, codec: int = ZSTD, erased: Any = None) -> Run:
    (sequencer,) = hub.sequencers
    reader = RecordReader(sequencer.log, 1 << 20)
    if erased is not None:
        reader.erased = erased  # type: ignore[method-assign]
    return await reads.read(reader, Place(STREAM, 0, codec, offset), COUNT, READER)


def decoded(run: Run, offset: int, bytes_max: int = 1 << 30) -> list[tuple[int, bytes]]:
    """Return offsets and values of the records from an offset on, as a client sees them."""
    data, found = MemoryRecords(b"".join(run.since(offset, bytes_max))), []
    while (batch := data.next_batch()) is not None:
        assert batch.validate_crc()
        found += [(each.offset, each.value) for each in batch if each.offset >= offset]
    return found


@pytest.mark.parametrize("codec", [NONE, ZSTD])
@pytest.mark.parametrize("offset", [0, 49, 50, 123, COUNT - 1])
async def test_a_run_has_each_record_from_its_offset_on(hub: Hub, codec: int, offset: int) -> None:
    run = await read(new_reads(), hub, offset, codec)
    assert decoded(run, offset) == [(each, b"%d" % each) for each in range(offset, COUNT)]
    assert (run.first, run.next_offset) == (offset, COUNT)


async def test_readers_within_a_run_share_it(hub: Hub) -> None:
    reads = new_reads()
    runs = await asyncio.gather(*(read(reads, hub, 0) for _ in range(5)), read(reads, hub, 0))
    later = await read(reads, hub, 120)
    assert all(each is later for each in runs)
    assert decoded(later, 120) == [(each, b"%d" % each) for each in range(120, COUNT)]


async def test_runs_and_batches_of_any_size_go_on_where_the_one_before_ended(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "BATCH_RECORDS", 7)
    monkeypatch.setattr(partitions, "BATCH_BYTES", 300)
    monkeypatch.setattr(partitions, "RUN_BYTES", 600)
    reads, at, found, runs = new_reads(), 0, [], 0
    while at < COUNT:
        run = await read(reads, hub, at)
        got = decoded(run, at, bytes_max=200)
        found += got
        at, runs = got[-1][0] + 1, runs + 1
    assert found == [(each, b"%d" % each) for each in range(COUNT)]
    assert runs > 3


async def test_erased_records_are_left_out_and_their_offsets_passed(hub: Hub) -> None:
    async def erased(_: object) -> RangeSet:
        return RangeSet([(0, 60), (100, 150)])

    run = await read(new_reads(), hub, 10, erased=erased)
    assert [offset for offset, _ in decoded(run, 10)] == [*range(60, 100), *range(150, COUNT)]
    assert run.next_offset == COUNT


async def test_an_offset_that_the_log_lacks_is_gone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    (sequencer,) = hub.sequencers

    async def too_late(*_: object) -> int:
        return sequencer.state.n

    monkeypatch.setattr(sequencer.log, "locate", too_late)
    with pytest.raises(OffsetGone):
        await read(new_reads(), hub, 3)


async def test_a_reader_beyond_its_time_waits_unless_another_has_made_the_run(hub: Hub) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    time_of = ProcessorTime(refusals, lambda: now[0])
    reads = PartitionReads(time_of, lambda: now[0])
    run = await read(reads, hub, 0)
    time_of.charge(READER, 60.0)
    assert await read(reads, hub, 0) is run
    waiting = asyncio.create_task(read(reads, hub, 0, NONE))
    await until(lambda: bool(list(refusals)))
    assert not waiting.done()
    now[0] = 200.0
    assert decoded(await waiting, 0) == decoded(run, 0)
