"""An OPC UA source: each value of the server is a row once, or lies in a gap that has a name."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.edge_node.sources.nodes import NODE, SourceNode, running
from tests.support.opcua_server import OpcuaServer
from tests.support.waiting import until
from weft.protocols.batch import Flag, Record

pytest.importorskip("asyncua", reason="pip install 'weft-fabric[plant]'")

PRESS = NODE.replace("plant/#", "press/#")


def opcua(port: int, more: str = "", nodes: str = '[{browse: {below: "Objects/Press"}}]') -> str:
    return (
        f'sources:\n  press:\n    opcua:\n      url: "opc.tcp://127.0.0.1:{port}"\n      publishing: 50ms\n'
        f"      retry_min: 20ms\n      retry_max: 200ms\n      keep_alive: 1s\n      nodes: {nodes}\n{more}"
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OpcuaServer]:
    with OpcuaServer(free_port(), tmp_path / "values.log") as found:
        yield found


def gaps(found: list[Record]) -> list[dict[str, Any]]:
    return [json.loads(each.payload) for each in found if each.key == b"press/$gap"]


def assert_whole(server: OpcuaServer, found: list[Record]) -> dict[str, int]:
    """Each value that the server had is a row, or lies in a gap that has a name; and no row is there twice."""
    rows: dict[str, Counter[int]] = {}
    seen: dict[str, set[int]] = {}
    for record in found:
        if record.key == b"press/$gap":
            continue
        payload, name = json.loads(record.payload), record.key.decode().rpartition("/")[2]
        seen.setdefault(name, set()).add(payload["value"])
        # The first value of a subscription is what a variable is, not how it changed; the flag says what may be twice.
        if not payload.get("initial") and not record.flags & Flag.DUPLICATE_SUSPECTED:
            rows.setdefault(name, Counter())[payload["value"]] += 1
    assert [(name, row) for name, counts in rows.items() for row, count in counts.items() if count > 1] == []
    named = [
        (datetime.fromisoformat(each["from"]), datetime.fromisoformat(each["to"]), each["topics"])
        for each in gaps(found)
        if each["lost"] == "possible" and each["from"] and each["to"]
    ]
    counts, lost = Counter[str](), []
    for name, number, time in server.values():
        if not min(seen[name]) <= number <= max(seen[name]):
            continue
        if number in seen[name]:
            counts["rows"] += 1
        elif any(a <= time <= b and (topics is None or f"press/Press/{name}" in topics) for a, b, topics in named):
            counts["in gaps"] += 1
        else:
            lost.append((name, number, time))
    assert lost == [], named
    return dict(counts)


async def more_rows(node: SourceNode, count: int = 30) -> None:
    wanted = node.source("press").messages + count
    await until(lambda: node.source("press").messages >= wanted)


async def test_a_change_is_a_record_with_its_times_status_and_unit(tmp_path: Path, server: OpcuaServer) -> None:
    async with running(tmp_path, opcua(server.port), PRESS) as node:
        await more_rows(node)
        found = await node.stored()
    payload = json.loads(found[-1].payload)
    assert found[-1].key.startswith(b"press/Press/v")
    assert payload["node"].startswith("nsu=urn:example:press;s=v")
    assert payload["status_name"] == "Good"
    assert payload["unit"] == "bar"
    times = {(name, number): time for name, number, time in server.values()}
    time = times[found[-1].key.decode()[-2:], payload["value"]]
    assert datetime.fromisoformat(payload["source_time"]) == time
    assert (
        dict(found[-1].headers)["weft.sent"]
        == (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    )
    assert gaps(found) == []
    assert_whole(server, found)


async def test_a_server_that_is_killed_leaves_named_gaps_only(tmp_path: Path, server: OpcuaServer) -> None:
    async with running(tmp_path, opcua(server.port), PRESS) as node:
        for _ in range(3):
            await more_rows(node)
            server.kill()
            await until(lambda: node.source("press").state != "connected")
            await asyncio.to_thread(server.start)
        await more_rows(node)
        found = await node.stored()
    assert_whole(server, found)
    assert [each["gap"] for each in gaps(found)] == ["subscription"] * 3


class Cutter:
    """A proxy whose connections can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Cutter]:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield self
        server.close()
        self.cut()

    def cut(self) -> None:
        for each in self._open:
            each.transport.abort()
        self._open.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, to}

        async def one_way(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65_536):
                    target.write(data)
                    await target.drain()
            except OSError:
                pass
            finally:
                target.transport.abort()

        await asyncio.gather(one_way(reader, to), one_way(there, writer))


async def test_a_cut_network_costs_nothing(tmp_path: Path, server: OpcuaServer) -> None:
    async with Cutter(server.port).listening() as proxy, running(tmp_path, opcua(proxy.port), PRESS) as node:
        await more_rows(node)
        for _ in range(20):
            connections = node.source("press").connections
            proxy.cut()
            await until(lambda before=connections: node.source("press").connections > before)  # type: ignore[misc]
            await more_rows(node, 6)
        found = await node.stored()
    assert assert_whole(server, found).get("in gaps") is None
    assert {(each["gap"], each["lost"]) for each in gaps(found)} == {("away", "none")}
    assert not any(each.flags & Flag.DUPLICATE_SUSPECTED for each in found)


async def test_a_node_that_stops_goes_on_where_it_was(tmp_path: Path, server: OpcuaServer) -> None:
    for _ in range(3):
        async with running(tmp_path, opcua(server.port), PRESS) as node:
            await more_rows(node)
            found = await node.stored()
    assert assert_whole(server, found).get("in gaps") is None
    assert {(each["gap"], each["lost"]) for each in gaps(found)} == {("away", "none")}
