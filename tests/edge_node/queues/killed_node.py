"""A node whose queues are published to and read, which says on its output what it did, until it is killed
(``test_sigkill``)."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from functools import partial

from weft.bounds import Owner, OwnerKind
from weft.config.load import load
from weft.config.models import EdgeConfig
from weft.edge_node.node import EdgeNode
from weft.edge_node.queues.definitions import QueueError
from weft.edge_node.queues.queue import Credit, QueueClient
from weft.edge_node.queues.ready import Delivery, Outcome
from weft.edge_node.subscriptions.message import LogRecord

QUEUE = "jobs"
PREFETCH = 16


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Publisher:
    publisher: str | None = None
    owner = None

    def acknowledge(self, answers: bytes) -> None:
        for payload in answers.split():
            say("confirmed", payload.decode())

    def refuse(self, error: BaseException) -> None:
        raise error


class Worker:
    """Acknowledges every third message, gives every fifth back, and keeps the others for a while."""

    def __init__(self, node: EdgeNode, *, slow: bool) -> None:
        self.node = node
        self.slow = slow
        self.kept: list[Delivery] = []

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        for delivery, message in batch:
            say("got", message.payload.decode(), int(delivery.redelivered))
            asyncio.get_running_loop().call_soon(self.work, delivery, message.payload.decode())

    def work(self, delivery: Delivery, name: str) -> None:
        queues = self.node.queues
        assert queues is not None
        if self.slow and delivery.seq % 5 == 0 and not delivery.redelivered:
            queues.settling.settle([delivery], Outcome.REQUEUE)
        elif not self.slow or delivery.seq % 3 == 0 or len(self.kept) >= PREFETCH // 2:
            say("acknowledged", name)
            queues.settling.settle([delivery], Outcome.ACCEPT)
            # What became of it is written at the end of this turn.
            self.node.batch.at_end(
                partial(self.node.batch.at_end, lambda: self.node.log.on_durable(partial(done, name)))
            )
        else:
            self.kept.append(delivery)

    def cancelled(self, error: QueueError) -> None:
        raise error


def done(name: str, error: BaseException | None) -> None:
    if error is None:
        say("done", name)


async def run(file: str, life: int, drain: bool) -> None:
    node = EdgeNode(load(file, EdgeConfig).config)
    await node.start()
    queues, client, publisher = node.queues, QueueClient(Owner(OwnerKind.USER, "ann")), Publisher()
    assert queues is not None
    queues.declarations.declare_queue(client, QUEUE, durable=True)
    queues.declarations.bind(client, QUEUE, "amq.topic", "jobs.#")
    queues.consumptions.consume(client, QUEUE, Worker(node, slow=not drain), [Credit(PREFETCH, comes_back=True)])
    await node.log.durable()
    say("started")
    if drain:
        while queues.declarations.find_queue(client, QUEUE).messages or queues.bounds.unacknowledged.used:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await node.close()
        return
    for number in itertools.count(1):
        payload = b"%d/%d" % (life, number)
        if number % 2:
            found = queues.publishing.route(client, "amq.topic", "jobs.new")
            assert found.route is not None
            route, headers = found.route, found.headers
        else:  # as MQTT does it
            known = queues.publishing._routing.everybody.route(b"jobs/new")
            assert known is not None
            route, headers = known, ()
        node.batch.add(route, b"jobs/new", payload, publisher, 0, headers)
        node.batch.answer(publisher, payload + b" ")
        node.batch.gathered()
        await asyncio.sleep(0.002 if number % 10 == 0 else 0)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "drain"))
