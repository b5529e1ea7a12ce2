"""A real edge node in this process with a listener of HTTP, and clients over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.support import live_node
from tests.support.waiting import PATIENCE_S
from weft.config.units import Address
from weft.edge_node.node import EdgeNode
from weft.protocols.batch import Record, records

CONFIG = """\
node: press-1
data_dir: {folder}/data
listeners: {{http: {{bind: "127.0.0.1:0"{listener}}}, mqtt: {{bind: "127.0.0.1:0"}}}}
http: null
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/{{line}}/#"}}
  copies: {{from: "plant/a/copied"}}
{more}
"""


@dataclass
class HttpNode:
    """A node, and a session of aiohttp with it."""

    node: EdgeNode
    session: aiohttp.ClientSession

    @property
    def port(self) -> int:
        address = self.node.addresses["http"]
        assert isinstance(address, Address)
        return address.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def post(self, path: str, body: Any = b"", **headers: str) -> tuple[int, Any, Any]:
        """Return status, JSON and fields of the answer; names of headers have ``_`` for ``-``."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.url + path, data=body, headers=fields) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None, answer.headers

    async def get(self, path: str, **headers: str) -> tuple[int, Any, Any]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.get(self.url + path, headers=fields) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None, answer.headers

    def stored(self, stream: str = "telemetry") -> list[Record]:
        """All durable records of a stream."""
        return stored(self.node, stream)

    async def raw(self, data: bytes, *, is_kept: bool = False) -> bytes:
        """Send bytes; return everything that comes until the node closes.

        Args:
            is_kept: the node keeps the connection: return the head of the first answer, and what came with it.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                while more := await reader.read(1 << 16):
                    found += more
                    if is_kept and b"\r\n\r\n" in found:
                        break
        writer.close()
        return found


def stored(node: EdgeNode, stream: str) -> list[Record]:
    number, found, seq = node.log.streams()[stream], list[Record](), 0
    while batches := node.log.read(number, seq, 1 << 24):
        found += [record for data in batches for record in records(data)]
        seq = found[-1].seq + 1
    return found


@asynccontextmanager
async def running(folder: Path, listener: str = "", more: str = "") -> AsyncIterator[HttpNode]:
    """A node until the block ends.

    Args:
        listener: more of the listener's settings, ``, anonymous: never``.
        more: further sections.
    """
    async with (
        live_node.running(folder, CONFIG.format(folder=folder, listener=listener, more=more)) as node,
        aiohttp.ClientSession() as session,
    ):
        yield HttpNode(node, session)
