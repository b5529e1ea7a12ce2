"""Payloads that come out of chains: in the format of their stream, whatever the functions did."""

from __future__ import annotations

from typing import Any

import cbor2
import msgspec
import pytest

from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import Flow
from weft.edge_node.derived.definitions import chain_of
from weft.functions.chain import Outputs
from weft.functions.contract import Row

CONFIG = """\
node: n
data_dir: data
streams:
  sensors: {{from: "plant/{{line}}/sensors", payload: {given}}}
  other: {{}}
  warm:
    from_stream: sensors
    {own}
    functions: {functions}
"""


async def outputs(payloads: list[bytes], functions: str, *, given: str, own: str = "") -> Outputs:
    text = CONFIG.format(given=given, own=own, functions=functions)
    if "other" not in functions:
        text = text.replace("  other: {}\n", "")
    config = parse(text, "edge.yaml", EdgeConfig, check).config
    chain, out = chain_of(config, Flow(config), "warm"), Outputs()
    await chain.process([Row(at, b"plant/a/sensors", payload, {}) for at, payload in enumerate(payloads)], out)
    assert not out.unwritten
    return out


READINGS: list[dict[str, Any]] = [{"t": 21.5, "n": 1}, {"t": 5, "n": 2}]
WHERE = "[where: t > 20]"
ROUTE = "[set: {t: t + 1}, route: [{to: other, where: t > 20}]]"


async def test_what_no_function_changed_keeps_its_bytes() -> None:
    payload = b'{ "t": 21.50, "n": 1 }'
    assert [row.payload for row in (await outputs([payload], WHERE, given="json")).rows] == [payload]


async def test_what_no_function_changed_is_converted_to_the_format_of_its_stream() -> None:
    """All of it, though the functions look at one field alone."""
    found = await outputs([cbor2.dumps(each) for each in READINGS], WHERE, given="cbor", own="payload: json")
    assert [row.payload for row in found.rows] == [b'{"t":21.5,"n":1}']


async def test_a_row_that_was_changed_and_routed_is_written() -> None:
    found = await outputs([msgspec.json.encode(each) for each in READINGS], ROUTE, given="json")
    assert [row.payload for row in found.routed["other"]] == [b'{"t":22.5,"n":1}']
    assert [row.payload for row in found.rows] == [b'{"t":6,"n":2}']


async def test_a_routed_row_has_the_format_of_the_stream_that_routes_it() -> None:
    copies = "[route: [{to: other, where: t > 20, copy: true}]]"
    found = await outputs([msgspec.json.encode(each) for each in READINGS], copies, given="json", own="payload: cbor")
    assert [cbor2.loads(row.payload or b"") for row in found.routed["other"]] == READINGS[:1]
    assert [cbor2.loads(row.payload or b"") for row in found.rows] == READINGS
    same = await outputs([msgspec.json.encode(each) for each in READINGS], copies, given="json")
    assert [row.payload for row in same.routed["other"]] == [msgspec.json.encode(READINGS[0])]


async def test_what_the_format_of_the_stream_cannot_hold_goes_to_the_errors_with_what_came() -> None:
    payloads = [msgspec.json.encode(each) for each in ({"value": 5}, {"value": 5, "more": 1})]
    found = await outputs(payloads, "[where: value > 1]", given="json", own="payload: number")
    assert [row.payload for row in found.rows] == [b"5"]
    (rejected,) = found.rejected
    assert rejected.row.payload == payloads[1]
    assert "only the field `value`" in rejected.reason


@pytest.mark.parametrize("own", ["text", "bytes"])
async def test_json_is_text_and_anything_is_bytes(own: str) -> None:
    payload = b'{ "t": 21.50 }'
    found = await outputs([payload], WHERE, given="json", own=f"payload: {own}")
    assert [row.payload for row in found.rows] == [payload]
