"""Streams read by real clients of Kafka: each record once, as the API has it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kio")
pytest.importorskip("aiokafka")
pytest.importorskip("confluent_kafka")

import confluent_kafka
from aiokafka import AIOKafkaConsumer, TopicPartition
from kio.schema.errors import ErrorCode

from tests.cloud_hub.http.test_application import EDGE, deliver, records
from tests.cloud_hub.kafka.frames import RawClient, fetch, list_offsets, metadata
from tests.cloud_hub.kafka.test_partitions import READER
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.certificates import Authority
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.kafka import broker, fetches, partitions
from weft.cloud_hub.kafka.broker import EARLIEST, LATEST
from weft.cloud_hub.kafka.listener import KafkaListener
from weft.cloud_hub.kafka.partitions import PartitionReads
from weft.cloud_hub.kafka.topics import UNLISTED_MAX, Client, Led, Partitions, Topics, broker_id
from weft.cloud_hub.reads.records import RecordReader, ShardsView, ShardViews
from weft.cloud_hub.reads.views import Search
from weft.hub_api.rights import Scope
from weft.network.tls import ClientTlsFiles, TlsFiles
from weft.protocols.batch import Flag
from weft.protocols.ranges import RangeSet
from weft.replication.runner import LinkIdentity
from weft.storage.chunk_log import changed
from weft.storage.object_store.directory import MemoryStore

KAFKA: dict[str, Any] = {"kafka_port": 0}


def consumer(hub: Hub, **settings: Any) -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{hub.kafka_port}",
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def read_all(made: Any, places: dict[int, int], count: int) -> list[Any]:
    """Read some records of partitions from their offsets on. Blocks."""
    topic = "telemetry"
    made.assign([confluent_kafka.TopicPartition(topic, shard, offset) for shard, offset in places.items()])
    found: list[Any] = []
    while len(found) < count:
        got = made.consume(count - len(found), PATIENCE_S)
        assert got, f"{len(found)} of {count} records"
        for each in got:
            assert each.error() is None, each.error()
        found += got
    made.close()
    return found


async def test_a_consumer_reads_all_records_of_a_stream_as_the_api_has_them() -> None:
    store, log, epochs = MemoryStore(), EdgeLog(), MemoryEpochs()
    log.append(*records(0, [b"a", b"\xff\x00"], {0: (("unit", "C"), ("n", 1))}, {1: Flag.DUPLICATE_SUSPECTED}))
    log.append(*records(2, [b"%d" % i for i in range(2, 500)]))
    async with running_hub(store, **KAFKA) as hub, running_link(hub, log, EDGE, epochs=epochs):
        await log.until_released(500)
        answer = (await get(hub, "/v1/streams/telemetry/records?since=0&limit=1000"))[1]
        (shard,) = {each["shard"] for each in answer["records"]}
        got = await asyncio.to_thread(read_all, consumer(hub), {shard: 0}, 250)
    log.append(*records(500, [b"%d" % i for i in range(500, 600)]))
    async with running_hub(store, **KAFKA) as hub, running_link(hub, log, EDGE, epochs=epochs):
        await log.until_released(600)
        answer = (await get(hub, "/v1/streams/telemetry/records?since=0&limit=1000"))[1]
        got += await asyncio.to_thread(read_all, consumer(hub), {shard: got[-1].offset() + 1}, 350)
    assert [each.offset() for each in got] == list(range(600))
    for each, known in zip(got, answer["records"], strict=True):
        headers = dict(each.headers())
        assert each.key().decode() == known["key"]
        assert headers["weft.edge"].decode() == known["edge"]
        assert headers["weft.log"].decode() == known["log"]
        assert int(headers["weft.seq"]) == known["seq"]
        assert each.timestamp()[0] == confluent_kafka.TIMESTAMP_CREATE_TIME
    assert [each.value() for each in got[:3]] == [b"a", b"\xff\x00", b"2"]
    assert dict(got[0].headers()).items() >= {("unit", b"C"), ("n", b"1")}
    assert dict(got[1].headers())["weft.resent"] == b"true"


async def test_a_consumer_with_a_token_reads_over_tls(tmp_path: Path) -> None:
    path, log = str(tmp_path / "tokens"), EdgeLog()
    edge = create_token(path, "edge", Scope.EDGE, edge="press-1")
    reader = create_token(path, "reader", Scope.READER)
    log.append(*records(0, [b"%d" % each for each in range(50)]))
    authority = Authority(tmp_path)
    own = authority.sign("hub")
    files = TlsFiles(certificate=own.certificate, key=own.key, client_certificate_required=False)
    trusted = ClientTlsFiles(ca_file=authority.path)
    async with running_hub(MemoryStore(), shards=1, tls=files, tokens=path, **KAFKA) as hub:
        async with running_link(hub, log, EDGE, edge, tls=trusted):
            await log.until_released(50)
        made = consumer(
            hub,
            security_protocol="SASL_SSL",
            ssl_ca_location=authority.path,
            ssl_endpoint_identification_algorithm="none",
            sasl_mechanism="PLAIN",
            sasl_username="anyone",
            sasl_password=reader,
        )
        got = await asyncio.to_thread(read_all, made, {0: 0}, 50)
    assert [each.value() for each in got] == [b"%d" % each for each in range(50)]


async def test_aiokafka_reads_them_as_well() -> None:
    log = EdgeLog()
    log.append(*records(0, [b"%d" % each for each in range(300)]))
    async with running_hub(MemoryStore(), shards=1, **KAFKA) as hub:
        await deliver(hub, log, 300)
        place = TopicPartition("telemetry", 0)
        made = AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{hub.kafka_port}", auto_offset_reset="earliest")
        async with asyncio.timeout(PATIENCE_S), made:
            made.assign([place])
            got = [await made.getone() for _ in range(300)]
            ends = await made.end_offsets([place])
    assert [(each.offset, each.value) for each in got] == [(each, b"%d" % each) for each in range(300)]
    assert ends == {place: 300}


async def test_offsets_are_found_by_the_time_of_their_commit() -> None:
    log, epochs, began = EdgeLog(), MemoryEpochs(), time.time_ns()
    now = [began]
    clocks = {"wall_clock": lambda: now[0]}
    async with (
        running_hub(MemoryStore(), shards=1, clocks=clocks, **KAFKA) as hub,
        running_link(hub, log, EDGE, epochs=epochs),
        asyncio.timeout(PATIENCE_S),
    ):
        times = []
        for first in (0, 10):
            now[0] += 1_000_000_000
            times.append(now[0] // 1_000_000)
            log.append(*records(first, [b"x"] * 10))
            await log.until_released(first + 10)
        client = await RawClient.to(hub.kafka_port)

        async def offset(at: int) -> int:
            answer = await client.ask(list_offsets({("telemetry", 0): at}))
            (part,) = answer.topics[0].partitions
            assert part.error_code is ErrorCode.none
            return int(part.offset)

        found = [await offset(each) for each in (*times, times[1] + 60_000, EARLIEST, LATEST)]
        client.close()
    assert found == [0, 10, -1, 0, 20]


async def test_what_is_not_there_is_named_for_what_it_is() -> None:
    log = EdgeLog()
    log.append(*records(0, [b"x"] * 5))
    async with running_hub(MemoryStore(), shards=1, **KAFKA) as hub, asyncio.timeout(PATIENCE_S):
        await deliver(hub, log, 5)
        client = await RawClient.to(hub.kafka_port)
        wanted = {
            ("telemetry", 0): (6, ErrorCode.offset_out_of_range),
            ("telemetry", 9): (0, ErrorCode.unknown_topic_or_partition),
            ("none", 0): (0, ErrorCode.unknown_topic_or_partition),
            ("No Name", 0): (0, ErrorCode.unknown_topic_or_partition),
        }
        for place, (at, error) in wanted.items():
            answer = await client.ask(fetch({place: at}, wait_s=60))
            assert answer.responses[0].partitions[0].error_code is error, place
        found = await client.ask(metadata("telemetry", "none"))
        assert {each.name: each.error_code for each in found.topics} == {
            "telemetry": ErrorCode.none,
            "none": ErrorCode.unknown_topic_or_partition,
        }
        client.close()


async def test_a_fetch_waits_for_records_and_no_longer() -> None:
    log, epochs = EdgeLog(), MemoryEpochs()
    log.append(*records(0, [b"x"] * 5))
    async with (
        running_hub(MemoryStore(), shards=1, **KAFKA) as hub,
        running_link(hub, log, EDGE, epochs=epochs),
        asyncio.timeout(PATIENCE_S),
    ):
        await log.until_released(5)
        client = await RawClient.to(hub.kafka_port)
        empty = await client.ask(fetch({("telemetry", 0): 5}, wait_s=0.05))
        assert (empty.responses[0].partitions[0].high_watermark, empty.responses[0].partitions[0].records) == (5, b"")
        waiting = asyncio.create_task(client.ask(fetch({("telemetry", 0): 5}, wait_s=30)))
        await asyncio.sleep(0)
        log.append(*records(5, [b"new"]))
        part = (await waiting).responses[0].partitions[0]
        assert b"new" in part.records
        assert part.high_watermark == 6
        client.close()


async def test_each_process_leads_the_partitions_of_its_shards() -> None:
    store, logs, epochs = MemoryStore(), [EdgeLog() for _ in range(6)], [MemoryEpochs() for _ in range(6)]
    settings = {"shards": 4, "beat_interval_s": 0.05, **KAFKA}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE_S))
        hubs = [await stack.enter_async_context(running_hub(store, **settings)) for _ in range(2)]
        for number, (log, epoch) in enumerate(zip(logs, epochs, strict=True)):
            log.append(*records(0, [b"%d-%d" % (number, each) for each in range(20)]))
            identity = LinkIdentity("default", f"press-{number}", 0xABC + number, "test")
            await stack.enter_async_context(running_link(hubs[number % 2], log, identity, epochs=epoch))
        for log in logs:
            await log.until_released(20)
        client = await RawClient.to(hubs[0].kafka_port)

        async def leaders() -> set[int]:
            found = await client.ask(metadata("telemetry"))
            return {each.leader_id for each in found.topics[0].partitions}

        async def are_two() -> bool:
            return len(await leaders()) == 2

        await until(are_two)
        found = await client.ask(metadata("telemetry"))
        assert {each.port for each in found.brokers} == {each.kafka_port for each in hubs}
        assert {each.node_id for each in found.brokers} == await leaders()
        client.close()
        places = dict.fromkeys(range(4), 0)
        got = await asyncio.to_thread(read_all, consumer(hubs[1]), places, 120)
    assert sorted(each.value() for each in got) == sorted(b"%d-%d" % (n, each) for n in range(6) for each in range(20))
    for shard in places:
        offsets = [each.offset() for each in got if each.partition() == shard]
        assert offsets == list(range(len(offsets)))


async def test_a_client_is_sent_to_the_leader_by_an_error_that_it_survives() -> None:
    store, settings = MemoryStore(), {"shards": 4, "beat_interval_s": 0.05, **KAFKA}
    log = EdgeLog()
    log.append(*records(0, [b"x"] * 5))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE_S))
        hubs = [await stack.enter_async_context(running_hub(store, **settings)) for _ in range(2)]
        await deliver(hubs[0], log, 5)
        clients = [await RawClient.to(each.kafka_port) for each in hubs]

        async def refused(client: RawClient, shard: int) -> ErrorCode:
            part = (await client.ask(fetch({("telemetry", shard): 0}))).responses[0].partitions[0]
            return part.error_code

        async def each_has_one_leader() -> bool:
            found = [[await refused(each, shard) for shard in range(4)] for each in clients]
            assert {*found[0], *found[1]} <= {ErrorCode.none, ErrorCode.not_leader_or_follower}
            return all(len(set(pair)) == 2 for pair in zip(*found, strict=True))

        await until(each_has_one_leader)
        offsets = await clients[0].ask(list_offsets({("telemetry", shard): LATEST for shard in range(4)}))
        for topic in offsets.topics:
            (part,) = topic.partitions
            assert part.error_code is await refused(clients[0], part.partition_index)
        for each in clients:
            each.close()


async def test_a_shard_that_is_loaded_is_asked_for_again() -> None:
    view = ShardsView({}, [], {0: "it is being loaded"})
    assert Partitions(view, Led(1, frozenset({0}))).state(0) is ErrorCode.not_leader_or_follower


async def test_an_offset_above_an_old_end_is_not_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"x"] * 5))
    async with running_hub(MemoryStore(), shards=1, **KAFKA) as hub, asyncio.timeout(PATIENCE_S):
        await deliver(hub, log, 5)
        client, (sequencer,) = await RawClient.to(hub.kafka_port), hub.sequencers

        async def error() -> ErrorCode:
            answer = await client.ask(fetch({("telemetry", 0): 6}, wait_s=60))
            return answer.responses[0].partitions[0].error_code

        assert await error() is ErrorCode.offset_out_of_range
        with monkeypatch.context() as patched:
            patched.setattr(type(sequencer), "trouble", property(lambda _: "the store does not answer"))
            assert await error() is ErrorCode.offset_not_available
        client.close()


async def test_a_consumer_passes_what_was_erased_and_reaches_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def erased(*_: object) -> RangeSet:
        return RangeSet([(0, 40), (60, 100)])

    monkeypatch.setattr(RecordReader, "erased", erased)
    monkeypatch.setattr(partitions, "RUN_UNPACKED_BYTES", 1)
    log, epochs = EdgeLog(), MemoryEpochs()
    async with (
        running_hub(MemoryStore(), shards=1, **KAFKA) as hub,
        running_link(hub, log, EDGE, epochs=epochs),
        asyncio.timeout(PATIENCE_S),
    ):
        for first in range(0, 100, 10):
            log.append(*records(first, [b"%d" % each for each in range(first, first + 10)]))
            await log.until_released(first + 10)
        made = consumer(hub, enable_partition_eof=True)

        def read() -> tuple[list[int], int]:
            made.assign([confluent_kafka.TopicPartition("telemetry", 0, 0)])
            found: list[int] = []
            while True:
                (got,) = made.consume(1, PATIENCE_S)
                if got.error() is not None:
                    assert got.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, got.error()
                    made.close()
                    return found, got.offset()
                found.append(got.offset())

        assert await asyncio.to_thread(read) == (list(range(40, 60)), 100)
        place = TopicPartition("telemetry", 0)
        async with AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{hub.kafka_port}") as other:
            other.assign([place])
            other.seek(place, 0)
            got = [(await other.getone()).offset for _ in range(20)]
            assert got == list(range(40, 60))


async def test_a_waiting_fetch_looks_at_nothing_while_other_streams_get_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, other, looks = EdgeLog(), EdgeLog("other"), []
    of_stream = ShardViews.of_stream

    async def counted(self: ShardViews, *key: str) -> ShardsView:
        looks.append(key)
        return await of_stream(self, *key)

    async with (
        running_hub(MemoryStore(), shards=1, **KAFKA) as hub,
        running_link(hub, log, EDGE),
        running_link(hub, other, LinkIdentity("default", "press-2", 0xDEF, "t")),
        asyncio.timeout(PATIENCE_S),
    ):
        log.append(*records(0, [b"x"]))
        await log.until_released(1)
        client = await RawClient.to(hub.kafka_port)
        await client.ask(fetch({("telemetry", 0): 0}))
        monkeypatch.setattr(ShardViews, "of_stream", counted)
        waiting = asyncio.create_task(client.ask(fetch({("telemetry", 0): 1}, wait_s=30)))
        (part,) = [each for each in hub.parts if isinstance(each, KafkaListener)]
        await until(lambda: part.counters.requests == 2)
        for each in range(20):
            other.append(*records(each, [b"y"]))
            await other.until_released(each + 1)
        assert len(looks) <= 1, "its own first one"
        log.append(*records(1, [b"new"]))
        assert b"new" in (await waiting).responses[0].partitions[0].records
        client.close()


async def test_a_fetch_answers_with_what_it_has_while_other_partitions_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "FILL_S", 0.05)
    read, logs = PartitionReads.read, [EdgeLog("first"), EdgeLog("second")]

    async def slow(self: PartitionReads, reader: Any, place: Any, *args: Any) -> Any:
        if place.stream[1] == "second":
            await asyncio.Event().wait()
        return await read(self, reader, place, *args)

    monkeypatch.setattr(PartitionReads, "read", slow)
    async with running_hub(MemoryStore(), shards=1, **KAFKA) as hub, asyncio.timeout(PATIENCE_S):
        for number, log in enumerate(logs):
            log.append(*records(0, [b"x"]))
            await deliver(hub, log, 1, LinkIdentity("default", f"press-{number}", 0xABC + number, "test"))
        client = await RawClient.to(hub.kafka_port)
        answer = await client.ask(fetch({("first", 0): 0, ("second", 0): 0}, wait_s=1.0))
        sizes = {each.topic: len(each.partitions[0].records or b"") for each in answer.responses}
        answer = await client.ask(fetch({("second", 0): 0}, wait_s=0.1))
        assert not answer.responses[0].partitions[0].records, "an empty answer in time"
        client.close()
    assert sizes["second"] == 0


async def test_the_search_for_the_begin_of_logs_has_one_budget_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = EdgeLog(), EdgeLog("other")
    async with (
        running_hub(MemoryStore(), shards=1, **KAFKA) as hub,
        running_link(hub, log, EDGE),
        asyncio.timeout(PATIENCE_S),
    ):
        (sequencer,) = hub.sequencers
        log.append(*records(0, [b"x"]))
        await log.until_released(1)
        async with running_link(hub, other, LinkIdentity("default", "press-2", 0xDEF, "t")):
            for each in range(20):
                other.append(*records(each, [b"y"]))
                await other.until_released(each + 1)
        log.append(*records(1, [b"x"]))
        await log.until_released(2)
        manifest, etag = await sequencer.log.manifest()
        await sequencer.log.swap_manifest(changed(manifest, watermark=sequencer.state.n - 15), etag)
        searched: list[int] = []
        monkeypatch.setattr(broker, "Search", lambda: Search(4))
        index = sequencer.log.index

        async def counted(n: int, **only: Any) -> Any:
            searched.append(n)
            return await index(n, **only)

        monkeypatch.setattr(sequencer.log, "index", counted)
        client = await RawClient.to(hub.kafka_port)
        answers: list[int | None] = []
        while not answers or answers[-1] is None:
            searched.clear()
            answer = await client.ask(list_offsets({("telemetry", 0): EARLIEST}))
            (part,) = answer.topics[0].partitions
            assert part.error_code in (ErrorCode.none, ErrorCode.request_timed_out)
            answers.append(part.offset if part.error_code is ErrorCode.none else None)
            assert len(searched) < 16, "a request has its budget"
        assert len(answers) > 2
        assert answers[-1] == 1, "no guess, which a fetch would refuse"
        part = (await client.ask(fetch({("telemetry", 0): 1}))).responses[0].partitions[0]
        assert part.error_code is ErrorCode.none
        assert part.records
        part = (await client.ask(fetch({("telemetry", 0): 0}))).responses[0].partitions[0]
        assert part.error_code is ErrorCode.offset_out_of_range
        client.close()


async def test_a_negative_offset_of_what_cannot_be_read_is_refused_as_any(caplog: pytest.LogCaptureFixture) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"x"] * 5))
    async with running_hub(MemoryStore(), shards=1, **KAFKA) as hub, asyncio.timeout(PATIENCE_S):
        await deliver(hub, log, 5)
        client = await RawClient.to(hub.kafka_port)
        for place, error in {
            ("none", 0): ErrorCode.unknown_topic_or_partition,
            ("telemetry", -3): ErrorCode.unknown_topic_or_partition,
            ("telemetry", 0): ErrorCode.offset_out_of_range,
        }.items():
            answer = await client.ask(fetch({place: -2}))
            assert answer.responses[0].partitions[0].error_code is error
        client.close()
    assert not [each for each in caplog.records if each.exc_info]


async def test_a_new_topic_is_found_beside_many_dead_names() -> None:
    looked: list[str] = []

    class Views:
        async def of_stream(self, _: str, name: str) -> ShardsView:
            looked.append(name)
            return ShardsView({}, [], {})

    class Nothing:
        async def every(self) -> Nothing:
            return self

        async def streams(self, _: str) -> dict[str, Any]:
            return {}

    topics = Topics(Views(), Nothing(), iter(range(0, 1000, 10)).__next__)  # type: ignore[arg-type]
    names = [f"a{each}" for each in range(3 * UNLISTED_MAX)]
    for _ in range(4):
        await topics.errors(Client(None, READER, "127.0.0.1"), [*names, "new"])
    assert "new" in looked
    assert len(looked) == 4 * UNLISTED_MAX


async def test_all_processes_have_one_number_for_a_broker() -> None:
    assert broker_id("host:8090") == broker_id("host:8090") != broker_id("host:8091")
    assert 0 <= broker_id("host:8090") < 1 << 31
