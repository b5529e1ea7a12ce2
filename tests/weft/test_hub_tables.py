"""`weft hub quality`: commands on a store, and a hub that counts rows while it is killed."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from bench.log_writer import Delivery, LogWriter
from examples.demo.fabric import free_port
from tests.cloud_hub.facts.test_hub import SOON, declare, token
from tests.cloud_hub.live import running_hub
from tests.support.processes import Start, publish, weft
from tests.support.waiting import until, wait_until
from weft.cloud_hub.facts.fact import TENANT
from weft.config.load import parse_schema
from weft.config.payload_schema.documents import yaml_text
from weft.hub_api.rights import Scope
from weft.storage.cluster_log import Change
from weft.storage.object_store.directory import MemoryStore

# --- `weft hub schema`: commands on a store, and a hub whose tables follow them


FIRST = """\
format: json
fields:
  temperature: {type: float, from: t.value, unit: °C, description: 'Oil: at the valve'}
  at: timestamp(ms)
  'on': {type: bool, required: true}
"""


def schema(command: str, config: Path | str, *given: object) -> str:
    """What a command prints, or the error that it ends with."""
    result = weft("hub", "schema", command, config, *given)
    return result.output if result.exception is None else str(result.exception)


def declared(config: Path, text: str, stream: str = "telemetry") -> str:
    file = config.parent / "schema.yaml"
    file.write_text(text)
    return schema("set", config, stream, file)


def test_a_schema_is_declared_read_compared_and_withdrawn(config: Path) -> None:
    (config.parent / "next.yaml").write_text(FIRST)
    assert schema("diff", config, "telemetry", config.parent / "next.yaml").splitlines() == [
        "stream default/telemetry has no schema; `set` would declare one with 3 fields:",
        "+ temperature: float, from t.value, unit °C, description Oil: at the valve",
        "+ at: timestamp(ms)",
        "+ on: bool, required true",
    ]
    first = json.loads(schema("diff", config, "telemetry", config.parent / "next.yaml", "--json"))
    assert [(each["field"], each["new_column"]) for each in first] == [
        ("temperature", True),
        ("at", True),
        ("on", True),
    ]
    assert declared(config, FIRST) == "stream default/telemetry has version 1: 3 fields\n"
    assert "version 1" in declared(config, FIRST), "nothing changed, so there is no other version"
    text = schema("get", config, "telemetry")
    assert text == f"# stream default/telemetry, version 1\n{FIRST}"
    changed = FIRST.replace("timestamp(ms)", "timestamp(s)").replace("°C", "K").replace("'on'", "off")
    (config.parent / "next.yaml").write_text(changed)
    diff = schema("diff", config, "telemetry", config.parent / "next.yaml")
    assert diff.splitlines() == [
        "~ temperature: unit °C -> K (another column)",
        "~ at: type timestamp(ms) -> timestamp(s)",
        "+ off: bool, required true",
        "- on: bool, required true",
    ]
    assert "version 2" in declared(config, changed)
    assert schema("diff", config, "telemetry") == diff, "with the version before it"
    assert "unit: °C" in schema("get", config, "telemetry", "--version", "1")
    (listed,) = json.loads(schema("list", config, "--json"))
    assert (listed["stream"], listed["version"], listed["fields"], listed["unusable"]) == ("telemetry", 2, 3, None)
    assert schema("remove", config, "telemetry") == "withdrew the schema of stream default/telemetry\n"
    assert json.loads(schema("list", config, "--json")) == []
    assert "unit: K" in schema("get", config, "telemetry", "--version", "2"), "rows still name it"


def test_what_cannot_be_declared_says_why(config: Path) -> None:
    assert "schema.yaml:1: fields.t: expected a type such as float" in declared(config, "fields: {t: floaty}")
    assert "names that begin with _" in declared(config, "fields: {_t: float}")
    assert "there is no tenant 'acme'" in declared(config, FIRST, "acme/telemetry")
    assert "more than 64 KiB" in declared(
        config, json.dumps({"fields": {f"f{at}": {"type": "int", "description": "x" * 1000} for at in range(80)}})
    )
    for given, words in (
        (("get", "telemetry"), "has no schema; streams with one: none"),
        (("get", "telemetry", "--version", "7"), "entry 7 of the cluster log is not a schema"),
        (("remove", "telemetry"), "there is no schema 'default/telemetry'"),
    ):
        assert words in schema(given[0], config, *given[1:])
    declared(config, FIRST)
    assert "is the first; name a file" in schema("diff", config, "telemetry")


def test_a_version_keeps_to_the_rule_that_was_declared(config: Path) -> None:
    declared(config, FIRST)
    kept = FIRST + "  rpm: int\n"
    (config.parent / "kept.yaml").write_text(kept)
    assert "version 2" in schema("set", config, "telemetry", config.parent / "kept.yaml", "--compatibility", "full")
    assert "compatibility full" in schema("get", config, "telemetry")
    said = declared(config, kept.replace("rpm: int", "rpm: float"))
    assert "not compatible (full) with version 2: forward: rpm: not every float is a int" in said
    assert "Keep to it, or declare --compatibility none" in said
    wider = config.parent / "schema.yaml"
    checked = weft("hub", "schema", "check", config, "telemetry", wider)
    assert checked.return_value == 1
    assert "not compatible with version 2: forward: rpm" in checked.output
    assert "version 3" in schema("set", config, "telemetry", wider, "--compatibility", "backward")
    (listed,) = json.loads(schema("list", config, "--json"))
    assert (listed["compatibility"], listed["personal"]) == ("backward", [])
    marked = kept.replace("rpm: int", "operator: {type: string, personal: true}")
    assert "version 4" in declared(config, marked), "the rule stays, and lets optional fields come and go"
    (listed,) = json.loads(schema("list", config, "--json"))
    assert (listed["compatibility"], listed["personal"]) == ("backward", ["operator"])


async def test_a_url_names_a_running_hub_that_declares_schemas(tmp_path: Path) -> None:
    store, file = MemoryStore(), tmp_path / "schema.yaml"
    file.write_text(FIRST)
    (tmp_path / "ada.token").write_text("secret")
    async with running_hub(store, tokens_required=True, **SOON) as hub:
        await declare(hub, store, lambda _: Change(TENANT, "acme", b"{}"))
        grants = ("declare:tele*", "read", "status")
        await declare(hub, store, token("ada", "secret", Scope.GRANTED, tenant="acme", grants=grants))

        async def ask(verb: str, *words: object) -> str:
            return await asyncio.to_thread(schema, verb, hub.url, *words, "--token-file", tmp_path / "ada.token")

        assert "would declare one with 3 fields" in await ask("diff", "telemetry", file)
        assert "stream acme/telemetry has version 3: 3 fields" in await ask("set", "telemetry", file, "--reason", "new")
        assert "is not for stream 'secret'" in await ask("set", "secret", file)

        async def is_listed() -> bool:
            listed = json.loads(await ask("list", "--json"))
            return [(each["stream"], each["by"]) for each in listed] == [("telemetry", "token ada")]

        await until(is_listed)
        assert "unit: °C" in await ask("get", "acme/telemetry")
        assert await ask("diff", "telemetry", file) == "no difference\n"
        assert await ask("remove", "telemetry") == "withdrew the schema of stream acme/telemetry\n"


def test_the_text_of_a_schema_is_the_schema() -> None:
    for text in (
        FIRST,
        "a decimal(10,2), b array<timestamp(ms)>, no string, c binary",
        'fields: {n: {type: int, from: "$[\\"a.b\\"]"}}',
    ):
        made = parse_schema(text)
        assert parse_schema(yaml_text(made)) == made


def test_a_draft_from_a_file_can_be_declared(config: Path) -> None:
    sample, made = config.parent / "sample.jsonl", config.parent / "draft.yaml"
    sample.write_text('{"t": 1.5}\n\n{"t": 2, "s": "x"}\nnonsense\n')
    made.write_text(schema("infer", config, "telemetry", "--file", sample))
    assert "1 of them are not json" in made.read_text()
    assert "2 fields" in schema("set", config, "telemetry", made)
    assert "the log has no records of stream default/telemetry" in schema("infer", config, "telemetry")
    sample.write_text("1\n[2]\n")
    assert "none of 2 records is an object in json" in schema("infer", config, "telemetry", "--file", sample)


def test_schemas_of_other_languages_are_declared(config: Path) -> None:
    file = config.parent / "schema.json"
    file.write_text('{"properties": {"t": {"type": "number"}, "m": {"type": ["string", "number"]}}}')
    result = weft("hub", "schema", "set", config, "telemetry", file)
    assert "version 1: 1 field" in result.output
    assert "no column for 1 place: m" in result.stderr
    assert schema("get", config, "telemetry").endswith("format: json\nfields:\n  t: float\n")
    file.write_text('{"type": "record", "name": "R", "fields": [{"name": "t", "type": "B"}]}')
    assert "no type 'B' of Avro" in schema("set", config, "telemetry", file)
    (descriptors := config.parent / "reading.desc").write_bytes(b"x")
    assert "it is damaged, or none" in schema("set", config, "telemetry", descriptors, "--message", "A")


@pytest.mark.slow
def test_a_million_records_are_looked_at_in_seconds(config: Path) -> None:
    sample = config.parent / "sample.jsonl"
    readings = (
        {"device": f"p{n % 50}", "t": n / 7, "state": "on", "ts": 1_700_000_000 + n, "n": n} for n in range(10_000)
    )
    sample.write_text("".join(json.dumps(each) + "\n" for each in readings) * 100)
    began = time.process_time()
    found = schema("infer", config, "telemetry", "--file", sample, "--records", 1_000_000)
    assert time.process_time() - began < 5
    assert "A draft from 1000000 records" in found


HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 2
commit_interval: 20ms
tables: {{interval: 200ms}}
"""
EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:{mqtt}"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry", payload: json}}}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", retry_min: 50ms, retry_max: 200ms}}}}
"""
VERSIONS = (
    "fields: {n: int}",
    "fields: {n: {type: int, required: true}, t: {type: float, unit: K}}",
    "fields: {n: string, t: {type: float, unit: K}, line: string}",
    "fields: {n: int, t: {type: float, unit: C}}",
)


VERSIONS_READ = 20


@pytest.mark.slow
@pytest.mark.processes
def test_a_schema_that_changes_under_load_stops_no_table_and_loses_no_row(start: Start, tmp_path: Path) -> None:
    port, mqtt = free_port(), free_port()
    hub_yaml, edge_yaml = tmp_path / "hub.yaml", tmp_path / "edge.yaml"
    hub_yaml.write_text(HUB.format(port=port))
    edge_yaml.write_text(EDGE.format(port=port, mqtt=mqtt))
    start("hub", hub_yaml)
    start("edge", edge_yaml)
    sent, done = 0, threading.Event()

    def send() -> None:
        nonlocal sent
        while not done.is_set():
            numbers = range(sent, sent + 200)
            publish(mqtt, "plant/a/m1/telemetry", [json.dumps({"n": n, "t": n / 2, "line": "x"}) for n in numbers])
            sent += 200

    publisher = threading.Thread(target=send)
    publisher.start()
    uri = str(tmp_path / "store" / "tables" / "default" / "telemetry")

    def newest() -> int | None:
        if not DeltaTable.is_deltatable(uri):
            return None
        rows = DeltaTable(uri).to_pyarrow_table()
        return max(filter(None, rows["_schema"].to_pylist()), default=0) if "_schema" in rows.schema.names else 0

    try:
        wait_until(lambda: newest() is not None, what="the table")
        for number, text in enumerate(VERSIONS, 1):
            assert declared(hub_yaml, text).startswith(f"stream default/telemetry has version {number}:")
            wait_until(lambda wanted=number: newest() == wanted, what=f"rows of version {number}")  # type: ignore[misc]
    finally:
        done.set()
        publisher.join()

    def rows() -> int:
        return int(DeltaTable(uri).count())

    wait_until(lambda: rows() == sent, what="all rows")
    drafted = schema("infer", hub_yaml, "telemetry", "--records", 1000)
    assert [line.split(" #")[0] for line in drafted.splitlines()[3:]] == ["  n: int ", "  t: float ", "  line: string"]
    table = DeltaTable(uri)
    found = table.to_pyarrow_table().sort_by("_offset").to_pylist()
    assert sorted(json.loads(row["payload"])["n"] for row in found) == [*range(sent)]
    # In any order: each process writes rows by the version that it knows, and learns of another within seconds.
    assert {row["_schema"] or 0 for row in found} == {0, 1, 2, 3, 4}
    for row in found:
        assert typed(row) == expected(row), row
    for version in {*range(0, table.version(), max(1, table.version() // VERSIONS_READ)), table.version()}:
        same_in_engines(DeltaTable(uri, version))


def typed(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("n", "n_2", "t", "t_2", "line_2", "_misfit"))


def expected(row: dict[str, Any]) -> tuple[Any, ...]:
    """The same by the payload and the version."""
    sent = json.loads(row["payload"])
    n, t = sent["n"], sent["t"]
    by_version = {
        None: (None,) * 6,
        1: (n, None, None, None, None, None),
        2: (n, None, t, None, None, None),
        3: (None, None, t, None, "x", [("n", f"expected text, got {n}")]),
        4: (n, None, None, t, None, None),
    }
    return by_version[row["_schema"]]


def same_in_engines(table: DeltaTable) -> None:
    names = [field.name for field in table.schema().fields if field.name not in {"_headers", "_misfit"}]
    if not table.file_uris():
        return
    by_delta = table.to_pyarrow_table(columns=names).sort_by("_offset")
    assert pl.scan_delta(table).select(names).sort("_offset").collect().to_dicts() == pl.from_arrow(by_delta).to_dicts()
    database = duckdb.connect()
    database.register("telemetry", table.to_pyarrow_dataset())
    numbers = [name for name in names if name in {"n", "t", "t_2", "_schema", "_offset"}]
    query = f"SELECT {', '.join(numbers)} FROM telemetry ORDER BY _offset"
    assert database.sql(query).fetchall() == list(zip(*(by_delta[name].to_pylist() for name in numbers), strict=True))


# --- hub quality


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


def hub_quality_declared(config: Path, text: str, stream: str = "telemetry") -> str:
    file = config.parent / "quality.yaml"
    file.write_text(text)
    return quality("set", config, stream, file)


def with_schema(config: Path, text: str) -> None:
    file = config.parent / "schema.yaml"
    file.write_text(text)
    assert weft("hub", "schema", "set", config, "telemetry", file).exception is None


def test_rules_are_declared_read_and_withdrawn(config: Path) -> None:
    with_schema(config, "fields: {t: float, n: int}")
    assert hub_quality_declared(config, RULES) == "stream default/telemetry has 5 rules\n"
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
    assert why in hub_quality_declared(config, text)


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
    assert "5 rules" in hub_quality_declared(hub_yaml, RULES)

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
    wait_until(lambda: [rule["failed"] for rule in seen()[0]["rules"] if rule["name"] == "once"] == [599])
    (found,) = seen()
    states = {rule["name"]: rule["state"] for rule in found["rules"]}
    assert states["newest"] in {"good", "unknown"}, "an edge node without NTP has no time that can be believed"
    metrics = hub.text("metrics")
    failed = 'weft_hub_quality_failed_rows_total{rule="fits",stream="telemetry",tenant="default"}'
    assert f"{failed} {expected['fits']}.0\n" in metrics
    assert "weft_hub_quality_alarms 5.0\n" in metrics, "four rules and the field"
    shown = weft("hub", "status", hub_yaml).output
    assert "QUALITY: default/telemetry, rule hot: " in shown
    assert "QUALITY: default/telemetry, field t has no value in the last 600 rows" in shown
