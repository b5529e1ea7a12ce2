"""Clients that want to make the node hold, or do, more than their share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, serving
from tests.edge_node.servers.mqtt.harness import SyncGate
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import PATIENCE_S
from weft.protocols.amqp.frames import HEADER, HEARTBEAT_FRAME, PROTOCOL_HEADER, ReplyCode, frame
from weft.protocols.amqp.methods import commands, write_method

Basic, Confirm = commands.Basic, commands.Confirm


def begun(channel: int, size: int) -> bytes:
    """Most of a message."""
    head = write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), channel)
    head += frame(HEADER, channel, b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0")
    return head + frame(3, channel, bytes(size - 1))


async def test_messages_that_never_come_whole_take_a_share_of_the_memory(tmp_path: Path) -> None:
    """506 resource-error, and nothing stays charged."""
    async with serving(tmp_path, unfinished_bytes=1_000_000, user_share=0.3) as node:
        client = await RawClient.connect(node.port, user=b"mallory", channels=10)
        for channel in range(1, 11):
            client.send(begun(channel, 50_000))
        assert (await client.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR
        assert node.context.unfinished.used == 0
        other = await RawClient.connect(node.port, user=b"ann", channels=2)
        other.send(begun(1, 50_000))
        await other.ask(Confirm.Select(), Confirm.SelectOk, 2)
        assert node.context.unfinished.used >= 49_999
        await other.close()
        async with asyncio.timeout(PATIENCE_S):
            while node.context.unfinished.used:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_a_frame_that_never_comes_whole_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.edge_node.servers.amqp.connection.CLOSE_S_MAX", 0.1)
    async with serving(tmp_path, unfinished_bytes=200_000) as node:
        client = await RawClient.connect(node.port)
        client.send(b"\x03\0\x01\0\1\0\0" + bytes(60_000))
        assert (await client.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR


async def test_a_channel_has_so_many_gets_that_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """406 precondition-failed; the other channels continue, and nothing stays charged."""
    monkeypatch.setattr("weft.edge_node.servers.amqp.consuming.GETS_MAX", 20)
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port, channels=2)
        await client.ask(commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        await client.ask(Confirm.Select(), Confirm.SelectOk)
        client.publish("q", b"1", exchange="")
        await client.expect(Basic.Ack)
        with gate.held():
            client.send(*[Basic.Get(queue="q", no_ack=True)] * 21, channel=1)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                while node.queues.bounds.unacknowledged.used:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        closed = await client.expect(commands.Channel.Close, 1)
        assert closed.reply_code == ReplyCode.PRECONDITION_FAILED
        client.send(commands.Channel.CloseOk(), channel=1)
        client.send(Basic.Get(queue="q", no_ack=True), channel=2)
        assert (await client.content(Basic.GetOk)).body == b"1"


@pytest.mark.parametrize("data", [b"\x01\0\0\x7f\xff\xff\xff", b"\x01\0\0\0\0\x40\0" + bytes(10)])
async def test_frames_of_strangers_are_short(tmp_path: Path, data: bytes) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.open(node.port)
        client.send(PROTOCOL_HEADER)
        await client.expect(commands.Connection.Start)
        client.send(data)
        assert await client.closed()


@pytest.mark.parametrize("size", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
async def test_a_body_that_cannot_be_taken_is_refused_when_it_is_announced(tmp_path: Path, size: int) -> None:
    """311 content-too-large, and nothing is held for it."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.send(write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), 1))
        client.send(frame(HEADER, 1, b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0"))
        assert (await client.channel_error()).reply_code == ReplyCode.CONTENT_TOO_LARGE
        assert node.context.unfinished.used == 0


async def test_a_frame_longer_than_was_agreed_is_refused_by_its_length(tmp_path: Path) -> None:
    """501 frame-error, before its bytes have come."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.send(b"\x03\0\1\xff\xff\xff\xff")
        assert (await client.connection_error()).reply_code == ReplyCode.FRAME_ERROR
        assert node.context.unfinished.used == 0


FLOODS = {
    "heartbeats": HEARTBEAT_FRAME * 60_000,
    "methods": write_method(Basic.Qos(prefetch_count=1), 1) * 30_000,
    "declarations": write_method(commands.Queue.Declare(0, "q", passive=True), 1) * 10_000,
    "empty publishes": write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), 1) * 0
    + (write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), 1) + frame(HEADER, 1, b"\0\x3c" + bytes(12))) * 20_000,
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_does_not_hold_up_others(tmp_path: Path, flood: str) -> None:
    """A client's turn ends after some milliseconds, whatever it has sent."""
    async with serving(tmp_path) as node:
        mallory = await RawClient.connect(node.port, user=b"mallory")
        await mallory.ask(commands.Queue.Declare(0, "q"), commands.Queue.DeclareOk)
        ann = await RawClient.connect(node.port, user=b"ann")
        await ann.ask(Confirm.Select(), Confirm.SelectOk)
        mallory.send(FLOODS[flood])
        reading = asyncio.create_task(drain(mallory))
        waits = []
        for _ in range(10):
            stopwatch = Stopwatch()
            ann.publish("plant.1.a", b"x")
            await ann.expect(Basic.Ack)
            waits.append(stopwatch.seconds())
        assert sorted(waits)[5] < 0.5
        reading.cancel()


async def drain(client: RawClient) -> None:
    while await client.reader.read(1 << 16):
        pass


async def test_publishers_wait_while_too_much_waits_for_the_disk(tmp_path: Path) -> None:
    """Back-pressure: one turn of reads beyond the bound, and no more."""
    from tests.edge_node.servers.mqtt.harness import SyncGate

    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate, pending_bytes=200_000) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Confirm.Select(), Confirm.SelectOk)
        with gate.held():
            sent = asyncio.create_task(flood(client, 400))
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            await asyncio.sleep(0.2)
            assert node.log.pending_bytes < 2 << 20
            assert not sent.done()
        await sent
        tag = 0
        while tag < 400:
            ack: Any = await client.expect(Basic.Ack)
            tag = ack.delivery_tag


async def flood(client: RawClient, count: int) -> None:
    for _ in range(count):
        client.publish("plant.1.a", bytes(60_000))
        await client.writer.drain()


async def test_counters_tell_of_channels(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port, channels=3)
        assert node.counters.amqp_channels == 3
        await client.close()
        await gone(node)
        assert node.counters.amqp_channels == 0
        assert node.amqp._shared.channels.used == 0


async def gone(node: AmqpNode) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while node.amqp._shared.clients:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
