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
from weft.cloud_hub.kafka.partitions import (
    NONE,
    ZSTD,
    BatchWriter,
    End,
    OffsetGone,
    PartitionReads,
    Place,
    ProcessorTime,
    Run,
)
from weft.cloud_hub.reads.records import RecordReader
from weft.protocols.ranges import RangeSet
from weft.replication.runner import LinkIdentity
from weft.storage.chunk_log import changed
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
    return await reads.read(reader, Place(STREAM, 0, codec, offset), End(COUNT, sequencer.state.n), READER)


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
        return RangeSet([(0, 60), (100, 150), (190, COUNT)])

    run = await read(new_reads(), hub, 10, erased=erased)
    assert [offset for offset, _ in decoded(run, 10)] == [*range(60, 100), *range(150, 190)]
    assert run.next_offset == run.batches[-1].end == COUNT, "a client passes the erased end"


async def test_a_run_of_erased_records_alone_has_a_batch_that_passes_them(hub: Hub) -> None:
    async def erased(_: object) -> RangeSet:
        return RangeSet([(0, COUNT)])

    run = await read(new_reads(), hub, 10, erased=erased)
    batch = MemoryRecords(b"".join(run.since(10, 1))).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    assert (batch.base_offset, batch.next_offset, list(batch)) == (10, COUNT, [])


class OtherEdge:
    """Another edge of the hub, whose stream takes the log on in chunks of its own."""

    IDENTITY = LinkIdentity("default", "press-2", 0xDEF, "test")

    def __init__(self) -> None:
        self.log, self.count = EdgeLog("other"), 0

    async def commit(self, hub: Hub, chunks: int) -> None:
        """Append a record in each of some chunks."""
        async with running_link(hub, self.log, self.IDENTITY):
            for _ in range(chunks):
                self.log.append(*records(self.count, [b"y"]))
                self.count += 1
                await self.log.until_released(self.count)


async def collect(hub: Hub) -> None:
    """Raise the watermark to the head, as the collector does."""
    (sequencer,) = hub.sequencers
    manifest, etag = await sequencer.log.manifest()
    await sequencer.log.swap_manifest(changed(manifest, watermark=sequencer.state.n), etag)
    await sequencer.log.manifest()


async def test_a_reader_of_a_quiet_stream_continues_behind_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    log = EdgeLog()
    async with running_hub(MemoryStore(), shards=1) as hub, running_link(hub, log, EDGE), asyncio.timeout(PATIENCE_S):
        log.append(*records(0, [b"x"] * 5))
        await log.until_released(5)
        reads, (sequencer,) = new_reads(), hub.sequencers
        reader = RecordReader(sequencer.log, 1 << 20)
        place = Place(STREAM, 0, ZSTD, 0)
        await reads.read(reader, place, End(5, sequencer.state.n), READER)  # which notes the chunk where it ended
        await OtherEdge().commit(hub, 4)
        await collect(hub)
        log.append(*records(5, [b"new"]))
        await log.until_released(6)
        end = End(6, sequencer.state.n)
        assert decoded(await reads.read(reader, place._replace(offset=5), end, READER), 5) == [(5, b"new")]
        # The same if the collector passes the chunk after it was found.
        late = new_reads()
        chunk = late._chunk

        async def too_early(*_: object) -> int:
            monkeypatch.setattr(late, "_chunk", chunk)
            return 0

        monkeypatch.setattr(late, "_chunk", too_early)
        assert decoded(await late.read(reader, place._replace(offset=5), end, READER), 5) == [(5, b"new")]


async def test_a_chunk_far_back_is_located_anew(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, (sequencer,) = new_reads(), hub.sequencers
    await read(reads, hub, 0)
    reader, place, looked = RecordReader(sequencer.log, 1 << 20), Place(STREAM, 0, ZSTD, COUNT), []

    async def locate(*_: object) -> int:
        looked.append(sequencer.state.n)
        return sequencer.state.n

    monkeypatch.setattr(sequencer.log, "locate", locate)
    await OtherEdge().commit(hub, 3)
    await reads.read(reader, place, End(COUNT + 1, sequencer.state.n), READER)
    assert not looked, "near the head, the note is enough"
    monkeypatch.setattr(partitions, "SEARCHED_MAX", 2)
    await reads.read(reader, place, End(COUNT + 1, sequencer.state.n), READER)
    assert looked


async def test_an_offset_that_the_log_lacks_is_gone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    (sequencer,) = hub.sequencers

    async def too_late(*_: object) -> int:
        return sequencer.state.n

    with monkeypatch.context() as patched:
        patched.setattr(sequencer.log, "locate", too_late)
        with pytest.raises(OffsetGone):
            await read(new_reads(), hub, 3)
    # The same if the stream has no later record.
    await OtherEdge().commit(hub, 3)
    await collect(hub)
    with pytest.raises(OffsetGone):
        await read(new_reads(), hub, 3)


@pytest.mark.parametrize(
    ("value", "headers"), [(b"", []), (b"v" * 100, []), (b"", [("unit", b"z" * 60_000)])], ids=repr
)
def test_a_run_has_a_bound_whatever_its_records_are_made_of(value: bytes, headers: Any) -> None:
    writer, offset = BatchWriter(0, RangeSet(), NONE), 0
    while not writer.is_full:
        writer._append(offset, 0, b"", value, [*headers])
        offset += 1
        assert offset < 1_000_000, "a record counts, even without a byte of its own"
    writer.finish()
    longest = len(value) + sum(len(each) for _, each in headers) + 200
    assert max(len(each.data) for each in writer.batches) <= partitions.BATCH_BYTES + longest
    assert sum(len(each.data) for each in writer.batches) <= partitions.RUN_BYTES + partitions.BATCH_BYTES + longest


async def test_a_run_ends_with_the_bytes_that_it_may_read(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def erased(_: object) -> RangeSet:
        return RangeSet([(0, COUNT)])

    for name in ("RUN_SECTIONS_BYTES", "RUN_UNPACKED_BYTES"):
        with monkeypatch.context() as patched:
            patched.setattr(partitions, name, 1)
            assert (await read(new_reads(), hub, 0, erased=erased)).next_offset == 50


async def test_runs_of_one_reader_leave_another_its_turn(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, made, (sequencer,) = new_reads(), [], hub.sequencers
    other = Charged(Owner(OwnerKind.TOKEN, "other"), Owner(OwnerKind.TENANT, "other"))
    reader, goes_on = RecordReader(sequencer.log, 1 << 20), asyncio.Event()

    async def write(log: object, place: Place, *_: object) -> None:
        made.append(place.stream[0])
        await goes_on.wait()

    monkeypatch.setattr(reads, "_write", write)

    def begin(tenant: str, charged: Charged, offset: int) -> asyncio.Task[Run]:
        return asyncio.create_task(reads.read(reader, Place((tenant, "s"), 0, NONE, offset), End(99, 1), charged))

    many = [begin("many", READER, each) for each in range(50)]
    await until(lambda: len(made) == partitions.READS_AT_ONCE_OF_OWNER)
    for each in many[:2]:
        each.cancel()  # who leaves does not begin another run instead
    few = begin("few", other, 0)
    await until(lambda: "few" in made)
    assert made.count("many") == partitions.READS_AT_ONCE_OF_OWNER
    goes_on.set()
    await asyncio.gather(few, *many[2:])


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
