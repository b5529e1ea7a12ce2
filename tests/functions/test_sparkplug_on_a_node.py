"""A real client plays an edge node to a real node: births, data by alias, a lost message, a death. Only the clock is
the test's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import publish

from examples.demo.fabric import DemoHub, Edge
from tests.edge_node.derived.test_part import Clock, caught_up, client, read, values
from tests.edge_node.derived.test_part import pages_on_a_node_running as running
from tests.functions.sparkplug_plant import START, EdgeNodeClient, number, payload, rpm, temperature
from tests.support.processes import Node, weft
from tests.support.waiting import until, wait_until
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


# --- A node that is killed while an edge node talks: what it acknowledged is there, and each message counts once


KILLED_NODE_CONFIG = """\
node: press-7
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: {bind: "127.0.0.1:0"}
disk: {budget: 64MiB}
streams:
  sparkplug: {from: "spBv1.0/#", payload: sparkplug}
  metrics:
    from_stream: sparkplug
    functions: [sparkplug: {rebirth_every: 1s, reorder: 1s}]
"""
ROUNDS, EACH = 4, 80


def tail(folder: Path, stream: str) -> str:
    said = weft("edge", "tail", folder / "edge.yaml", stream, "--json", "--last", 10_000)
    assert said.exception is None, said.output
    return said.stdout


def rows_of(lines: list[dict[str, Any]]) -> list[Any]:
    return [(each["time_ns"], each.get("key", each.get("topic")), each["payload"], each["headers"]) for each in lines]


@pytest.mark.processes
@pytest.mark.slow
def test_metrics_of_a_node_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(KILLED_NODE_CONFIG)
    sent: list[tuple[float, Any]] = []
    for life in range(ROUNDS):
        node = Node("edge", tmp_path / "edge.yaml")
        with EdgeNodeClient(node.mqtt_port, bd_seq=life, qos=1) as edge_node:
            for at in range(EACH):
                value = float(life * EACH + at)
                sent.append((value, edge_node.measure(value)))
                if at % 20 == 7:
                    edge_node.lose_a_message()
            half = sent[-EACH // 2][1]
            wait_until(half.is_published)
            if life < ROUNDS - 1:
                node.kill()
                continue
            wait_until(sent[-1][1].is_published)
    wait_until(lambda: '"NDEATH"' in tail(tmp_path, "metrics")[-3000:], 60)
    wait_until(lambda: node.json("status")["functions"]["metrics"]["lag_records"] == 0, 60)
    assert node.stop() == 0
    found = [json.loads(line) for line in tail(tmp_path, "metrics").splitlines()]
    values = [json.loads(each["payload"])["value"] for each in found if each["key"] == "plant/line1//temperature"]
    acknowledged = {value for value, info in sent if info.is_published()}
    assert acknowledged <= set(values)
    assert len(acknowledged) > EACH * ROUNDS // 2
    assert None in values, "the deaths of those connections that the kills have ended"
    # The records are those that the messages in the log give without any kill, one by one.
    (tmp_path / "sample.jsonl").write_text(tail(tmp_path, "sparkplug"))
    said = weft(
        "edge", "test-function", tmp_path / "edge.yaml", "metrics", "--input", tmp_path / "sample.jsonl", "--json"
    )
    assert said.exception is None, said.output
    tried = [json.loads(line) for line in said.stdout.splitlines()]
    out = [one for each in tried for one in each.get("outcomes", ()) if one["outcome"] == "out"]
    assert rows_of(found) == rows_of(out)


# --- From edge nodes of Sparkplug B to a hub's table: typed metrics by alias, births asked for, deaths, and a SIGKILL


PAGE = Path(__file__).parents[2] / "docs/how-to/feed-from-a-plc-with-sparkplug.md"
DRAINED_S = 60.0
STREAMS = """\
  sparkplug: {from: "spBv1.0/#", payload: sparkplug, replicate: false, retain: {time: 1h}}
  tags:
    from_stream: sparkplug
    functions: [sparkplug: {rebirth_every: 1m, reorder: 1s}]
  tags-calm:
    from_stream: tags
    functions:
      - where: "not transient"
      - changes: {fields: [value, quality], max_silence: 1h}
"""
STATE = {"name": "state", "alias": 3, "datatype": 12, "string_value": "run"}
RUNS = {"name": "runs", "alias": 4, "datatype": 11, "boolean_value": True}


def say(edge: Edge, *messages: tuple[str, bytes]) -> None:
    """Publish as a bridge does: without a will, and until all is acknowledged."""
    publish.multiple(
        [(f"spBv1.0/plant/{place}", data, 1, False) for place, data in messages], "127.0.0.1", edge.mqtt_port
    )


def table(hub: DemoHub, stream: str) -> list[dict[str, Any]]:
    """Rows of a table by their numbers, each number once."""
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = DeltaTable(f"{hub.store}/tables/default/{stream}").to_pyarrow_table().to_pylist()
    found.sort(key=lambda row: row["_seq"])
    assert [row["_seq"] for row in found] == list(range(len(found))), "a row is missing, or there twice"
    return found


def metrics(rows: list[dict[str, Any]], node: str) -> list[tuple[Any, ...]]:
    found = [(row["device"], json.loads(row["payload"])) for row in rows if row["node"] == node]
    return [(device, each["metric"], each["datatype"], each["value"], each["quality"]) for device, each in found]


def wait_until_in_tables(edge: Edge, hub: DemoHub) -> None:
    def is_there() -> bool:
        status, rows = edge.status(), hub.counts()
        wanted = {name: status["streams"][name]["durable_end"] for name in ("tags", "tags-calm")}
        behind = any(facts["lag_records"] for facts in status["functions"].values())
        return not behind and all(rows.get(name, (0, 0))[1] == count for name, count in wanted.items())

    wait_until(is_there, DRAINED_S, "the tables' last row")


@pytest.mark.slow
@pytest.mark.processes
def test_metrics_of_edge_nodes_are_typed_rows_of_the_table(tmp_path: Path) -> None:
    hub = DemoHub(tmp_path)
    edge = Edge(tmp_path, "edge", hub.port, STREAMS)
    try:
        hub.start()
        edge.start()
        say(
            edge,
            ("NBIRTH/line2", payload(number(0), temperature(), STATE, RUNS, seq=0)),
            ("DBIRTH/line2/pump", payload(rpm(-5), seq=1)),
            ("NDATA/line2", payload({"alias": 1, "double_value": 22.25}, {"alias": 4, "boolean_value": False}, seq=2)),
        )
        edge.kill()  # names and numbers are what it remembers of its log
        edge.start()
        say(
            edge,
            ("DDATA/line2/pump", payload({"alias": 2, "int_value": 1500}, seq=3)),
            ("NDATA/line2", payload({"alias": 3, "string_value": "stop"}, seq=4)),
            ("DDEATH/line2/pump", payload(seq=5)),
        )
        with EdgeNodeClient(edge.mqtt_port, qos=1) as line1:
            line1.measure(30.5)
            line1.lose_a_message()
            last = line1.measure(31.5)
            wait_until(last.is_published)
            wait_until(lambda: line1.requests, what="a request for births")
            last = line1.measure(32.5)
            wait_until(last.is_published)
        wait_until(lambda: edge.status()["streams"]["tags"]["durable_end"] >= 25, what="the death")
        wait_until_in_tables(edge, hub)
        rows = table(hub, "tags")
        assert metrics(rows, "line2") == [
            ("", "bdSeq", "UInt64", 0, 192),
            ("", "temperature", "Double", 21.5, 192),
            ("", "state", "String", "run", 192),
            ("", "runs", "Boolean", True, 192),
            ("pump", "Motor/RPM", "Int32", -5, 192),
            ("", "temperature", "Double", 22.25, 192),
            ("", "runs", "Boolean", False, 192),
            ("pump", "Motor/RPM", "Int32", 1500, 192),
            ("", "state", "String", "stop", 192),
            ("pump", "Motor/RPM", "Int32", None, 500),
        ]
        degrees = [(each[3], each[4]) for each in metrics(rows, "line1") if each[1] == "temperature"]
        assert degrees == [(21.5, 192), (30.5, 192), (31.5, 192), (21.5, 192), (32.5, 192), (None, 500)]
        assert {row["_origin"].partition("@")[0] for row in rows} == {"tags"}
        assert_the_page_query_finds_them(hub)
    finally:
        edge.stop()
        hub.stop()


def assert_the_page_query_finds_them(hub: DemoHub) -> None:
    import duckdb
    from deltalake import DeltaTable

    query = re.search(r'duckdb\.sql\("""(.*?)"""\)', PAGE.read_text(), re.DOTALL)
    assert query is not None
    tags = DeltaTable(f"{hub.store}/tables/default/tags-calm").to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("tags", tags)
    answer = connection.execute(query[1])
    names = [each[0] for each in answer.description]
    found = [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
    latest = {(row["node"], row["device"], row["metric"]): (row["value"], row["quality"]) for row in found}
    assert latest["line2", "", "temperature"] == ("22.25", 192)
    assert latest["line2", "", "state"] == ("stop", 192)
    assert latest["line2", "pump", "Motor/RPM"] == (None, 500)
    assert latest["line1", "", "temperature"] == (None, 500)
