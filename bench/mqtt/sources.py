"""Messages taken from a real Mosquitto and a real RabbitMQ by a node's source, with the node's processor time of each.

    python -m bench.mqtt.sources [--messages 50000] [--rounds 3]

The messages (100 bytes, QoS 1, delivery mode 2) wait at the broker before the node starts, so the figures are those of
the source, or of the broker where that is slower. They count from the first messages that are acknowledged to the last
one. Broker and node have the machine's two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import aio_pika
import aiomqtt
import psutil

from tests.support.brokers import Mosquitto, RabbitMq
from tests.support.processes import Node

PAYLOAD_BYTES = 100
CONFIG = """\
node: a
data_dir: data
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 512MiB}}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
streams: {{telemetry: {{from: "#"}}}}
sources: {{plant: {source}}}
"""


def measured(node: Node, messages: int) -> tuple[float, float]:
    """Return messages a second, and microseconds of the node's processor time for each."""
    process = psutil.Process(node.process.pid)
    seen: list[tuple[float, int, float]] = []
    while not seen or seen[-1][1] < messages:
        times = process.cpu_times()
        seen.append(
            (time.monotonic(), node.json("status")["sources"]["plant"]["acknowledged"], times.user + times.system)
        )
        time.sleep(0.05)
    first = next(each for each in seen if each[1])
    last = seen[-1]
    count = last[1] - first[1]
    return count / (last[0] - first[0]), (last[2] - first[2]) / count * 1e6


async def to_mosquitto(port: int, messages: int) -> None:
    """Have a Mosquitto hold messages."""
    async with aiomqtt.Client("127.0.0.1", port, max_queued_outgoing_messages=0) as client:
        for first in range(0, messages, 500):
            await asyncio.gather(
                *(client.publish("plant/a", bytes(PAYLOAD_BYTES), 1, timeout=60) for _ in range(first, first + 500))
            )


async def to_rabbitmq(port: int, messages: int) -> None:
    """Have a queue of a RabbitMQ hold messages."""
    async with await aio_pika.connect(host="127.0.0.1", port=port) as connection:
        channel = await connection.channel()
        await channel.declare_queue("plant", durable=True)
        message = aio_pika.Message(bytes(PAYLOAD_BYTES), delivery_mode=2)
        for first in range(0, messages, 500):
            publish = channel.default_exchange.publish
            await asyncio.gather(*(publish(message, "plant") for _ in range(first, first + 500)))


def take(folder: Path, source: str) -> Node:
    """Start a node with a source."""
    (folder / "edge.yaml").write_text(CONFIG.format(source=source))
    return Node("edge", folder / "edge.yaml")


def one_round(folder: Path, what: str, rabbit: RabbitMq, messages: int) -> tuple[float, float]:
    """Return the figures of one source."""
    if what == "RabbitMQ":
        asyncio.run(to_rabbitmq(rabbit.port, messages))
        node = take(folder, f'{{amqp: {{url: "amqp://127.0.0.1:{rabbit.port}", queue: plant}}}}')
    else:
        broker = Mosquitto(folder / "mosquitto", "allow_anonymous true\nmax_inflight_messages 1000\n")
        source = f'{{mqtt: {{url: "mqtt://127.0.0.1:{broker.port}", topics: "plant/#"}}}}'
        node = take(folder, source)
        while not node.json("status")["sources"]["plant"]["connections"]:
            time.sleep(0.05)
        node.stop()
        asyncio.run(to_mosquitto(broker.port, messages))
        node = take(folder, source)
    try:
        return measured(node, messages)
    finally:
        node.kill()
        if what != "RabbitMQ":
            broker.kill()


def main() -> None:
    """Measure, and print a line for each kind of source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rabbit = RabbitMq()
    try:
        for what in ("Mosquitto, QoS 1", "RabbitMQ"):
            figures = []
            for _ in range(options.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    figures.append(one_round(Path(folder), what, rabbit, options.messages))
            rate, cost = (statistics.median(each) for each in zip(*figures, strict=True))
            print(f"{what}: {rate:,.0f} messages/s, {cost:.0f} us of the node's processor time for each", flush=True)
    finally:
        rabbit.close()


if __name__ == "__main__":
    main()
