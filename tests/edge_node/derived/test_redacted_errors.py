"""A stream of errors goes where its stream goes, so it must not have what `redact` keeps from going there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.edge_node.derived.test_before_log import connect, json, running
from tests.support.waiting import until
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.derived.definitions import definitions
from weft.edge_node.derived.part import FunctionsPart
from weft.edge_node.derived.steps import runs_of
from weft.edge_node.node import EdgeNode
from weft.functions.chain import Outputs
from weft.functions.contract import Row
from weft.protocols.batch import Record

CONFIG = """
node: press-hall
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: null
disk: {budget: 64MiB, segment: 4MiB}
streams:
  shifts:
    from: "plant/{line}/shift"
    payload: json
RAW    functions:
      - where: parts > 0
      - redact: {remove: [name, operator.name], headers: [cookie]}
      - set: {rate: parts / hours}
      - where: rate > 1
"""
WITHHELD = "The payload and the reason are left out, as redact comes later"
BEFORE, BEHIND, TWICE = json(parts="Kim"), json(parts=8, hours=0, name="Kim"), json(parts=1, operator="Kim")


def reasons(errors: list[Record]) -> list[Any]:
    return [dict(record.headers)["weft.reason"] for record in errors]


@pytest.mark.parametrize("raw", ["", "    raw: discard\n"], ids=["from the log", "before the log"])
async def test_errors_have_nothing_that_is_redacted(raw: str, tmp_path: Path) -> None:
    with_cookie = Properties(PacketTypes.PUBLISH)
    with_cookie.UserProperty = [("cookie", "Kim"), ("shift", "early")]
    sent = [json(parts=8, hours=2, name="Kim"), BEFORE, BEHIND, b'{"name": "Kim"', TWICE]
    async with running(tmp_path, CONFIG.replace("RAW", raw)) as node, connect(node, "device") as device:
        for payload in sent:
            await device.publish("plant/a/shift", payload, 1, properties=with_cookie)
        await until(lambda: figures(node.node) == (5, 1, 4))
        errors, kept = await node.stored("shifts-errors"), await node.stored("shifts")
    assert b"Kim" not in b"".join(record.payload for record in [*errors, *kept])
    assert "Kim" not in str([record.headers for record in [*errors, *kept]])
    assert reasons(errors) == [
        f"where failed. {WITHHELD}",
        "rate: division by zero: hours is 0",
        "it is not JSON",
        "operator is not a mapping, so operator.name cannot be redacted",
    ]
    # What fails behind `redact` is there as it was then, so that it can be mended.
    assert [record.payload for record in errors] == [b"", json(parts=8, hours=0), b"", b""]
    assert ("shift", "early") in errors[1].headers
    sources = [dict(record.headers).get("weft.source") for record in errors]
    assert sources == ([None] * 4 if raw else [f"weft-raw-shifts {seq}" for seq in (1, 2, 3, 4)])


def figures(node: EdgeNode) -> tuple[int, int, int]:
    found = node.part(FunctionsPart).figures()["shifts"]
    return found.rows_in, found.rows_out, found.rows_rejected


async def test_originals_stay_whole_where_nothing_is_redacted(tmp_path: Path) -> None:
    text = CONFIG.replace("RAW", "    raw: discard\n").replace(
        "      - redact: {remove: [name, operator.name], headers: [cookie]}\n", ""
    )
    async with running(tmp_path, text) as node, connect(node, "device") as device:
        await device.publish("plant/a/shift", BEHIND, 1)
        await device.publish("plant/a/shift", json(parts=1, hours=1, name="Kim"), 1)
        await until(lambda: figures(node.node)[0] == 2)
        (error,) = await node.stored("shifts-errors")
    assert error.payload == BEHIND


@pytest.mark.parametrize(
    ("functions", "message"),
    [("[{redact: [name]}, {where: parts > 0}]", b""), ("[{where: parts > 0}]", json(name="Kim"))],
    ids=["redacted", "not redacted"],
)
def test_a_row_that_functions_crash_on_is_named_and_not_quoted(functions: str, message: bytes) -> None:
    text = f"node: a\ndata_dir: d\nstreams: {{s: {{from: a, payload: json, functions: {functions}}}}}"
    (definition,) = definitions(parse(text, "edge.yaml", EdgeConfig, check).config)
    outputs = Outputs()
    row = Row(1, b"a", json(name="Kim"), {}, (("cookie", "Kim"),), 7, "raw", json(name="Kim"))
    definition.make_chain().entry(outputs).reject(row, "the functions failed: KeyError: 'Kim'")
    (run,) = runs_of(outputs, 1, 2, {}, after=0, last={})
    assert run.payloads == [message]
    assert ("Kim" in str(run.headers)) == bool(message)
    assert dict(run.headers[0])["weft.source"] == "raw 7"
