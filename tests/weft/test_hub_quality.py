"""`weft hub quality`: commands on a store, and a hub that counts rows while it is killed."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from bench.log_writer import Delivery, LogWriter
from examples.demo.fabric import free_port
from tests.support.processes import Start, publish, weft
from tests.support.waiting import wait_until
from tests.weft.test_hub_schemas import EDGE, HUB

RULES = """\
quarantine: true
vanished_after: 500
rules:
  hot: {range: {field: t, max: 80}, tolerate: 0.05, over: 5m}
  there: {not_null: n}
  fits: {fits: true}
  once: {unique: [n]}
  newest: {fresh: 1h}
"""


def quality(command: str, config: Path, *given: object) -> str:
    """What a command prints, or the error that it ends with."""
    result = weft("hub", "quality", command, config, *given)
    return result.output if result.exception is None else str(result.exception)


def declared(config: Path, text: str, stream: str = "telemetry") -> str:
    file = config.parent / "quality.yaml"
    file.write_text(text)
    return quality("set", config, stream, file)


def with_schema(config: Path, text: str) -> None:
    file = config.parent / "schema.yaml"
    file.write_text(text)
    assert weft("hub", "schema", "set", config, "telemetry", file).exception is None


def test_rules_are_declared_read_and_withdrawn(config: Path) -> None:
    with_schema(config, "fields: {t: float, n: int}")
    assert declared(config, RULES) == "stream default/telemetry has 5 rules\n"
    assert quality("get", config, "telemetry") == f"# stream default/telemetry, version 2\n{RULES}"
    (reported,) = json.loads(quality("list", config, "--json"))
    assert (reported["stream"], reported["rules"], reported["version"], reported["unusable"]) == (
        "default/telemetry",
        ["hot", "there", "fits", "once", "newest"],
        2,
        None,
    )
    assert quality("remove", config, "telemetry") == "withdrew the quality rules of stream default/telemetry\n"
    assert "has no quality rules; streams with some: none" in quality("get", config, "telemetry")
    assert "there is no quality 'default/telemetry'" in quality("remove", config, "telemetry")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rules: {a: {range: {field: t}}}", "quality.yaml:1: rules.a.range: expected `min`, `max` or both"),
        ("rules: {a: {fit: true}}", "is not a check. Did you mean fits?"),
        ("rules: {a: {not_null: t, fits: true}}", "expected one check, got not_null and fits"),
        ("rules: {a: {not_null: t}, b: {not_null: t}}", "rules.b: is the same check as a: keep one"),
        ("rules: {a: {not_null: t, tolerate: 2}}", "less than 1"),
        ("rules: {a: {fresh: 1h, tolerate: 0.1}}", "a stream is fresh or not"),
        ("vanished_after: null", "expected rules, got an empty file"),
    ],
)
def test_what_is_wrong_in_rules_is_refused_with_its_line(config: Path, text: str, why: str) -> None:
    assert why in declared(config, text)


def test_rules_that_have_nothing_to_check_are_doubted(config: Path) -> None:
    rules = config.parent / "quality.yaml"
    rules.write_text("rules: {a: {range: {field: s, max: 1}}, b: {not_null: line}, c: {range: {field: x, min: 0}}}")
    result = weft("hub", "quality", "set", config, "telemetry", rules)
    assert "a: nothing is checked until the stream has a schema" in result.stderr
    with_schema(config, "fields: {s: string}")
    result = weft("hub", "quality", "set", config, "telemetry", rules)
    assert result.stderr.splitlines() == [
        "warning: a: 's' is string, and a range needs numbers, so nothing is checked",
        "warning: b: 'line' is not a field of the stream's schema, and no edge has named a topic level like this yet",
        "warning: c: the stream's schema has no field 'x', so nothing is checked",
    ]


def test_topic_levels_that_edges_have_named_are_not_doubted(config: Path) -> None:
    with_schema(config, "fields: {n: int}")
    log = LogWriter(str(config.parent / "store"), shards=2)
    log.write(
        *(Delivery(edge, [], topics=[f"plant/{{{level}}}"]) for edge, level in (("a", "dev"), ("b", "line"))),
        received=1,
    )
    rules = config.parent / "quality.yaml"
    rules.write_text("rules: {a: {unique: [dev, n]}, b: {not_null: line}, c: {unique: [n, devv]}}")
    result = weft("hub", "quality", "set", config, "telemetry", rules)
    assert [line.partition(" is not a field")[0] for line in result.stderr.splitlines()] == ["warning: c: 'devv'"]


def reading(number: int) -> str:
    """One in ten is hot, one in seven has no number, one in fifty does not fit."""
    if number % 50 == 0:
        return json.dumps({"t": "broken", "n": number})
    return json.dumps({"t": 90 if number % 10 == 0 else 20.5} | ({} if number % 7 == 0 else {"n": number}))


def copied(store: Path, wanted: int) -> int:
    """Wait for the copies of the rows that fail, and compare them with the marks. Return their number."""
    uri, of_all = (str(store / folder / "default" / "telemetry") for folder in ("quarantine", "tables"))
    wait_until(lambda: DeltaTable.is_deltatable(uri) and DeltaTable(uri).count() >= wanted, what="copies")
    names = ["_shard", "_offset", "_failed"]
    rows, copies = (DeltaTable(each).to_pyarrow_table(columns=names).to_pylist() for each in (of_all, uri))
    places = {(row["_shard"], row["_offset"]): row["_failed"] for row in rows if row["_failed"]}
    assert {(row["_shard"], row["_offset"]): row["_failed"] for row in copies} == places
    assert len(copies) == wanted
    return len(copies)


@pytest.mark.slow
@pytest.mark.processes
def test_each_row_counts_once_however_often_the_hub_is_killed(start: Start, tmp_path: Path) -> None:
    port, mqtt = free_port(), free_port()
    hub_yaml, edge_yaml = tmp_path / "hub.yaml", tmp_path / "edge.yaml"
    hub_yaml.write_text(HUB.format(port=port))
    edge_yaml.write_text(EDGE.format(port=port, mqtt=mqtt))
    hub = start("hub", hub_yaml)
    with_schema(hub_yaml, "fields: {t: float, n: int}")
    assert "5 rules" in declared(hub_yaml, RULES)

    def seen() -> list[dict[str, Any]]:
        return hub.json("v1/status")["quality"]  # type: ignore[no-any-return]

    # Processes read the rules when they start. One that runs reads them soon, and may make rows until then, unchecked.
    hub.kill()
    hub = start("hub", hub_yaml)
    start("edge", edge_yaml)
    sent, done = 0, threading.Event()

    def send() -> None:
        nonlocal sent
        while not done.is_set():
            publish(mqtt, "plant/a/m1/telemetry", [reading(number) for number in range(sent, sent + 200)])
            sent += 200

    publisher = threading.Thread(target=send)
    publisher.start()
    uri = str(tmp_path / "store" / "tables" / "default" / "telemetry")

    def version() -> int:
        return DeltaTable(uri).version() if DeltaTable.is_deltatable(uri) else -1

    chance = random.Random(20)
    try:
        for _ in range(5):
            reached = version()
            wait_until(lambda reached=reached: version() > reached + chance.randrange(3), what="rows")  # type: ignore[misc]
            hub.kill()
            hub = start("hub", hub_yaml)
    finally:
        done.set()
        publisher.join()
    wait_until(lambda: DeltaTable(uri).count() == sent, what="all rows")
    # Who keeps the table counts its rows, and after a kill another process may have to take it over first.
    wait_until(lambda: [each["rules"][0]["rows"] for each in seen()] == [sent], 90, lambda: f"{sent} rows in {seen()}")
    (found,) = seen()
    numbers = range(sent)
    expected = {
        "hot": sum(number % 10 == 0 and number % 50 != 0 for number in numbers),
        "there": sum(number % 7 == 0 and number % 50 != 0 for number in numbers),
        "fits": sum(number % 50 == 0 for number in numbers),
        "once": 0,
    }
    counted = {rule["name"]: (rule["rows"], rule["failed"]) for rule in found["rules"]}
    assert counted == {name: (sent, failed) for name, failed in expected.items()} | {"newest": (None, None)}
    assert (found["rows"], found["unchecked"], found["vanished"]) == (sent, 0, [])
    copies = copied(tmp_path / "store", sum(not (number % 10 and number % 7) for number in numbers))
    (found,) = seen()
    assert (found["quarantine"]["rows"], found["quarantine"]["error"]) == (copies, None)
    publish(mqtt, "plant/a/m1/telemetry", [json.dumps({"temp": 20, "n": -1})] * 600)
    wait_until(lambda: seen()[0]["vanished"] != [], what="the renamed field")
    (found,) = seen()
    assert found["vanished"][0]["field"] == "t"
    assert [rule["failed"] for rule in found["rules"] if rule["name"] == "once"] == [599]
    states = {rule["name"]: rule["state"] for rule in found["rules"]}
    assert states["newest"] in {"good", "unknown"}, "an edge node without NTP has no time that can be believed"
    metrics = hub.text("metrics")
    failed = 'weft_hub_quality_failed_rows_total{rule="fits",stream="telemetry",tenant="default"}'
    assert f"{failed} {expected['fits']}.0\n" in metrics
    assert "weft_hub_quality_alarms 5.0\n" in metrics, "four rules and the field"
    shown = weft("hub", "status", hub_yaml).output
    assert "QUALITY: default/telemetry, rule hot: " in shown
    assert "QUALITY: default/telemetry, field t has no value in the last 600 rows" in shown
