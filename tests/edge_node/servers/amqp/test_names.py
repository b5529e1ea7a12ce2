"""Names that clients give to exchanges and queues: those that cannot be shown are refused, all others are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.edge_node.servers.amqp.harness import RawClient, serving
from weft.protocols.amqp.frames import ReplyCode
from weft.protocols.amqp.methods import commands

Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RawClient]:
    """A client that sends names which pamqp takes for invalid: other libraries send them."""
    for method in (Queue.Declare, Exchange.Declare, Basic.Publish):
        monkeypatch.setattr(method, "validate", lambda _: None)
    async with serving(tmp_path) as node:
        yield await RawClient.connect(node.port)


@pytest.mark.parametrize("name", ["a\x1b]0;x", "a\nlog line", "a\x7f"])
async def test_names_with_control_characters_are_refused(client: RawClient, name: str) -> None:
    """406 precondition-failed at queue.declare and exchange.declare; the connection continues."""
    for method in (Queue.Declare(queue=name), Exchange.Declare(exchange=name, exchange_type="fanout")):
        client.send(method, channel=1)
        assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
    client.send(Queue.Declare(queue=name, passive=True), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.NOT_FOUND


@pytest.mark.parametrize("name", ["schlüssel", "a*b", "a.(1)", "訊息"])
async def test_names_of_other_characters_are_answered(client: RawClient, name: str) -> None:
    """queue.declare-ok: queue; basic.return: exchange."""
    assert (await client.ask(Queue.Declare(queue=name), Queue.DeclareOk)).queue == name
    client.publish(name, b"x", exchange="")
    assert (await client.ask(Queue.Declare(queue=name, passive=True), Queue.DeclareOk)).message_count == 1
    await client.ask(Exchange.Declare(exchange=name, exchange_type="fanout"), Exchange.DeclareOk)
    client.publish("x", b"x", exchange=name, mandatory=True)
    assert (await client.content(Basic.Return)).method.exchange == name
