"""Messages that do not fit the stream that they are posted to: refused with a reason, unless the stream takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.edge_node.servers.http.harness import HttpNode, running
from weft.edge_node.servers.http.part import Http

JSON = {"Content_Type": "application/json"}

STRICT = """  strict: {from: ["line/{line}/{machine}", "cell/+"], payload: json}
  loose: {from: "line/#", payload: json, misfits: take}
"""
NO_TOPIC = "the request names no topic; send one that matches line/{line}/{machine}, cell/+ in the path or as Weft-Key"
OFF = "the stream strict accepts topics that match line/{line}/{machine}, cell/+, and 'line/l4' does not; correct"
CASES: tuple[tuple[str, bytes, dict[str, str], int, str | None], ...] = (
    ("streams/strict", b"1", {}, 400, NO_TOPIC),
    ("streams/strict/line/l4", b"1", {}, 422, OFF),
    ("streams/strict", b'[{"m": "l4/m1"}]', {"Weft_Key": "line/{m}", **JSON}, 400, "cannot be a level"),
    ("streams/strict", b'[{"l": "cell/l4"}, {"l": 4}]', {"Weft_Key": "line/l4", **JSON}, 422, OFF),
    ("streams/strict/line/l4/m1", b'{"t":', JSON, 400, "is not JSON"),
    ("streams/strict/line/l4/m1", b"", {}, 400, "is not JSON"),
    ("streams/copies/plant/a/copied", b'{"t":', JSON, 200, None),
    ("topics/cell/1", b'{"t":', {}, 400, "the stream strict has `payload: json`"),
    ("topics/nowhere", b'{"t":', {}, 200, None),
)


@pytest_asyncio.fixture
async def fitting(tmp_path: Path) -> AsyncIterator[HttpNode]:
    async with running(tmp_path, more=STRICT) as node:
        yield node


async def test_what_does_not_fit_its_stream_is_refused_whole(fitting: HttpNode) -> None:
    counters = fitting.node.part(Http).counters
    for path, body, fields, status, error in CASES:
        refused = counters.http_misfits_refused
        found, answer, _ = await fitting.post(f"/v1/{path}", body, **fields)
        assert (found, error is None or error in answer["detail"]) == (status, True), answer
        assert counters.http_misfits_refused - refused == (error is not None and "a level" not in error)
    assert fitting.stored("strict") == []


async def test_a_stream_may_take_what_does_not_fit(fitting: HttpNode, caplog: pytest.LogCaptureFixture) -> None:
    taken = fitting.node.part(Http).counters.http_misfits_taken
    batch = b'["1", "2"]'
    assert (await fitting.post("/v1/streams/loose", batch, **JSON))[1]["count"] == 2
    assert (await fitting.post("/v1/streams/loose/far/off", b"{", Weft_Header_X="1"))[0] == 200
    assert (await fitting.post("/v1/streams/loose/line/a", b"{"))[0] == 200
    assert (await fitting.post("/v1/streams/loose/line/a/b/c", b"1"))[0] == 200
    keys = [b"stream/loose", b"stream/loose", b"far/off", b"line/a", b"line/a/b/c"]
    assert [record.key for record in fitting.stored("loose")][-5:] == keys
    assert fitting.node.part(Http).counters.http_misfits_taken - taken == 2 + 2 + 1, "one of them for topic and JSON"
    for _ in range(3):
        await fitting.post("/v1/streams/strict", b"1")
    assert caplog.text.count("refused a request that posts to the stream strict") <= 1


async def test_points_of_influx_go_where_their_topics_go(fitting: HttpNode) -> None:
    refused = fitting.node.part(Http).counters.http_misfits_refused
    for bucket in ("cell", "nowhere"):
        async with fitting.session.post(f"{fitting.url}/api/v2/write?bucket={bucket}", data=b"m v=1") as answer:
            assert answer.status == 204
    assert fitting.stored("strict")[-1].key == b"cell/m"
    assert fitting.node.part(Http).counters.http_misfits_refused == refused
