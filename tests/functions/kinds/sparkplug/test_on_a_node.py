"""A real client plays an edge node to a real node: births, data by alias, a lost message, a death. Only the clock is
the test's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.derived.test_pages_on_a_node import Clock, caught_up, client, read, running, values
from tests.functions.kinds.sparkplug.edge_node_client import EdgeNodeClient
from tests.functions.kinds.sparkplug.messages import START, number, payload, temperature
from tests.support.waiting import until
from weft.config.units import Address
from weft.edge_node import node as node_module
from weft.edge_node.derived.part import FunctionsPart
from weft.edge_node.node import EdgeNode
from weft.functions.sparkplug_payloads import Payload
from weft.protocols.batch import Record

SECOND = 10**9
CONFIG = """
node: press-7
data_dir: /var/lib/weft/press-hall
sparkplug: {host_id: plant-historian}
streams:
  sparkplug: {from: "spBv1.0/#", payload: sparkplug}
  metrics:
    from_stream: sparkplug
    functions:
      - sparkplug: {certificates: true}
  messages:
    from: "spBv1.0/plant/+/line1/#"
    functions:
      - sparkplug: {rows: message, rebirth: false}
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(node_module, "wall_clock", made)
    return made


def port_of(node: EdgeNode) -> int:
    address = node.addresses["mqtt"]
    assert isinstance(address, Address)
    return address.port


def temperatures(node: EdgeNode) -> list[Any]:
    found = [row for row in values(read(node, "metrics")) if row["metric"] == "temperature"]
    return [(row["value"], row["quality"]) for row in found]


def types(found: list[Record]) -> list[Any]:
    return [dict(record.headers)["sparkplug.type"] for record in found]


async def test_an_edge_node_and_its_device(tmp_path: Path, clock: Clock) -> None:
    async with running(CONFIG, tmp_path) as node:
        async with EdgeNodeClient(port_of(node), bd_seq=3) as edge_node:
            edge_node.measure(22.5)
            edge_node.say("DDATA/line1/pump", {"alias": 2, "int_value": 1500})
            await until(lambda: len(read(node, "metrics")) == 6)
            found = read(node, "metrics")
            assert [
                (each.key, row["value"], row["datatype"]) for each, row in zip(found, values(found), strict=True)
            ] == [
                (b"plant/line1//bdSeq", 3, "UInt64"),
                (b"plant/line1//temperature", 21.5, "Double"),
                (b"plant/line1//Node Control/Rebirth", None, "Boolean"),
                (b"plant/line1/pump/Motor/RPM", 1480, "Int32"),
                (b"plant/line1//temperature", 22.5, "Double"),
                (b"plant/line1/pump/Motor/RPM", 1500, "Int32"),
            ]
            # A message is lost, and the births come again, once.
            edge_node.lose_a_message()
            edge_node.measure(23.0)
            await until(lambda: len(read(node, "metrics")) == 7)
            clock.now += 7 * SECOND
            await until(lambda: edge_node.requests == 1)
            edge_node.measure(23.5)
            await until(lambda: len(read(node, "metrics")) == 12)
            clock.now += 100 * SECOND
            edge_node.measure(24.0)
            await until(lambda: len(read(node, "metrics")) == 13)
            doubtful = [dict(each.headers).get("sparkplug.doubtful", False) for each in read(node, "metrics")]
            assert doubtful == [False] * 6 + [True] + [False] * 6
        # The client is gone without a word: the broker publishes its will.
        await until(lambda: len(read(node, "metrics")) == 17)
        assert temperatures(node) == [
            (21.5, 192),
            (22.5, 192),
            (23.0, 192),
            (21.5, 192),
            (23.5, 192),
            (24.0, 192),
            (None, 500),
        ]
        assert edge_node.requests == 1
        assert [json.loads(state)["online"] for state in edge_node.states] == [True]
        # The messages are in their stream as they came, and what the node asked is there as well.
        assert sum(b"/NCMD/" in record.key for record in read(node, "sparkplug")) == 1
        assert types(read(node, "messages"))[-2:] == ["NDEATH", "NDEATH"]
        assert values(read(node, "messages"))[2] == {"timestamp": 1_700_000_000_000, "seq": 2, "temperature": 22.5}
        assert [*read(node, "metrics-errors"), *read(node, "messages-errors")] == []
        async with client(node) as reader:
            await reader.subscribe("$sparkplug/certificates/#")
            births = {str((await anext(reader.messages)).topic) for _ in range(2)}
        place = "$sparkplug/certificates/spBv1.0/plant"
        assert births == {f"{place}/NBIRTH/line1", f"{place}/DBIRTH/line1/pump"}


async def test_aliases_outlive_a_restart_of_the_node(tmp_path: Path, clock: Clock) -> None:
    """Its edge node is behind a bridge that stayed: no will, and no birth again."""
    async with running(CONFIG, tmp_path) as node, client(node) as bridge:
        await bridge.publish("spBv1.0/plant/NBIRTH/line1", payload(number(0), temperature(), seq=0), qos=1)
        await until(lambda: temperatures(node) == [(21.5, 192)])
    clock.now += SECOND
    async with running(CONFIG, tmp_path) as node, client(node) as bridge:
        await bridge.publish("spBv1.0/plant/NDATA/line1", payload({"alias": 1, "double_value": 20}, seq=1), qos=1)
        await until(lambda: temperatures(node) == [(21.5, 192), (20.0, 192)])
        assert not any("sparkplug.doubtful" in dict(each.headers) for each in read(node, "metrics"))


async def test_the_host_says_that_it_is_online_and_when_it_goes(tmp_path: Path, clock: Clock) -> None:
    async with running(CONFIG, tmp_path) as node, EdgeNodeClient(port_of(node)) as edge_node:
        await until(lambda: len(edge_node.states) == 1)
        began = clock.now
        clock.now += SECOND
        await node.close()
        await until(lambda: len(edge_node.states) == 2)
    assert [json.loads(state) for state in edge_node.states] == [
        {"online": True, "timestamp": began // 10**6},
        {"online": False, "timestamp": clock.now // 10**6},
    ]


async def test_a_request_that_comes_hours_late_is_left_out(tmp_path: Path, clock: Clock) -> None:
    """The functions were added today, and read what the log has of yesterday."""
    unknown = {"alias": 1, "double_value": 20}
    raw = CONFIG.partition("  metrics:")[0]
    async with running(raw, tmp_path) as node, client(node) as edge_node:
        await edge_node.publish("spBv1.0/plant/NDATA/line1", payload(unknown, seq=2), qos=1)
        clock.now += 3600 * SECOND
    async with running(CONFIG, tmp_path) as node, client(node) as edge_node:
        await edge_node.subscribe("spBv1.0/+/NCMD/+", qos=1)
        await until(lambda: node.part(FunctionsPart).figures()["metrics"].alerts == 1)
        await edge_node.publish("spBv1.0/plant/NDATA/line1", payload(unknown, seq=3), qos=1)
        await until(lambda: caught_up(node, 2))
        clock.now += 10 * SECOND
        await until(lambda: node.part(FunctionsPart).figures()["metrics"].alerts == 2)
        assert str((await anext(edge_node.messages)).topic) == "spBv1.0/plant/NCMD/line1"
        await until(lambda: asked_at(node))
        # Today, and not yesterday.
        assert min(asked_at(node)) > (START + 3600 * SECOND) // 10**6


def asked_at(node: EdgeNode) -> list[int]:
    """Times of the requests that the log has, ms."""
    requests = [each.payload for each in read(node, "sparkplug") if b"/NCMD/" in each.key]
    return [Payload.FromString(request).timestamp for request in requests]
