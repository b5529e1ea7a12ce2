"""Nodes with sources, in the test's own process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt

from tests.support import live_node
from tests.support.live_node import LiveNode
from tests.support.outcomes import outcome
from tests.support.waiting import PATIENCE_S, until
from weft.edge_node.sources.part import SourcesPart
from weft.edge_node.sources.status import SourceStatus
from weft.protocols.batch import Flag, Record

NODE = """\
node: a
data_dir: {name}
http: null
disk: {{budget: 64MiB, segment: 4MiB}}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
streams:
  telemetry: {{from: "plant/#"}}
"""


# A stream that no link carries drops what it has no room for.
FULL = NODE.replace('"plant/#"}}', '["plant/#", "+"], retain: {{size: 1MiB}}}}\n  other: {{from: "other/#"}}') + (
    'links: {{cloud: {{to: "http://127.0.0.1:1", streams: [telemetry]}}}}\n'
)


class SourceNode(LiveNode):
    """A node with sources."""

    def source(self, name: str = "plant") -> SourceStatus:
        return next(each for each in self.node.part(SourcesPart).statuses() if each.name == name)

    def durable(self, stream: str = "telemetry") -> int:
        return self.node.log.durable_end(self.node.log.stream(stream))

    async def whole(self, count: int, seconds: float = 30) -> list[Record]:
        """All records, once there are so many different ones."""
        async with asyncio.timeout(seconds):
            while True:
                found = await self.stored()
                if len({record.payload for record in found}) >= count:
                    return found
                await asyncio.sleep(0.02)

    async def takes(self, count: int, sending: asyncio.Task[None]) -> None:
        """Wait for so many more messages, or for the end of what is sent."""
        wanted = self.source().messages + count
        await until(lambda: self.source().messages >= wanted or sending.done())


@asynccontextmanager
async def running(folder: Path, sources: str, node: str = NODE, name: str = "data") -> AsyncIterator[SourceNode]:
    async with live_node.running(folder, node.format(name=name) + sources) as found:
        yield SourceNode(found, folder)


def mqtt_source(port: int, more: str = "", keep_alive: str = "2s") -> str:
    return (
        f'sources:\n  plant:\n    mqtt:\n      url: "mqtt://127.0.0.1:{port}"\n      topics: "plant/#"\n'
        f"      retry_min: 20ms\n      retry_max: 200ms\n      keep_alive: {keep_alive}\n{more}"
    )


async def publish(port: int, payloads: list[bytes], topic: str = "plant/a", qos: int = 1) -> None:
    """Publish to a broker, and wait for its acknowledgements."""
    async with aiomqtt.Client("127.0.0.1", port) as client:
        await asyncio.gather(*(client.publish(topic, payload, qos, timeout=PATIENCE_S) for payload in payloads))


@outcome()
def assert_whole(found: list[Record], payloads: list[bytes]) -> None:
    """Every message is there, and all of its records but one are flagged as suspected duplicates."""
    copies = Counter(record.payload for record in found)
    assert set(copies) == set(payloads)
    flagged = Counter(record.payload for record in found if record.flags & Flag.DUPLICATE_SUSPECTED)
    unflagged = {payload: copies[payload] - flagged[payload] for payload in copies}
    assert {payload: count for payload, count in unflagged.items() if count > 1} == {}
