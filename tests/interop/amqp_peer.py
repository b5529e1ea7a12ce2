"""A client of AMQP 0-9-1 as a process: ``amqp_peer.py LIBRARY MODE PORT QUEUE``, with pika, aio-pika or kombu.

It says what it sees on standard output: ``confirmed N``, ``taken N REDELIVERED``, and ``done N`` once a message's
acknowledgement is known to be on disk: its transaction is committed, or two messages that were published after it, one
after the other, are confirmed: it is written one write later at most.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import aio_pika
import kombu
import pika
from kombu.exceptions import OperationalError

HOST = "127.0.0.1"
RETRY_S = 0.05
END = "end"
PREFETCH = 8
IN_FLIGHT = 16


def say(line: str) -> None:
    print(line, flush=True)


class Pika:
    """Publishes one by one; acknowledges in transactions."""

    errors = (pika.exceptions.AMQPError, OSError)

    def __init__(self, port: int, queue: str) -> None:
        self.parameters, self.queue = pika.ConnectionParameters(HOST, port), queue

    def publish(self) -> None:
        channel = pika.BlockingConnection(self.parameters).channel()
        channel.queue_declare(self.queue, durable=True)
        channel.confirm_delivery()
        n = 0
        while True:
            channel.basic_publish("", self.queue, b"%d" % n, pika.BasicProperties(delivery_mode=2), mandatory=True)
            say(f"confirmed {n}")
            n += 1

    def consume(self) -> None:
        connection = pika.BlockingConnection(self.parameters)
        channel = connection.channel()
        channel.tx_select()
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, body in channel.consume(self.queue):
            say(f"taken {body.decode()} {int(method.redelivered)}")
            channel.basic_ack(method.delivery_tag)
            channel.tx_commit()
            say(f"done {body.decode()}")
            if body.decode() == END:
                connection.close()
                return


class AioPika:
    """Publishes many at once; connects again by itself; an acknowledgement is followed by messages with confirms."""

    errors = (aio_pika.exceptions.AMQPError, OSError, RuntimeError)

    def __init__(self, port: int, queue: str) -> None:
        self.url, self.queue = f"amqp://guest:guest@{HOST}:{port}/", queue

    def publish(self) -> None:
        asyncio.run(self._publish())

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _publish(self) -> None:
        channel = await (await aio_pika.connect(self.url)).channel()
        await channel.declare_queue(self.queue, durable=True)
        numbers = iter(range(1 << 31))

        async def publisher() -> None:
            for n in numbers:
                message = aio_pika.Message(b"%d" % n, delivery_mode=2)
                await channel.default_exchange.publish(message, self.queue, mandatory=True)
                say(f"confirmed {n}")

        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(publisher())

    async def _consume(self) -> None:
        connection = await aio_pika.connect_robust(self.url, reconnect_interval=RETRY_S)
        channel = await connection.channel()
        await channel.set_qos(PREFETCH)
        queue = await channel.declare_queue(self.queue, durable=True)
        ended = asyncio.Event()

        async def take(message: Any) -> None:
            text = message.body.decode()
            say(f"taken {text} {int(message.redelivered)}")
            try:
                await message.ack()
                for _ in range(2):
                    await message.channel.basic_publish(b"", exchange="amq.fanout", routing_key="")
            except self.errors:
                return  # it comes again
            say(f"done {text}")
            if text == END:
                ended.set()

        await queue.consume(take)
        await ended.wait()
        await connection.close()


class Kombu:
    """Publishes with the confirms of its transport; acknowledges in transactions."""

    errors = (OperationalError, OSError)

    def __init__(self, port: int, queue: str) -> None:
        self.url, self.queue = f"amqp://guest:guest@{HOST}:{port}//", queue
        self.errors = (*self.errors, *kombu.Connection(self.url).connection_errors)

    def publish(self) -> None:
        with kombu.Connection(self.url, transport_options={"confirm_publish": True}) as connection:
            queue = kombu.Queue(self.queue, durable=True)(connection.default_channel)
            queue.queue_declare()
            producer = connection.Producer(serializer="json")
            n = 0
            while True:
                producer.publish(n, exchange="", routing_key=self.queue, delivery_mode=2)
                say(f"confirmed {n}")
                n += 1

    def consume(self) -> None:
        with kombu.Connection(self.url) as connection:
            channel = connection.channel()
            channel.tx_select()
            queue = kombu.Queue(self.queue, durable=True, no_declare=True)
            messages: list[Any] = []
            with kombu.Consumer(channel, queue, on_message=messages.append, prefetch_count=PREFETCH):
                while True:
                    connection.drain_events()
                    while messages:  # a commit waits for its answer, and may bring more of them
                        message = messages.pop(0)
                        text = bytes(message.body).decode() if isinstance(message.body, bytes) else str(message.body)
                        say(f"taken {text} {int(message.delivery_info['redelivered'])}")
                        message.ack()
                        channel.tx_commit()
                        say(f"done {text}")
                        if text == END:
                            return


LIBRARIES: dict[str, Any] = {"pika": Pika, "aio-pika": AioPika, "kombu": Kombu}


def main(library: str, mode: str, port: str, queue: str) -> None:
    """Publish until the connection breaks, or consume, connecting again when it does, until a message says the end."""
    client = LIBRARIES[library](int(port), queue)
    if mode == "publish":
        try:
            client.publish()
        except* client.errors:
            pass
        return
    while True:
        try:
            client.consume()
        except client.errors:
            time.sleep(RETRY_S)
        else:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
