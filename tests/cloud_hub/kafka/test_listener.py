"""Connections of Kafka's clients: who comes in, what each sees, and what a hostile one can do."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("kio", reason="kio is not installed: pip install weft-fabric[kafka]")
pytest.importorskip("aiokafka", reason="aiokafka is not installed: pip install weft-fabric[kafka]")

from kio.schema.errors import ErrorCode

from tests.cloud_hub.http.test_application import deliver, records
from tests.cloud_hub.kafka.frames import SEEDS, RawClient, fetch, framed, list_offsets, metadata, plain
from tests.cloud_hub.live import EdgeLog, running_hub
from tests.support.tokens import create_token, withdraw_token
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.kafka import listener
from weft.hub_api.rights import Scope
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    log = EdgeLog()
    log.append(*records(0, [b"%d" % each for each in range(10)]))
    async with running_hub(MemoryStore(), shards=1, kafka_port=0) as hub, asyncio.timeout(PATIENCE_S):
        await deliver(hub, log, 10)
        yield hub


async def read(client: RawClient, stream: str = "telemetry") -> tuple[ErrorCode, bytes]:
    answer = await client.ask(fetch({(stream, 0): 0}))
    (part,) = answer.responses[0].partitions
    return part.error_code, part.records or b""


async def test_a_token_opens_the_streams_of_its_tenant_that_it_may_read(tmp_path: Path) -> None:
    path, store = str(tmp_path / "tokens"), MemoryStore()
    names = ("good", "evil")
    edges = {each: create_token(path, f"{each}-edge", Scope.EDGE, each, "press-1") for each in names}
    readers = {each: create_token(path, f"{each}-reader", Scope.READER, each) for each in names}
    other = create_token(path, "other", Scope.GRANTED, "good", grants=("read:vibration",))
    async with (
        running_hub(store, shards=1, kafka_port=0, tokens=path, cluster_log_interval_s=0.02) as hub,
        asyncio.timeout(PATIENCE_S),
    ):
        for name in names:
            log = EdgeLog()
            log.append(*records(0, [name.encode()] * 3))
            await deliver(hub, log, 3, LinkIdentity(name, "press-1", 0xABC, "test"), edges[name])
        for refused in ("", "wrong", edges["good"]):
            client = await RawClient.to(hub.kafka_port)
            answer = await client.ask(plain(refused))
            assert answer.error_code is ErrorCode.sasl_authentication_failed
            assert await client.is_closed()
        client = await RawClient.to(hub.kafka_port)
        client.writer.write(framed(3, 8, metadata()))
        assert await client.is_closed()
        for name in names:
            client = await RawClient.to(hub.kafka_port)
            assert (await client.ask(plain(readers[name]))).error_code is ErrorCode.none
            error, data = await read(client)
            assert (error, name.encode() in data) == (ErrorCode.none, True)
            assert [each.name for each in (await client.ask(metadata())).topics] == ["telemetry"]
            assert (await client.ask(plain(readers[name]))).error_code is ErrorCode.none
            if name == "good":
                good = client
        granted = await RawClient.to(hub.kafka_port)
        await granted.ask(plain(other))
        assert await read(granted) == (ErrorCode.topic_authorization_failed, b"")
        assert (await granted.ask(metadata())).topics == ()
        offsets = await granted.ask(list_offsets({("telemetry", 0): -1}))
        assert offsets.topics[0].partitions[0].error_code is ErrorCode.topic_authorization_failed
        await withdraw_token(store, "good-reader")

        async def is_out() -> bool:
            good.writer.write(framed(3, 8, metadata()))
            try:
                (length,) = struct.unpack(">i", await good.reader.readexactly(4))
                await good.reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return True
            return False

        await until(is_out)


async def test_a_connection_keeps_its_token(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    first, second = (create_token(path, each, Scope.READER, each) for each in ("good", "evil"))
    async with running_hub(MemoryStore(), kafka_port=0, tokens=path) as hub, asyncio.timeout(PATIENCE_S):
        client = await RawClient.to(hub.kafka_port)
        await client.ask(plain(first))
        client.writer.write(framed(36, 1, plain(second)))
        assert await client.is_closed()


HOSTILE: dict[str, bytes] = {
    "a browser": b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no length": struct.pack(">i", 0),
    "a negative length": struct.pack(">i", -5),
    "too long": struct.pack(">i", listener.FRAME_BYTES_MAX + 1),
    "too many topics": framed(3, 8, metadata(*map(str, range(listener.TOPICS_MAX + 1)))),
    "an unknown request": struct.pack(">ihhih", 10, 99, 0, 7, -1),
    "records without an acknowledgement": framed(0, 7, SEEDS[0][2]).replace(b"\0\1\0\0\x03\xe8", b"\0\0\0\0\x03\xe8"),
}


@pytest.mark.parametrize("sent", HOSTILE)
async def test_what_is_no_request_ends_its_connection_alone(hub: Hub, sent: str) -> None:
    client, other = await RawClient.to(hub.kafka_port), await RawClient.to(hub.kafka_port)
    client.writer.write(HOSTILE[sent])
    assert await client.is_closed()
    assert (await read(other))[0] is ErrorCode.none
    other.close()


async def test_damaged_requests_harm_no_one_else(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(11)
    good = await RawClient.to(hub.kafka_port)
    for _ in range(150):
        frame = bytearray(framed(*chance.choice(SEEDS)))
        for _ in range(chance.randint(1, 3)):
            frame[chance.randrange(4, len(frame))] = chance.randrange(256)
        client = await RawClient.to(hub.kafka_port)
        client.writer.write(bytes(frame))
        client.writer.write_eof()
        client.close()
        if chance.random() < 0.1:
            assert (await read(good))[0] is ErrorCode.none
    assert (await read(good))[0] is ErrorCode.none
    assert not [each for each in caplog.records if each.exc_info], "no request is a surprise"
    good.close()


async def test_a_token_has_its_share_of_the_connections(hub: Hub) -> None:
    share = listener.CONNECTIONS_MAX // 8
    clients = [await RawClient.to(hub.kafka_port) for _ in range(share)]
    for each in clients:
        await each.ask(metadata("telemetry"))
    more = await RawClient.to(hub.kafka_port)
    more.writer.write(framed(3, 8, metadata()))
    assert await more.is_closed()
    clients.pop().close()

    async def is_in() -> bool:
        client = await RawClient.to(hub.kafka_port)
        client.writer.write(framed(3, 8, metadata()))
        got = await client.reader.read(4)
        client.close()
        return len(got) == 4

    await until(is_in)
    for each in clients:
        each.close()


async def test_a_producer_is_refused(hub: Hub) -> None:
    client = await RawClient.to(hub.kafka_port)
    answer = await client.ask(SEEDS[0][2])
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.topic_authorization_failed
    client.close()


async def test_figures_count_connections_and_requests(hub: Hub) -> None:
    client = await RawClient.to(hub.kafka_port)
    await read(client)
    (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
    found = {each.name: each.value for each in part.samples()}
    assert found["weft_hub_kafka_connections"] == 1
    assert found["weft_hub_kafka_requests_total"] == 1
    assert found["weft_hub_kafka_sent_bytes_total"] > 0
    client.close()


async def test_a_partition_that_is_named_thousands_of_times_is_looked_at_once(hub: Hub) -> None:
    (sequencer,) = hub.sequencers
    looked, manifest = [], sequencer.log.manifest

    async def counted() -> object:
        looked.append(1)
        return await manifest()

    client = await RawClient.to(hub.kafka_port)
    await read(client)
    sequencer.log.manifest = counted  # type: ignore[method-assign, assignment]
    body = list_offsets({("telemetry", 0): -2})
    (topic,) = body.topics
    many = replace(body, topics=(replace(topic, partitions=topic.partitions * 5000),))
    (answered,) = (await client.ask(many)).topics
    assert {each.offset for each in answered.partitions} == {0}
    assert len(answered.partitions) == 5000
    assert len(looked) == 1
    client.close()
