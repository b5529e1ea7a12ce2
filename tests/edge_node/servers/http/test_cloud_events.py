"""CloudEvents 1.0: binary, structured and batched."""

from __future__ import annotations

import json

from tests.edge_node.servers.http.harness import HttpNode
from weft.protocols.message_headers import CONTENT_TYPE, SENT

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
