"""Classes channel, confirm and tx (AMQP 0-9-1 sections 1.5 and 1.9)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.edge_node.servers.amqp.harness import RawClient, serving
from tests.edge_node.servers.mqtt.harness import SyncGate
from tests.support.waiting import PATIENCE_S
from weft.config.limits import EdgeLimits
from weft.edge_node.ingest.record import COPY_COST
from weft.edge_node.servers.amqp import publishing
from weft.edge_node.servers.amqp.client import AmqpSettings
from weft.protocols.amqp.frames import ReplyCode
from weft.protocols.amqp.methods import commands
from weft.storage.segment_log import LogSettings

Basic, Channel, Confirm, Queue, Tx = commands.Basic, commands.Channel, commands.Confirm, commands.Queue, commands.Tx


async def test_a_channel_is_closed_when_what_came_before_is_durable(tmp_path: Path) -> None:
    """channel.open, channel.open-ok, channel.close, channel.close-ok: then its number is free again."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.publish("plant.1.a", b"x")
        await client.ask(Channel.Close(200, "bye", 0, 0), Channel.CloseOk)
        assert node.log.durable_end(node.log.streams()["telemetry"]) == 1
        await client.ask(Channel.Open(), Channel.OpenOk)
        client.publish("plant.1.a", b"y")
        await client.ask(Channel.Close(200, "bye", 0, 0), Channel.CloseOk)
        assert [record.payload for record in await node.stored()] == [b"x", b"y"]
        assert node.counters.amqp_channels == 0


async def test_both_sides_may_close_a_channel_at_once(tmp_path: Path) -> None:
    """channel.close: reply-code, reply-text, class-id, method-id."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.publish("a", b"x", exchange="nowhere")
        client.send(Channel.Close(200, "bye", 0, 0), channel=1)
        error = await client.expect(Channel.Close)
        assert (error.reply_code, error.class_id, error.method_id) == (404, 60, 40)
        assert "nowhere" in error.reply_text
        await client.expect(Channel.CloseOk)
        client.send(Channel.CloseOk(), channel=1)
        await client.ask(Channel.Open(), Channel.OpenOk)


async def test_channels_are_bounded_for_each_user(tmp_path: Path) -> None:
    """506 resource-error."""
    settings = AmqpSettings(limits=EdgeLimits(user_share=0.4), channels_total_max=10)
    async with serving(tmp_path, settings=settings) as node:
        client = await RawClient.connect(node.port, channels=3, user=b"ann")
        other = await RawClient.connect(node.port, channels=1, user=b"ann")
        other.send(Channel.Open(), channel=2)
        assert (await other.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR
        await RawClient.connect(node.port, channels=4, user=b"bob")
        await client.ask(Channel.Open(), Channel.OpenOk, 4)
        assert [each.bound for each in node.refusals] == ["limits.user_share of queues.channels"]


async def test_a_transaction_is_stored_as_a_whole_when_it_is_committed(tmp_path: Path) -> None:
    """tx.select, tx.select-ok, tx.commit, tx.commit-ok after the fsync."""
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Tx.Select(), Tx.SelectOk)
        for n in range(3):
            client.publish("plant.1.a", b"%d" % n)
        client.publish("alarm.a", b"3")
        assert await client.silent()
        assert await node.stored() == []
        with gate.held():
            client.send(Tx.Commit(), channel=1)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            assert await client.silent()
        await client.expect(Tx.CommitOk)
        assert [record.payload for record in await node.stored()] == [b"0", b"1", b"2"]
        assert [record.payload for record in await node.stored("alarms")] == [b"3"]
        assert node.context.unfinished.used == 0


async def test_what_is_rolled_back_is_forgotten(tmp_path: Path) -> None:
    """tx.rollback, tx.rollback-ok; the end of a channel rolls back as well."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port, channels=2)
        for channel in (1, 2):
            await client.ask(Tx.Select(), Tx.SelectOk, channel)
            client.publish("plant.1.a", b"no", channel=channel)
        await client.ask(Tx.Rollback(), Tx.RollbackOk)
        await client.ask(Channel.Close(200, "", 0, 0), Channel.CloseOk, 2)
        client.publish("plant.1.a", b"yes")
        await client.ask(Tx.Commit(), Tx.CommitOk)
        assert [record.payload for record in await node.stored()] == [b"yes"]


async def test_a_transaction_that_finds_no_room_is_not_stored_at_all(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=1 << 20, budget_bytes=4 << 20)
    async with serving(tmp_path, log_settings=settings) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(80):
            client.publish("plant.1.a", os.urandom(60_000))
        client.send(Tx.Commit(), channel=1)
        assert (await client.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR
        assert await node.stored() == []


async def test_a_transaction_takes_no_more_memory_than_its_user_may_have(tmp_path: Path) -> None:
    async with serving(tmp_path, unfinished_bytes=400_000) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(10_000):
            client.publish("plant.1.a", b"x")
        assert (await client.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR
        assert await node.stored() == []


async def test_a_transaction_that_would_be_a_long_step_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """406 precondition-failed at the publish that is one too many; what came before it is rolled back."""
    monkeypatch.setattr(publishing, "TRANSACTION_COST_MAX", 10 * COPY_COST)
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Queue.Declare(0, "work"), Queue.DeclareOk)
        await client.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(10):
            client.publish("work", b"good", exchange="")
        await client.ask(Tx.Commit(), Tx.CommitOk)
        for _ in range(11):
            client.publish("work", b"too many", exchange="")
        error = await client.expect(Channel.Close)
        assert (error.reply_code, error.class_id, error.method_id) == (406, 60, 40)
        assert "commit more often" in error.reply_text
        client.send(Channel.CloseOk(), channel=1)
        await client.ask(Channel.Open(), Channel.OpenOk)
        found = await client.ask(Queue.Declare(0, "work", passive=True), Queue.DeclareOk)
        assert found.message_count == 10


async def test_confirms_and_transactions_exclude_each_other(tmp_path: Path) -> None:
    """406 precondition-failed, also for tx.commit and tx.rollback without tx.select."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Tx.Select(), Tx.SelectOk)
        client.send(Confirm.Select(), channel=1)
        assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
        await client.ask(Confirm.Select(), Confirm.SelectOk)
        client.send(Tx.Select(), channel=1)
        assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
        for method in (Tx.Commit(), Tx.Rollback()):
            client.send(method, channel=1)
            assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED


async def test_messages_of_a_channel_that_had_no_transaction_before_are_in_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        for _ in range(3):
            client.publish("plant.1.a", b"before")
        await client.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(3):
            client.publish("plant.1.a", b"within")
        await client.ask(Tx.Rollback(), Tx.RollbackOk)
        assert [record.payload for record in await node.stored()] == [b"before"] * 3
