"""An edge node in the test's own process, with its own log and sockets, and what is in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.node import EdgeNode
from weft.protocols.batch import Record, records


class LiveNode:
    """A node that listens for MQTT."""

    def __init__(self, node: EdgeNode, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.port: int = node.addresses["mqtt"].port  # type: ignore[union-attr]

    async def stored(self, stream: str = "telemetry") -> list[Record]:
        """All records of a stream, once durable."""
        log, found, seq = self.node.log, list[Record](), 0
        await log.durable()
        while batches := log.read(log.stream(stream), seq, 1 << 24):
            found += [record for data in batches for record in records(data)]
            seq = found[-1].seq + 1
        return found

    async def payloads(self, stream: str) -> list[Any]:
        """The payloads of a stream of JSON."""
        return [msgspec.json.decode(record.payload) for record in await self.stored(stream)]

    def apply(self, text: str) -> None:
        """Give the node another configuration."""
        self.node.reconfigure.apply(configuration(self.folder, text))


def configuration(folder: Path, text: str) -> EdgeConfig:
    return parse(text, str(folder / "edge.yaml"), EdgeConfig, check).config


@asynccontextmanager
async def running(folder: Path, text: str) -> AsyncIterator[EdgeNode]:
    """A node until the block ends."""
    node = EdgeNode(configuration(folder, text))
    await node.start()
    try:
        yield node
    finally:
        await node.close()
