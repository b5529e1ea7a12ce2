"""``POST /v1/streams/STREAM``: one message or many, packed or not; what 200 promises; keys, times and headers."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import zstandard

from tests.edge_node.servers.http.harness import HttpNode, running
from weft.edge_node.servers.http.part import Http
from weft.protocols.message_headers import CONTENT_TYPE, SENT

LINES = {"Content_Type": "application/x-ndjson"}
JSON = {"Content_Type": "application/json"}


async def test_a_message_is_on_disk_when_it_is_answered(http: HttpNode) -> None:
    status, answer, _ = await http.post("/v1/streams/telemetry/plant/a/temperature", b"21.5")
    found = http.stored()
    assert status == 200
    assert [(record.key, record.payload) for record in found] == [(b"plant/a/temperature", b"21.5")]
    assert answer == {"lane": answer["lane"], "first_seq": 0, "count": 1}
    assert answer["lane"].startswith("default/press-1/")
    assert answer["lane"].endswith("/telemetry")


async def test_elements_of_an_array_are_stored_with_their_own_bytes(http: HttpNode) -> None:
    body = b'[ {"a" : 1.50},\n"x", [1, 2], 1e3 ]'
    status, answer, _ = await http.post("/v1/streams/telemetry", body, Weft_Key="plant/a", **JSON)
    assert (status, answer["first_seq"], answer["count"]) == (200, 0, 4)
    assert [record.payload for record in http.stored()] == [b'{"a" : 1.50}', b'"x"', b"[1, 2]", b"1e3"]


async def test_an_array_can_be_one_message(http: HttpNode) -> None:
    await http.post("/v1/streams/telemetry", b"[1, 2]", Weft_Key="plant/a", Weft_Batch="no", **JSON)
    assert [(record.payload, record.headers) for record in http.stored()] == [
        (b"[1, 2]", ((CONTENT_TYPE, "application/json"),))
    ]


async def test_lines_are_messages(http: HttpNode) -> None:
    body = b'{"a":1}\n\n {"a": 2} \r\n3'
    status, answer, _ = await http.post("/v1/streams/telemetry", body, Weft_Key="plant/a", **LINES)
    assert (status, answer["count"]) == (200, 3)
    assert [record.payload for record in http.stored()] == [b'{"a":1}', b'{"a": 2}', b"3"]


async def test_of_a_batch_with_an_error_nothing_is_stored(http: HttpNode) -> None:
    for kind, body in ((LINES, b'{"a":1}\n{"a":\n'), (JSON, b'[{"a":1}, {"a":]')):
        status, answer, _ = await http.post("/v1/streams/telemetry", body, Weft_Key="plant/a", **kind)
        assert status == 400
        assert "JSON" in answer["detail"]
    assert http.stored() == []


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_bodies_may_be_packed(http: HttpNode, coding: str) -> None:
    body = b'{"a":1}\n' * 1000
    packed = gzip.compress(body[:4000]) + gzip.compress(body[4000:]) if coding == "gzip" else zstandard.compress(body)
    status, answer, _ = await http.post(
        "/v1/streams/telemetry", packed, Weft_Key="plant/a", Content_Encoding=coding, **LINES
    )
    assert (status, answer["count"]) == (200, 1000)


async def test_a_body_may_be_packed_in_parts_but_not_in_many(http: HttpNode) -> None:
    one, rest = b'{"a":1}\n', b'{"a":2}\n' * 99_999
    skipped = (0x184D2A5A).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"these"
    checked = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(rest)
    for coding, packed in (
        ("gzip", gzip.compress(b"") * 14 + gzip.compress(one) + gzip.compress(rest)),
        ("zstd", zstandard.compress(b"") * 13 + zstandard.compress(one) + skipped + checked),
    ):
        status, answer, _ = await http.post("/v1/topics/plant/a", packed, Content_Encoding=coding, Weft_Batch="no")
        assert status == 200, answer
        assert http.stored()[-1].payload == one + rest
    for coding, part in (("gzip", gzip.compress(b"")), ("zstd", zstandard.compress(b"")), ("zstd", skipped)):
        status, answer, _ = await http.post("/v1/topics/plant/a", part * 17 + b"x", Content_Encoding=coding)
        assert (status, "more than 16" in answer["detail"]) == (413, True)
        assert http.stored()[2:] == []
    blocks = zstandard.compress(rest)[:8] + bytes(3 * 100_000)  # empty ones, of which none is the last
    assert (await http.post("/v1/topics/plant/a", blocks, Content_Encoding="zstd"))[0] == 400


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_what_a_body_unpacks_to_is_bounded(http: HttpNode, coding: str) -> None:
    body = bytes(64 << 20)
    packed = gzip.compress(body) if coding == "gzip" else zstandard.compress(body)
    status, answer, _ = await http.post("/v1/streams/telemetry", packed, Weft_Key="plant/a", Content_Encoding=coding)
    assert status == 413
    assert "limits.message" in answer["detail"]
    body = random.Random(1).randbytes(2000)
    packed = gzip.compress(body) if coding == "gzip" else zstandard.compress(body)
    for damaged in (packed[:1500], b"no" + packed, packed + packed[:1500]):
        status, answer, _ = await http.post(
            "/v1/streams/telemetry", damaged, Weft_Key="plant/a", Content_Encoding=coding
        )
        assert status == 400, answer
    status, _, _ = await http.post("/v1/streams/telemetry/plant/a", zlib.compress(b"x"), Content_Encoding="deflate")
    assert status == 415
    assert http.stored() == []


async def test_keys_and_times_come_from_fields_of_the_messages(http: HttpNode) -> None:
    body = b'{"line": "a", "n": 7, "at": "2026-01-31T12:00:00.5Z"}\n{"line": "b", "n": 8, "at": 1769860800}'
    status, _, _ = await http.post(
        "/v1/streams/telemetry", body, Weft_Key="plant/{line}/{n}", Weft_Time_Field="at", **LINES
    )
    assert status == 200
    assert [(record.key, record.headers) for record in http.stored()] == [
        (b"plant/a/7", ((SENT, 1_769_860_800_500_000_000),)),
        (b"plant/b/8", ((SENT, 1_769_860_800_000_000_000),)),
    ]


@pytest.mark.parametrize(
    ("time", "precision", "nanoseconds"),
    [
        ("2026-01-31T12:00:00.123456789Z", "s", 1_769_860_800_123_456_789),
        ("2026-01-31T13:00:00.999999999+01:00", "s", 1_769_860_800_999_999_999),
        ("2026-01-31T12:00:00", "s", 1_769_860_800_000_000_000),
        ("1769860800.123456789", "s", 1_769_860_800_123_456_789),
        ("1769860800123", "ms", 1_769_860_800_123_000_000),
    ],
)
async def test_times_keep_their_nanoseconds(http: HttpNode, time: str, precision: str, nanoseconds: int) -> None:
    fields = {"Weft_Time": time, "Weft_Time_Precision": precision}
    assert (await http.post("/v1/streams/telemetry/plant/a", b"1", **fields))[0] == 200
    (record,) = http.stored()
    assert dict(record.headers)[SENT] == nanoseconds


NO_SENSE: list[tuple[dict[str, str], bytes]] = [
    ({"Weft_Key": "plant/{line}"}, b'{"n": 1}'),
    ({"Weft_Key": "plant/{line}"}, b'{"line": "a/+"}'),
    ({"Weft_Key": "plant/{line}"}, b"no JSON"),
    ({"Weft_Key": "plant/#"}, b"1"),
    ({"Weft_Key": "$SYS/x"}, b"1"),
    ({"Weft_Key": "plant/a", "Weft_Time": "yesterday"}, b"1"),
    ({"Weft_Key": "plant/a", "Weft_Time": "1", "Weft_Time_Precision": "weeks"}, b"1"),
    ({"Weft_Key": "plant/a", "Weft_Time_Field": "at"}, b'{"n": 1}'),
    ({"Weft_Key": "plant/a", "Weft_Priority": "high"}, b"1"),
    ({"Weft_Key": "plant/a", "Content_Type": "multipart/form-data; boundary=x"}, b"1"),
    ({"Weft_Key": "plant/a", "Idempotency_Key": ""}, b"1"),
]


async def test_what_makes_no_sense_is_refused_with_a_sentence(http: HttpNode) -> None:
    for fields, body in NO_SENSE:
        status, answer, _ = await http.post("/v1/streams/telemetry", body, **fields)
        assert 400 <= status < 500, fields
        assert len(answer["detail"]) > 20
    assert http.stored() == []


async def test_headers_have_types(http: HttpNode) -> None:
    await http.post(
        "/v1/streams/telemetry",
        b"1",
        Weft_Key="plant/a",
        Content_Type="text/plain",
        Weft_Header_Count="42",
        Weft_Header_Ratio="4.5",
        Weft_Header_Ok="?1",
        Weft_Header_Raw=":AAH/:",
        Weft_Header_Text='"42"',
        Weft_Header_Name="Käthe",
        Weft_Header_None="",
        Weft_Correlation_Id=":AAE=:",
        Weft_Message_Id="m-1",
        Weft_Priority="5",
        **{"Weft_Header_weft.x": "mine"},
    )
    (record,) = http.stored()
    assert set(record.headers) == {
        ("count", 42),
        ("ratio", 4.5),
        ("ok", True),
        ("raw", b"\x00\x01\xff"),
        ("text", "42"),
        ("name", "Käthe"),
        ("none", None),
        ("weft.correlation-id", b"\x00\x01"),
        ("weft.message-id", "m-1"),
        ("weft.priority", 5),
        ("weft.user.weft.x", "mine"),
        ("weft.content-type", "text/plain"),
    }


async def test_streams_that_match_get_what_is_posted_to_another(http: HttpNode) -> None:
    _, answer, _ = await http.post("/v1/streams/copies/plant/a/copied", b"3")
    assert [record.payload for record in http.stored("copies")] == [b"3"] == [each.payload for each in http.stored()]
    assert (answer["lane"].rpartition("/")[2], answer["first_seq"]) == ("copies", 0)


async def test_a_topic_is_published_to_as_by_mqtt(http: HttpNode) -> None:
    status, answer, _ = await http.post("/v1/topics/plant/a/copied", b"1")
    assert (status, answer) == (200, {"count": 1})
    assert len(http.stored()) == len(http.stored("copies")) == 1


async def test_streams_that_are_not_there_or_take_nothing_are_refused(tmp_path: Path) -> None:
    more = "  made: {from_stream: telemetry, functions: [{where: 'true'}], payload: json}\n"
    async with running(tmp_path, more=more.replace("payload: json", "payload: json")) as http:
        status, answer, _ = await http.post("/v1/streams/nowhere", b"1")
        assert (status, "telemetry" in answer["detail"]) == (404, True)
        status, answer, _ = await http.post("/v1/streams/made", b"1")
        assert (status, "functions" in answer["detail"]) == (403, True)
        for name in ("weft-http", "weft-sessions", "unrouted", "..%2f"):
            status, _, _ = await http.post(f"/v1/streams/{name}", b"1")
            assert status == 404
        status, _, fields = await http.get("/v1/streams/telemetry")
        assert (status, fields["Allow"]) == (405, "POST")
        status, _, _ = await http.get("/nothing")
        assert status == 404


async def test_too_many_messages_are_refused(http: HttpNode) -> None:
    for kind, body in ((JSON, b"[" + b"1," * 10_000 + b"1]"), (LINES, b"1\n" * 10_001), (LINES, b"1\n" * 90_000)):
        status, _, _ = await http.post("/v1/streams/telemetry", body, Weft_Key="plant/a", **kind)
        assert status == 413
    status, _, _ = await http.post("/v1/streams/telemetry", b"[]", **JSON)
    assert status == 200
    assert http.stored() == []


async def test_what_is_posted_reaches_subscribers_of_mqtt(http: HttpNode) -> None:
    import aiomqtt

    from weft.config.units import Address

    address = http.node.addresses["mqtt"]
    assert isinstance(address, Address)
    async with aiomqtt.Client("127.0.0.1", address.port) as client:
        await client.subscribe("plant/#", qos=1)
        await http.post("/v1/streams/telemetry/plant/a", json.dumps({"v": 1}))
        async for message in client.messages:
            assert (str(message.topic), message.payload) == ("plant/a", b'{"v": 1}')
            break


# --- CloudEvents 1.0: binary, structured and batched


PATH = "/v1/streams/telemetry/plant/a"
EVENT = {"specversion": "1.0", "id": "7", "source": "/press", "type": "measured", "time": "2026-01-31T12:00:00Z"}
HEADERS = {
    ("ce-specversion", "1.0"),
    ("ce-id", "7"),
    ("ce-source", "/press"),
    ("ce-type", "measured"),
    ("ce-time", "2026-01-31T12:00:00Z"),
    (SENT, 1_769_860_800_000_000_000),
}


async def test_binary_events_keep_attributes_as_headers(http: HttpNode) -> None:
    fields = {f"ce_{name}": value for name, value in EVENT.items()}
    status, _, _ = await http.post(
        PATH, b'{"v": 1}', Content_Type="application/json", ce_note="Euro%20%E2%82%AC", **fields
    )
    (record,) = http.stored()
    assert (status, record.payload) == (200, b'{"v": 1}')
    assert set(record.headers) == {*HEADERS, ("ce-note", "Euro €"), (CONTENT_TYPE, "application/json")}


async def test_structured_events_give_their_data_as_it_is(http: HttpNode) -> None:
    kind = "application/cloudevents+json; charset=utf-8"
    events = [
        json.dumps(EVENT)[:-1] + ', "data": {"v" :  1.0}, "count": 3, "ok": true}',
        json.dumps({**EVENT, "data_base64": "AAH/", "datacontenttype": "application/octet-stream"}),
        json.dumps({**EVENT, "data": "text", "datacontenttype": "text/plain"}),
        json.dumps(EVENT),
    ]
    for event in events:
        assert (await http.post(PATH, event, Content_Type=kind))[0] == 200
    found = http.stored()
    assert [record.payload for record in found] == [b'{"v" :  1.0}', b"\x00\x01\xff", b"text", b""]
    assert set(found[0].headers) == {*HEADERS, ("ce-count", 3), ("ce-ok", True)}
    assert set(found[2].headers) == {*HEADERS, (CONTENT_TYPE, "text/plain")}


async def test_a_batch_of_events_is_stored_whole_or_not_at_all(http: HttpNode) -> None:
    kind = "application/cloudevents-batch+json"
    status, answer, _ = await http.post(PATH, json.dumps([EVENT, {**EVENT, "id": "8"}]), Content_Type=kind)
    assert (status, answer["count"]) == (200, 2)
    status, _, _ = await http.post(PATH, json.dumps([EVENT, {"id": "8"}]), Content_Type=kind)
    assert status == 400
    assert len(http.stored()) == 2


async def test_the_key_may_have_attributes_in_it(http: HttpNode) -> None:
    body = json.dumps({**EVENT, "line": "b"})
    await http.post(
        "/v1/streams/telemetry", body, Weft_Key="plant/{line}/{type}", Content_Type="application/cloudevents+json"
    )
    assert http.stored()[0].key == b"plant/b/measured"


async def test_formats_that_are_not_known_are_no_plain_messages(http: HttpNode) -> None:
    for kind in ("application/cloudevents+xml", "application/cloudevents-batch+avro", "application/CloudEvents"):
        status, answer, _ = await http.post(PATH, b"<event/>", Content_Type=kind)
        assert (status, "JSON" in answer["detail"]) == (415, True)
    assert http.stored() == []


NO_EVENTS: list[object] = [
    {**EVENT, "id": ""},
    {**EVENT, "specversion": "0.3"},
    {**EVENT, "Type": "x"},
    {**EVENT, "x": 1.5},
    {**EVENT, "x": {"y": 1}},
    {**EVENT, "x": 1 << 40},
    {**EVENT, "time": "now"},
    {**EVENT, "data_base64": "!"},
    {**EVENT, "data": 1, "data_base64": "AA=="},
    {"specversion": "1.0"},
    [EVENT],
]


async def test_what_is_no_event_is_refused(http: HttpNode) -> None:
    for event in NO_EVENTS:
        status, answer, _ = await http.post(PATH, json.dumps(event), Content_Type="application/cloudevents+json")
        assert (status, len(answer["detail"]) > 20) == (400, True), event
    assert http.stored() == []


# --- Messages that do not fit the stream that they are posted to: refused with a reason, unless the stream takes them


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
