"""Fields that rows do not have: errors, or null as SQL takes it. SQLite counts again."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import msgspec
import pytest

from tests.functions.restart import SECOND
from weft.config.errors import Finding
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.derived.definitions import definitions
from weft.functions.chain import Outputs
from weft.functions.contract import Row

YAML = """
node: a
data_dir: /data
streams:
  hot: {{payload: json}}
  out:
    from: "plant/{{machine}}"
    payload: json
    functions:
      - {function}
        missing: {missing}
"""
ROWS: list[dict[str, Any]] = [
    {"t": 20.5, "a": 1},
    {"t": 30.5},
    {"t": None, "a": 0},
    {"a": 1},
    {"t": 10, "a": None},
    {"t": 99.5, "a": 0},
    {},
]


def config(function: str, missing: str = "null") -> EdgeConfig:
    return parse(YAML.format(function=function, missing=missing), "edge.yaml", EdgeConfig).config


def outputs(function: str, missing: str = "null") -> Outputs:
    (definition,) = definitions(config(function, missing))
    chain, out = definition.make_chain(), Outputs()
    rows = [
        Row((60 + at) * SECOND, b"plant/m", payload := msgspec.json.encode(each), {}, (), at, "in", payload)
        for at, each in enumerate(ROWS)
    ]

    async def run() -> None:
        await chain.process(rows, out)
        while (due := chain.due()) is not None:
            await chain.tick(due, out)

    asyncio.run(run())
    return out


def values(function: str, missing: str = "null") -> list[dict[str, Any]]:
    return [msgspec.json.decode(row.payload or b"") for row in outputs(function, missing).rows]


def sql(select: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE input (t, a)")
    db.executemany("INSERT INTO input VALUES (?, ?)", [(each.get("t"), each.get("a")) for each in ROWS])
    return db.execute(select).fetchall()


def test_a_stream_without_a_format_has_the_rows_that_are_json() -> None:
    (definition,) = definitions(
        parse(
            YAML.format(function="where: t > 25", missing="reject").replace(
                "    payload: json\n    functions", "    functions"
            ),
            "edge.yaml",
            EdgeConfig,
        ).config
    )
    chain, out = definition.make_chain(), Outputs()
    payloads = [b'{"t": 30.5, "a": 1}', b"no json", b'{"t": 9}']
    rows = [Row(1 + at, b"plant/m", each, {}, (), at, "in", each) for at, each in enumerate(payloads)]
    asyncio.run(chain.process(rows, out))
    assert [row.payload for row in out.rows] == [payloads[0]]
    assert [each.row.seq for each in out.rejected] == [1]


def test_aggregates_are_those_of_sql() -> None:
    emit = "{n: count(), nt: count(t), s: sum(t), a: mean(a), hot: sum(t > 25), least: min(t), most: max(a)}"
    (result,) = values(f"window: {{every: 1h, emit: {emit}}}")
    wanted = sql("SELECT count(*), count(t), sum(t), avg(a), sum(t > 25), min(t), max(a) FROM input")
    assert [tuple(result[name] for name in ("n", "nt", "s", "a", "hot", "least", "most"))] == wanted


@pytest.mark.parametrize(
    "condition", ["t > 25", "not t > 25", "t > 25 or a == 1", "t > 25 and a == 0", "t + a > 21", "t != 10"]
)
def test_conditions_hold_where_sql_has_them_true(condition: str) -> None:
    kept = values(f'where: "{condition}"')
    assert [(each.get("t"), each.get("a")) for each in kept] == sql(
        f"SELECT t, a FROM input WHERE {condition.replace('==', '=')}"
    )
    routed = outputs(f'route: [{{to: hot, where: "{condition}"}}]').routed
    assert len(routed["hot"]) == len(kept)


def test_new_fields_are_null() -> None:
    made = values('set: {over: "t > 25", sum: "t + a"}')
    assert [(each["over"], each["sum"]) for each in made] == sql("SELECT t > 25, t + a FROM input")
    assert [each["over"] for each in values('select: {over: "t > 25"}')] == [each["over"] for each in made]


@pytest.mark.parametrize(
    "function", ['where: "t > 25"', 'set: {over: "t > 25"}', "window: {every: 1h, emit: {n: sum(t > 25)}}"]
)
def test_such_rows_go_to_the_errors_as_before(function: str) -> None:
    out = outputs(function, "reject")
    assert [each.row.seq for each in out.rejected] == [2, 3, 6]
    assert config(function, "reject") == config(f"{function}\n        # {{}}", "reject")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("deadband: {field: t, delta: 1}", "not for deadband. deadband has a `missing` of its own, among its settings"),
        ("sql: {every: 1m, select: SELECT 1 AS x}", "not for sql"),
    ],
)
def test_functions_without_expressions_have_no_such_setting(function: str, text: str) -> None:
    found: list[Finding] = list(check(config(function)))
    assert any(at[-1] == "missing" and text in message for at, message in found)
