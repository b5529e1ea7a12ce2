"""Edge nodes in one process, with default settings: ``python -m bench.link.nodes FOLDER FIRST COUNT
HUB``.

It prints the ports of their MQTT listeners as JSON when all of them listen. It stops when its input ends and
the hub has acknowledged everything.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.node import EdgeNode

DRAIN_S = 15.0

CONFIG = """\
node: edge-{number}
data_dir: {folder}/edge-{number}
listeners: {{mqtt: {{bind: 127.0.0.1:0}}}}
http: null
disk: {{budget: 256MiB}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}}}
links: {{cloud: {{to: "{hub}"}}}}
"""


def _node(folder: Path, number: int, hub: str) -> EdgeNode:
    text = CONFIG.format(folder=folder, number=number, hub=hub)
    return EdgeNode(parse(text, str(folder / f"edge-{number}.yaml"), EdgeConfig, check).config)


def _drain(node: EdgeNode) -> None:
    """Wait until the hub has acknowledged everything, for a bounded time."""
    status, deadline = node._links.statuses[0], time.monotonic() + DRAIN_S
    end = node.log.snapshot(node.log.stream("telemetry")).next_seq
    while status.records_acked < end and time.monotonic() < deadline:
        time.sleep(0.02)


async def _run(folder: Path, first: int, count: int, hub: str) -> None:
    nodes = [_node(folder, number, hub) for number in range(first, first + count)]
    for node in nodes:
        await node.start()
    ports = [node.addresses["mqtt"].port for node in nodes]  # type: ignore[union-attr]
    print(msgspec.json.encode(ports).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for node in nodes:
        await asyncio.to_thread(_drain, node)
    await asyncio.gather(*(node.close() for node in nodes))


def main() -> None:
    """Run the nodes that the command line names."""
    folder, first, count, hub = sys.argv[1:]
    uvloop.run(_run(Path(folder), int(first), int(count), hub))


if __name__ == "__main__":
    main()
