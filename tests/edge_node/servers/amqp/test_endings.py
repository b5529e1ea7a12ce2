"""Channels and connections that end while something is still to be answered."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.edge_node.servers.amqp.harness import RawClient, serving
from tests.edge_node.servers.mqtt.harness import SyncGate
from tests.support.waiting import PATIENCE_S
from weft.edge_node.servers.amqp.publishing import Publishing
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import FRAME_BYTES_MIN, ReplyCode
from weft.protocols.amqp.methods import Method, commands
from weft.storage.segment_log import LogSettings

Basic, Channel, Connection, Queue = commands.Basic, commands.Channel, commands.Connection, commands.Queue


async def test_a_channel_whose_publishes_find_no_room_is_not_closed_in_good_order(tmp_path: Path) -> None:
    """channel.close-ok says that what came before is stored: without confirms a client has no other word for it."""
    settings = LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 20)
    async with serving(tmp_path, log_settings=settings) as node:
        client = await RawClient.connect(node.port)
        frame, closed = None, 0
        for _ in range(2_000):
            body = write_content(1, b"\0\0", os.urandom(4_000), FRAME_BYTES_MIN)
            client.send(Basic.Publish(0, "amq.topic", "plant.1.a"), body, Channel.Close(200, "bye", 0, 0), channel=1)
            frame = await client.frame()
            assert frame is not None
            if frame.payload[:4] != Channel.CloseOk.index.to_bytes(4, "big"):
                break
            closed += 1
            await client.ask(Channel.Open(), Channel.OpenOk)
        assert frame is not None
        assert frame.payload[:4] == Connection.Close.index.to_bytes(4, "big")
        assert len(await node.stored()) == closed


@pytest.mark.parametrize("close", [Channel.Close(200, "bye", 0, 0), Connection.Close(200, "bye", 0, 0)])
async def test_no_close_is_answered_when_the_disk_failed(tmp_path: Path, close: Method) -> None:
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port)
        with gate.held():
            client.publish("plant.1.a", b"x")
            client.send(close, channel=1 if isinstance(close, Channel.Close) else 0)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            gate.error = OSError(5, "the disk is gone")
        answer = await client.frame()
        assert answer is None or answer.payload[:4] == Connection.Close.index.to_bytes(4, "big")
        if answer is not None:
            assert int.from_bytes(answer.payload[4:6], "big") == ReplyCode.INTERNAL_ERROR


async def test_a_channel_that_closes_takes_no_message_that_it_still_waited_for(tmp_path: Path) -> None:
    """basic.get of a message whose commit is not over."""
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port, channels=2)
        await client.ask(Queue.Declare(0, "q", durable=True), Queue.DeclareOk)
        client.publish("q", b"x", exchange="")
        assert (await client.ask(Queue.Declare(0, "q", passive=True), Queue.DeclareOk)).message_count == 1
        with gate.held():
            client.send(Basic.Get(0, "q"), channel=1)
            client.publish("nowhere", b"x", exchange="nowhere")
            error = await client.expect(Channel.Close, 1)
            assert error.reply_code == ReplyCode.NOT_FOUND
        client.send(Channel.CloseOk(), channel=1)
        await client.ask(Channel.Open(), Channel.OpenOk, 1)
        await client.ask(Basic.Get(0, "q"), Basic.GetOk, 2)


@pytest.mark.parametrize("method", [Queue.Delete(0, "q"), Queue.Purge(0, "q"), Queue.Unbind(0, "q", "amq.topic", "a")])
async def test_what_was_taken_away_is_gone_for_good_when_that_is_answered(tmp_path: Path, method: Method) -> None:
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Queue.Declare(0, "q", durable=True), Queue.DeclareOk)
        await client.ask(Queue.Bind(0, "q", "amq.topic", "a"), Queue.BindOk)
        client.publish("q", b"x", exchange="")
        await client.ask(Queue.Declare(0, "q", passive=True), Queue.DeclareOk)
        with gate.held():
            client.send(method, channel=1)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            assert await client.silent()
        frame = await client.frame()
        assert frame is not None
        assert frame.payload[:4] == (method.index + 1).to_bytes(4, "big")


async def test_a_mistake_of_the_node_ends_the_connection_that_met_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the client waited for its turn, so that nothing above would close it."""

    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        monkeypatch.setattr(Publishing, "check", fail)
        client.publish("plant.1.a", b"x")
        assert (await client.connection_error()).reply_code == ReplyCode.INTERNAL_ERROR


@pytest.mark.parametrize("is_clients", [True, False], ids=["the client closes", "the node closes"])
async def test_what_a_client_sends_behind_its_last_word_is_no_reset(tmp_path: Path, is_clients: bool) -> None:
    """connection.close, connection.close-ok: the node reads and drops until the client closes the connection."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        if is_clients:
            client.send(Connection.Close(200, "bye", 0, 0))
        else:
            client.send(b"\x03\0\x00\0\0\0\x01x\xce")
            await client.expect(Connection.Close)
            client.send(Connection.CloseOk())
        for _ in range(30):
            client.publish("plant.1.a", b"x" * 8192)
            await client.writer.drain()
            await asyncio.sleep(0.001)  # each write is a segment of its own, as those of clients are
        if is_clients:
            await client.expect(Connection.CloseOk)
        client.publish("plant.1.a", b"after close-ok")
        client.writer.write_eof()
        assert await client.reader.read() == b"", "no reset, and nothing more is answered"
        assert await node.stored() == []
        assert node.counters_of_node.connections == 0


async def test_a_client_that_never_closes_is_closed_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By time, by bytes, and when the node stops; it counts as a connection of its user until then."""
    module = "weft.edge_node.servers.amqp.connection"
    async with serving(tmp_path) as node:

        async def closing() -> RawClient:
            client = await RawClient.connect(node.port)
            await client.ask(Connection.Close(200, "bye", 0, 0), Connection.CloseOk, 0)
            return client

        stays = await closing()
        assert node.counters_of_node.connections == 1
        monkeypatch.setattr(f"{module}.LINGER_BYTES_MAX", 1 << 20)
        floods = await closing()
        floods.send(b"x" * (2 << 20))
        assert await floods.closed()
        monkeypatch.setattr(f"{module}.LINGER_S_MAX", 0.1)
        assert await (await closing()).closed()
        await node.amqp.close()
        assert await stays.closed()
