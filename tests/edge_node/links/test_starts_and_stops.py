"""What a node tells its hubs as it stops, and what it takes in while it waits for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.cloud_hub.live import running_hub
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.support.live_node import configuration
from tests.support.waiting import until
from weft.edge_node.links.links import LinksPart
from weft.edge_node.node import EdgeNode
from weft.edge_node.timing import TICK_S
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, PubAck, Publish, Will
from weft.protocols.shard.lane_state import LaneState
from weft.storage.object_store.directory import MemoryStore

CONFIG = """
node: edge-1
data_dir: data
listeners: {{mqtt: {{bind: '127.0.0.1:0'}}}}
http: null
streams: {{telemetry: {{from: 'plant/#'}}}}
links: {{cloud: {{to: [{url}], streams: [telemetry], hold_at_start: {hold}}}}}
"""


def node_in(folder: Path, url: str, hold: str) -> EdgeNode:
    return EdgeNode(configuration(folder, CONFIG.format(url=url, hold=hold)))


def port_of(node: EdgeNode) -> int:
    return node.addresses["mqtt"].port  # type: ignore[union-attr]


async def publish(client: RawClient, acknowledged: list[int]) -> None:
    """Publish, one message after the other, until the node closes the connection."""
    for number in range(1, 60_000):
        client.send(Publish(b"plant/a", b"%d" % number, 1, number))
        while (packet := await client.receive()) != PubAck(number):
            if packet is None:
                return
        acknowledged.append(number)


async def test_the_last_word_comes_behind_all_that_was_acknowledged(tmp_path: Path) -> None:
    """A node that stops in order takes messages until its listeners are closed."""
    async with running_hub(MemoryStore(), shards=1) as hub:

        def lane() -> LaneState | None:
            return next(iter(hub.sequencers[0].state.lanes.values()), None)

        node = node_in(tmp_path, hub.url, "0s")
        await node.start()
        acknowledged: list[int] = []
        device = asyncio.create_task(publish(await RawClient.connect(port_of(node)), acknowledged))
        await until(lambda: acknowledged and lane() is not None)
        await node.close()
        await device
        await until(lambda: (held := lane()) is not None and held.ended_in_order())
        held = lane()
        assert held is not None
        assert held.last_word is not None
        assert held.last_word.seq == held.ranges.contiguous_end() >= len(acknowledged)


async def test_a_stop_within_the_wait_for_hubs_takes_nothing_in(tmp_path: Path) -> None:
    node = node_in(tmp_path, "http://127.0.0.1:9", "0s")
    await node.start()
    await node.close()
    node, stopping = node_in(tmp_path, "http://127.0.0.1:9", "1h"), asyncio.Event()
    starting = asyncio.create_task(node.start(stopping))
    await until(lambda: node.addresses)
    client = await RawClient.open(port_of(node))  # in the kernel
    client.writer.write(encode(Connect("early"), 4) + encode(Publish(b"plant/a", b"x", 1, 1), 4))
    stopping.set()
    await starting
    await node.run(stopping)
    await node.close()
    assert await client.receive() is None


async def test_wills_wait_for_the_hubs_as_clients_do(tmp_path: Path) -> None:
    """A copy that was put back gives numbers out again: nothing may have one before the hubs were asked."""
    node = node_in(tmp_path, "http://127.0.0.1:9", "0s")
    await node.start()
    client = await RawClient.connect(port_of(node), will=Will(b"plant/a", b"gone", qos=1))
    await node.close()
    await client.close()

    node, stopping = node_in(tmp_path, "http://127.0.0.1:9", "1h"), asyncio.Event()
    starting = asyncio.create_task(node.start(stopping))
    await until(lambda: node.addresses)
    await asyncio.sleep(2 * TICK_S)  # a will is published at the wheel's next tick
    assert end_of(node) == 0
    stopping.set()
    await starting
    await node.close()

    node = node_in(tmp_path, "http://127.0.0.1:9", "0s")
    await node.start()
    await until(lambda: end_of(node) == 1)
    await node.close()


async def test_a_hub_node_that_does_not_answer_does_not_use_up_the_wait(tmp_path: Path) -> None:
    node = node_in(tmp_path, "http://127.0.0.1:9", "0s")
    await node.start()
    await node.close()
    async with running_hub(MemoryStore(), shards=1) as hub:
        mute = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with mute:
            url = f"http://127.0.0.1:{mute.sockets[0].getsockname()[1]}"
            node = node_in(tmp_path, f"{url}, {hub.url}", "6s")  # 2 s for each URL, and 1 s between them
            await node.start()
            assert node.part(LinksPart).statuses[0].is_compared
            await node.close()


def end_of(node: EdgeNode) -> int:
    return node.log.next_seq(node.log.stream("telemetry"))
