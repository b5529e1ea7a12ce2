"""Sources and servers of other stacks: each value is a row once, or lies in a gap that has a name."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.edge_node.sources.devices import assert_no_silent_gap, device, modbus_source, settled, values
from tests.edge_node.sources.nodes import running
from tests.edge_node.sources.test_opcua_source import PRESS, Cutter, assert_whole, gaps, more_rows, opcua
from tests.edge_node.sources.test_writes import LINE, written
from tests.support.opcua_server import MiloServer, ModbusSerialServer, NodeOpcuaServer, OpcuaServer, Open62541Server
from tests.support.slices import SLICE
from tests.support.third_party import MILO, MODBUS_SERIAL, NODE_OPCUA, OPEN62541
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture
def node_opcua(tmp_path: Path) -> Iterator[NodeOpcuaServer]:
    try:
        NODE_OPCUA.obtain()
    except LookupError as reason:
        pytest.skip(str(reason))
    with NodeOpcuaServer(free_port(), tmp_path / "values.log") as found:
        yield found


@pytest.fixture
def milo(tmp_path: Path) -> Iterator[MiloServer]:
    if missing := [program for program in ("javac", "java") if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)}: not installed")
    try:
        MILO.obtain()
    except LookupError as reason:
        pytest.skip(str(reason))
    with MiloServer(free_port(), tmp_path / "values.log") as found:
        yield found


@pytest.fixture
def open62541(tmp_path: Path) -> Iterator[Open62541Server]:
    try:
        OPEN62541.obtain()
    except LookupError as reason:
        pytest.skip(str(reason))
    with Open62541Server(free_port(), tmp_path / "values.log") as found:
        yield found


async def shaken(server: OpcuaServer, folder: Path, rounds: int, rng: random.Random) -> Counter[str]:
    """In each round cut the network three times, once for seconds, kill the server, and begin another run of the node.

    Return how many gaps have which kind.
    """
    # Without an interval of its own, node-opcua sends each change.
    async with Cutter(server.port).listening() as proxy:
        for _ in range(rounds):
            async with running(folder, opcua(proxy.port, "      sampling: 0s\n"), PRESS) as node:
                for what in rng.sample(("cut", "cut", "away", "killed"), 4):
                    await more_rows(node, 12)
                    connections = node.source("press").connections
                    if what == "killed":
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start)
                    await proxy.away(rng.uniform(0.5, 3.0) if what == "away" else 0.0)
                    await until(lambda before=connections: node.source("press").connections > before, 120)  # type: ignore[misc]
                await more_rows(node, 12)
                found = await node.stored()
    assert_whole(server, found)
    # A connection that is cut between the notice and the position that follows it makes the same notice again.
    named = {(each["kind"], each["from"]) for each in gaps(found) if each["lost"] == "possible"}
    return Counter(kind for kind, _ in named)


@pytest.mark.parametrize("name", ["node_opcua", "milo", "open62541"])
async def test_no_value_of_other_servers_is_lost_in_silence(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(name)
    counts = await shaken(server, tmp_path, 2, random.Random(7))
    if name == "milo":
        # It spends a number on telling the former session that another one has the subscription. That notification
        # cannot be asked for again, so its number is a gap, in which nothing is lost.
        counts.pop("sequence", None)
    assert counts == {"subscription": 2}, "the server was killed twice"


@pytest.mark.search(turns=4)
@pytest.mark.timeout(590)
@pytest.mark.parametrize("name", ["", "node_opcua", "milo", "open62541"])
async def test_no_value_is_lost_in_silence_in_many_cuts_kills_and_restarts(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    """Four servers, and for each five a round, which is 200 at night, recounted from its own log of values."""
    if name:
        server = request.getfixturevalue(name)
        await shaken(server, tmp_path, SLICE.amount(1, 40), random.Random(SLICE.seed))
        return
    with OpcuaServer(free_port(), tmp_path / "values.log") as server:
        await shaken(server, tmp_path, SLICE.amount(1, 40), random.Random(SLICE.seed))


async def test_a_server_gets_no_more_nodes_in_a_request_than_it_takes(tmp_path: Path, milo: MiloServer) -> None:
    """Of properties, Milo is asked for 250 at most."""
    milo.kill()
    milo.options.variables, milo.options.every_s = 300, 1.0
    await asyncio.to_thread(milo.start)
    async with running(tmp_path, opcua(milo.port), PRESS) as node:
        await until(lambda: node.source("press").nodes == 300)


async def test_a_restart_is_a_named_gap_where_the_server_hands_nothing_over(
    tmp_path: Path, node_opcua: NodeOpcuaServer
) -> None:
    node_opcua.kill()
    node_opcua.options.hands_over, node_opcua.options.sampling_ms = False, 100
    await asyncio.to_thread(node_opcua.start)
    source = opcua(node_opcua.port, "      sampling: 0s\n")
    async with running(tmp_path, source, PRESS) as node:
        await more_rows(node)
        assert "the server looks at variables every 0.1 s, not every 0 s" in node.source("press").last_error
    async with running(tmp_path, source, PRESS) as node:
        await more_rows(node)
        (gap,) = gaps(await node.stored())
    assert gap["reason"].startswith("the server does not hand over the subscription: BadUserAccessDenied")
    assert gap["lost"] == "possible"


async def test_the_state_of_an_alarm_is_known_again_after_a_gap(tmp_path: Path, node_opcua: NodeOpcuaServer) -> None:
    node_opcua.kill()
    node_opcua.options.events = True
    await asyncio.to_thread(node_opcua.start)
    nodes = "[{id: i=2253, events: true, topic: press/alarms}]"
    async with running(tmp_path, opcua(node_opcua.port, nodes=nodes), PRESS) as node:
        await node.whole(1)
        node_opcua.kill()
        await asyncio.to_thread(node_opcua.start)
        found = await node.whole(3, 120)
    first, again = (json.loads(each.payload) for each in found if each.key == b"press/alarms")
    assert [each.key for each in found] == [b"press/alarms", b"press/$gap", b"press/alarms"]
    for alarm in (first, again):
        assert (alarm["condition"], alarm["active"], alarm["refresh"]) == ("OilLow", True, True)


async def test_variables_of_node_opcua_are_written(tmp_path: Path, node_opcua: NodeOpcuaServer) -> None:
    writes = '      writes: {speed: {node: "nsu=urn:example:press;s=speed", type: Double, min: 0, max: 10}}\n'
    async with running(tmp_path, opcua(node_opcua.port, writes), PRESS) as node:
        await more_rows(node)
        found = await written(node, b"2.5", "press/$write/speed")
    assert found == {"outcome": "written", "value": 2.5, "read_back": 2.5}


@pytest.fixture
def modbus_serial(tmp_path: Path) -> Iterator[ModbusSerialServer]:
    try:
        MODBUS_SERIAL.obtain()
    except LookupError as reason:
        pytest.skip(str(reason))
    with ModbusSerialServer(free_port(), tmp_path / "values.log") as found:
        yield found


async def test_no_poll_of_modbus_serial_is_lost_in_silence(tmp_path: Path, modbus_serial: ModbusSerialServer) -> None:
    registers = "{n: {address: 0}, x: {address: 7, type: f32}, pump: {address: 3, kind: coil}}"
    writes = "      writes: {x: {device: meter, register: x, min: 0, max: 10}, pump: {device: meter, register: pump}}\n"
    async with Cutter(modbus_serial.port).listening() as proxy:
        source = modbus_source(proxy.port, device("meter", registers), writes).replace("timeout: 200ms", "timeout: 5s")
        async with running(tmp_path, source, LINE) as node:
            for what in ("cut", "killed", "away", "cut"):
                await settled(node)
                assert (await written(node, b"3.1", "line/$write/x"))["outcome"] == "written"
                assert (await written(node, b"true", "line/$write/pump"))["read_back"] is True
                connections = node.source("line").connections
                if what == "killed":
                    await asyncio.to_thread(modbus_serial.kill)
                    await asyncio.to_thread(modbus_serial.start)
                await proxy.away(1.0 if what == "away" else 0.0)
                await until(lambda before=connections: node.source("line").connections > before)  # type: ignore[misc]
            await settled(node)
            found = await node.stored()
    assert_no_silent_gap(found, timeout_s=5.0)
    assert values(found)[-1][1]["x"] == 3.1
