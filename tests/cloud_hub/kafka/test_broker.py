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
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.certificates import Authority
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.kafka.broker import EARLIEST, LATEST
from weft.cloud_hub.kafka.topics import broker_id
from weft.hub_api.rights import Scope
from weft.network.tls import ClientTlsFiles, TlsFiles
from weft.protocols.batch import Flag
from weft.replication.runner import LinkIdentity
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


async def test_all_processes_have_one_number_for_a_broker() -> None:
    assert broker_id("host:8090") == broker_id("host:8090") != broker_id("host:8091")
    assert 0 <= broker_id("host:8090") < 1 << 31
