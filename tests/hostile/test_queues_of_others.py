"""Another user's queues are neither destroyed, blocked, squatted nor seen. The node reads its rules from disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.edge_node.servers.amqp.harness import RawClient
from tests.hostile.edge import RULES, GuardedEdge
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import ReplyCode
from weft.protocols.amqp.methods import Method, commands, write_method

pytestmark = pytest.mark.processes
Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedEdge]:
    """One node for all attacks."""
    node = GuardedEdge(tmp_path_factory.mktemp("attacked"), amqp=True)
    node.start()
    try:
        yield node
    finally:
        node.stop()


async def connect(edge: GuardedEdge, user: str) -> RawClient:
    notified = {"consumer_cancel_notify": True}
    return await RawClient.connect(edge.amqp_port, user=user.encode(), password=user.encode(), capabilities=notified)


async def refused(client: RawClient, method: Method) -> None:
    client.send(method, channel=1)
    error: Any = await client.channel_error()
    assert error.reply_code == ReplyCode.ACCESS_REFUSED


async def looked_at(client: RawClient, queue: str) -> int:
    return int((await client.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)).message_count)


def publish(key: str, body: bytes) -> bytes:
    return write_method(Basic.Publish(exchange="", routing_key=key), 1) + write_content(1, b"\0\0", body, 1 << 17)


async def test_the_attacker_gets_nowhere(edge: GuardedEdge) -> None:
    alice, mallory = await connect(edge, "alice"), await connect(edge, "mallory")
    await alice.ask(Queue.Declare(queue="secret.auto", auto_delete=True), Queue.DeclareOk)
    await alice.ask(Exchange.Declare(exchange="secret.fan", exchange_type="fanout"), Exchange.DeclareOk)
    await mallory.ask(Queue.Declare(queue="public.q"), Queue.DeclareOk)
    alice.send(publish("secret.auto", b"x") * 5)
    for method in (
        Basic.Consume(queue="secret.auto"),
        Basic.Consume(queue="secret.auto", exclusive=True),
        Basic.Get(queue="secret.auto"),
        Queue.Declare(queue="secret.auto", passive=True),
        Queue.Declare(queue="secret.auto", auto_delete=True),
        Queue.Declare(queue="secret.next", durable=True),
        Queue.Purge(queue="secret.auto"),
        Queue.Delete(queue="secret.auto"),
        Queue.Bind(queue="public.q", exchange="secret.fan"),
        Exchange.Declare(exchange="secret.new", exchange_type="direct"),
    ):
        await refused(mallory, method)
    await mallory.close()
    assert await looked_at(alice, "secret.auto") == 5
    await alice.close()


async def test_rules_that_are_read_again_hold_for_consumers_that_are_there(edge: GuardedEdge) -> None:
    (edge.folder / "acl").write_text(f"{RULES}queue read secret.#\n")
    edge.restart()
    alice, mallory = await connect(edge, "alice"), await connect(edge, "mallory")
    await alice.ask(Queue.Declare(queue="secret.jobs", auto_delete=True), Queue.DeclareOk)
    await mallory.ask(Basic.Consume(queue="secret.jobs", consumer_tag="tag", exclusive=True), Basic.ConsumeOk)
    (edge.folder / "acl").write_text(RULES)
    os.kill(edge.pid, signal.SIGHUP)
    assert (await mallory.expect(Basic.Cancel)).consumer_tag == "tag"
    await alice.ask(Basic.Consume(queue="secret.jobs"), Basic.ConsumeOk)
    await alice.close()
    await mallory.close()
