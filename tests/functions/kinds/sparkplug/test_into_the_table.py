"""From edge nodes of Sparkplug B to a hub's table: typed metrics by alias, births asked for, deaths, and a SIGKILL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import publish

from examples.demo.fabric import DemoHub, Edge
from tests.functions.kinds.sparkplug.edge_node_client import EdgeNodeClient
from tests.functions.kinds.sparkplug.messages import number, payload, rpm, temperature
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.processes]
PAGE = Path(__file__).parents[4] / "docs/how-to/feed-from-a-plc-with-sparkplug.md"
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
