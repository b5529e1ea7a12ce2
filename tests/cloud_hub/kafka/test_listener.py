"""Connections of Kafka's clients: who comes in, what each sees, and what a hostile one can do."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("kio", reason="kio is not installed: pip install weft-fabric[kafka]")
pytest.importorskip("aiokafka", reason="aiokafka is not installed: pip install weft-fabric[kafka]")

from kio.schema.errors import ErrorCode

from tests.cloud_hub.http.test_application import EDGE, deliver, records
from tests.cloud_hub.kafka.frames import SEEDS, RawClient, fetch, framed, list_offsets, metadata, plain
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.support.tokens import create_token, withdraw_token
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import NestedShares, Rates, address_owner
from weft.cloud_hub.auth.access import Charged, charged_to
from weft.cloud_hub.auth.claims import JwtIdentity
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.kafka import listener, messages, partitions
from weft.cloud_hub.kafka.messages import Request
from weft.cloud_hub.kafka.messages import decode as decode_frame
from weft.cloud_hub.kafka.topics import Client
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


async def test_a_waiting_fetch_gets_no_record_after_its_token_was_withdrawn(tmp_path: Path) -> None:
    path, store, log = str(tmp_path / "tokens"), MemoryStore(), EdgeLog()
    edge = create_token(path, "edge", Scope.EDGE, edge="press-1")
    reader = create_token(path, "reader", Scope.READER)
    log.append(*records(0, [b"x"] * 5))
    async with (
        running_hub(store, shards=1, kafka_port=0, tokens=path, cluster_log_interval_s=0.02) as hub,
        running_link(hub, log, EDGE, edge),
        asyncio.timeout(PATIENCE_S),
    ):
        await log.until_released(5)
        client = await RawClient.to(hub.kafka_port)
        await client.ask(plain(reader))
        client.writer.write(framed(1, 11, fetch({("telemetry", 0): 5}, wait_s=30)))
        await withdraw_token(store, "reader")

        async def is_withdrawn() -> bool:
            other = await RawClient.to(hub.kafka_port)
            answer = await other.ask(plain(reader))
            other.close()
            return answer.error_code is ErrorCode.sasl_authentication_failed

        await until(is_withdrawn)
        log.append(*records(5, [b"SECRET"]))
        await log.until_released(6)
        assert await client.reader.read(-1) == b""


async def test_a_connection_keeps_its_token(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    first, second = (create_token(path, each, Scope.READER, each) for each in ("good", "evil"))
    async with running_hub(MemoryStore(), kafka_port=0, tokens=path) as hub, asyncio.timeout(PATIENCE_S):
        client = await RawClient.to(hub.kafka_port)
        await client.ask(plain(first))
        client.writer.write(framed(36, 1, plain(second)))
        assert (await client.reader.read(-1))[8:10] == struct.pack(">h", ErrorCode.sasl_authentication_failed)


def test_a_renewed_token_is_the_same_as_long_as_its_rights_are() -> None:
    def client(name: str, **fields: Any) -> Client:
        values = {"sha256": name, "scope": Scope.READER, "tenant": "good", "until": 1, "key": "k", **fields}
        identity = JwtIdentity(name="jwt:someone", **values)
        return Client(identity, charged_to(identity, "127.0.0.1"), "127.0.0.1")

    first = client("first")
    assert listener._is_same(first, client("renewed", until=2))
    assert not listener._is_same(first, client("renewed", tenant="evil"))
    assert not listener._is_same(first, client("renewed", scope=Scope.GRANTED, grants=("read:one",)))


async def test_a_token_that_ends_says_when_to_authenticate_again(tmp_path: Path) -> None:
    path, store = str(tmp_path / "tokens"), MemoryStore()
    reader = create_token(path, "reader", Scope.READER)
    async with running_hub(store, shards=1, kafka_port=0, tokens=path) as hub, asyncio.timeout(PATIENCE_S):
        (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
        client = await RawClient.to(hub.kafka_port)
        assert not (await client.ask(plain(reader))).session_lifetime
        part.access.until = lambda _: time.time_ns() + 60_000_000_000  # type: ignore[method-assign, assignment]
        assert 0 < (await client.ask(plain(reader))).session_lifetime.total_seconds() <= 60
        client.close()


async def test_a_client_without_a_token_has_few_requests_and_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "tokens")
    reader = create_token(path, "reader", Scope.READER)
    async with running_hub(MemoryStore(), shards=1, kafka_port=0, tokens=path) as hub, asyncio.timeout(PATIENCE_S):
        (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
        client, before = await RawClient.to(hub.kafka_port), part.counters.requests
        client.writer.write(framed(*ASKED_FIRST) * 20)
        assert await client.is_closed()
        assert part.counters.requests - before == listener.REQUESTS_BEFORE
        kept: list[int] = []
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.StreamReader, "feed_data", lambda _, data: kept.append(len(data)))
            accepted = SimpleNamespace(is_half_open=True, transport=SimpleNamespace(abort=lambda: kept.append(0)))
            protocol = listener._Protocol(cast("Any", accepted), cast("Any", None))
            protocol.data_received(bytes(listener.READ_BYTES_BEFORE + 1))
        assert kept == [0], "it is disconnected, and nothing of it is kept"
        client = await RawClient.to(hub.kafka_port)
        for _ in range(listener.REQUESTS_BEFORE - 1):
            client.writer.write(framed(*ASKED_FIRST))
        client.writer.write(framed(36, 1, plain(reader)))
        await client.reader.readexactly(1)
        client.close()


ASKED_FIRST = next(each for each in SEEDS if each[0] == messages.API_VERSIONS)


async def test_a_pipelined_request_is_a_step_of_its_own_that_its_client_pays_for(hub: Hub) -> None:
    (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
    client, charged, steps = await RawClient.to(hub.kafka_port), [], [0]
    await read(client)
    charge = part.time.charge

    def noted(owners: Charged, seconds: float) -> None:
        charged.append(steps[0])
        charge(owners, seconds)

    async def step() -> None:
        while True:
            steps[0] += 1
            await asyncio.sleep(0)

    part.time.charge = noted  # type: ignore[method-assign, assignment]
    other = asyncio.create_task(step())
    client.writer.write(framed(*ASKED_FIRST) * 200)
    await until(lambda: len(charged) >= 200)
    other.cancel()
    assert len(set(charged)) >= 200
    client.close()


async def test_a_client_that_leaves_ends_its_waiting_fetch(hub: Hub) -> None:
    (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
    client = await RawClient.to(hub.kafka_port)
    await read(client)
    client.writer.write(framed(1, 11, fetch({("telemetry", 0): 10}, wait_s=30)))
    await until(lambda: part.counters.requests == 2)
    client.close()
    await until(lambda: not part.counters.connections and not part._open)


async def test_a_request_in_debt_waits_before_it_is_decoded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
    client, now = await RawClient.to(hub.kafka_port), [0.0]
    await read(client)
    part.time._rates = Rates(partitions.READ_S, partitions.READ_AT_ONCE_S, lambda: now[0])
    owner = address_owner("127.0.0.1")
    part.time.charge(Charged(owner, owner), 60.0)
    decoded = []

    def decode(frame: bytes) -> Request:
        decoded.append(len(frame))
        return decode_frame(frame)

    monkeypatch.setattr(messages, "decode", decode)
    body = replace(fetch({("telemetry", 0): 0}), session_id=1)
    waiting = asyncio.create_task(client.ask(body))
    await until(lambda: part.counters.requests == 2)
    assert not decoded
    now[0] = 1000.0
    assert (await waiting).error_code is ErrorCode.fetch_session_id_not_found
    client.close()


async def test_a_long_answer_without_records_waits_for_its_room(hub: Hub) -> None:
    (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
    owner = address_owner("127.0.0.1")
    client, charged = await RawClient.to(hub.kafka_port), Charged(owner, owner)
    async with AsyncExitStack() as unread:
        for _ in range(4):
            await unread.enter_async_context(part.answers.turn(charged))
        waiting = [asyncio.create_task((await RawClient.to(hub.kafka_port)).ask(metadata()))]
        many = {(f"no-{each}", 0): 0 for each in range(200)}
        waiting.append(asyncio.create_task((await RawClient.to(hub.kafka_port)).ask(fetch(many))))
        await until(lambda: part.counters.requests == 2)
        assert (await client.ask(fetch({("telemetry", 0): 10}))).error_code is ErrorCode.none, "a short one does not"
        assert not any(each.done() for each in waiting)
    await asyncio.gather(*waiting)


async def test_long_requests_of_one_client_in_progress_have_a_bound(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
    frame = framed(1, 11, fetch({(f"no-{each}", 0): 0 for each in range(100)}))
    part._requests = NestedShares(8 * len(frame), 4 * len(frame), len(frame) - 5)
    client = await RawClient.to(hub.kafka_port)
    client.writer.write(frame)
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
    (part,) = [each for each in hub.parts if isinstance(each, listener.KafkaListener)]
    for each in clients:  # the first request of each waits, and has its place
        each.writer.write(framed(1, 11, fetch({("telemetry", 0): 10}, wait_s=30)))
    await until(lambda: part.counters.requests == share)
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
