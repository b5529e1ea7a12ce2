"""Queues that clients of AMQP 1.0 send to and receive from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edge_node.servers.amqp1.harness import Amqp, LinkDetached, Message, amqp, in_thread
from tests.support.waiting import PATIENCE_S
from weft.bounds import LOCAL, Owner, OwnerKind
from weft.edge_node.queues.queue import QueueClient


def declare(node: Amqp, name: str = "orders", **arguments: object) -> None:
    assert node.parts.queues is not None
    client = QueueClient(Owner(OwnerKind.ADDRESS, LOCAL))
    node.parts.queues.declarations.declare_queue(client, name, durable=True, arguments=arguments)


async def test_what_is_sent_to_a_queue_is_received_once(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        declare(node)
        client = await node.client()
        await in_thread(client.send, "queue/orders", *[Message(body=b"%d" % i, inferred=True) for i in range(5)])
        first = await in_thread(client.receiver, "queue/orders")
        found = await in_thread(client.receive, first, 3)
        assert [bytes(each.body) for each in found] == [b"0", b"1", b"2"]
        assert [each.first_acquirer for each in found] == [True] * 3
        await client.close()
        client = await node.client("another")
        second = await in_thread(client.receiver, "queue/orders")
        found = await in_thread(client.receive, second, 2)
        assert [bytes(each.body) for each in found] == [b"3", b"4"]
        assert [each.first_acquirer for each in found] == [False] * 2  # they were on their way to the first
        await client.close()


async def test_outcomes_are_those_of_the_queue(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        declare(node, "dead")
        declare(node, "orders", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        client = await node.client()
        await in_thread(client.send, "queue/orders", Message(body=b"x", inferred=True))
        receiver = await in_thread(client.receiver, "queue/orders", credit=1)

        def handle() -> None:
            assert receiver.receive(timeout=PATIENCE_S).delivery_count == 0
            receiver.release(delivered=False)
            again = receiver.receive(timeout=PATIENCE_S)
            assert (again.delivery_count, again.first_acquirer) == (0, False)
            receiver.fetcher.unsettled[0].local.failed = True
            receiver.release(delivered=True)
            assert receiver.receive(timeout=PATIENCE_S).delivery_count == 1
            receiver.reject()

        await in_thread(handle)
        dead = await in_thread(client.receiver, "queue/dead")
        (found,) = await in_thread(client.receive, dead, 1)
        assert bytes(found.body) == b"x"
        await client.close()


async def test_a_queue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        for attach in (client.receiver, client.sender):
            with pytest.raises(LinkDetached) as refused:
                await in_thread(attach, "queue/nothing")
            assert refused.value.condition == "amqp:not-found"
        await client.close()
