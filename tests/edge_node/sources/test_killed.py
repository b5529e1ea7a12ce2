"""A node that is killed again and again while a real broker sends: nothing is lost, and what is there twice says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.edge_node.sources import test_amqp as amqp
from tests.edge_node.sources.nodes import NODE, assert_whole, mqtt_source, publish, running
from tests.support.brokers import Mosquitto, RabbitMq
from tests.support.processes import Node
from tests.support.waiting import until, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def file(folder: Path, sources: str) -> Path:
    path = folder / "edge.yaml"
    http = f'http: {{bind: "127.0.0.1:{free_port()}"}}'
    path.write_text(NODE.format(name="data").replace("http: null", http) + sources)
    return path


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_node_that_is_killed_loses_nothing(tmp_path: Path, broker: Mosquitto, qos: int) -> None:
    source = mqtt_source(broker.port, f"      qos: {qos}\n")
    config = file(tmp_path, source)
    node = await asyncio.to_thread(Node, "edge", config)
    await asyncio.to_thread(wait_until, lambda: node.json("status")["sources"]["plant"]["connections"])
    messages = [b"%d" % number for number in range(1500)]
    sending = asyncio.create_task(publish(broker.port, messages))
    for _ in range(3):
        await asyncio.sleep(0.3)
        node.kill()
        node = await asyncio.to_thread(Node, "edge", config)
    await sending
    node.kill()
    async with running(tmp_path, source) as last:
        await until(lambda: last.source().connections)
        found = await last.whole(len(messages))
    assert_whole(found, messages)
    assert len(found) < 2 * len(messages)


async def test_a_node_that_is_killed_while_rabbitmq_sends_loses_nothing(tmp_path: Path, rabbit: RabbitMq) -> None:
    source = amqp.amqp_source(rabbit.port, "killed")
    config = file(tmp_path, source)
    config.write_text(config.read_text().replace('"plant/#"', '"#"'))
    node = await asyncio.to_thread(Node, "edge", config)
    await asyncio.to_thread(wait_until, lambda: node.json("status")["sources"]["plant"]["connections"])
    messages = [b"%d" % number for number in range(4000)]

    async def send() -> None:
        for first in range(0, len(messages), 500):
            await amqp.publish(rabbit.port, "killed", messages[first : first + 500])

    sending = asyncio.create_task(send())
    kills = 0
    while kills < 3 or not sending.done():
        await asyncio.sleep(0.3)
        node.kill()
        kills += 1
        node = await asyncio.to_thread(Node, "edge", config)
    await sending
    node.kill()
    async with running(tmp_path, source, amqp.EVERYTHING) as last:
        found = await last.whole(len(messages))
        await until(lambda: last.source().connections and not last.source().unacknowledged)
    assert_whole(found, messages)
    assert len(found) < 2 * len(messages)
    assert await amqp.left(rabbit.port, "killed") == 0
