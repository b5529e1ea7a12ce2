from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_node.listeners.settings import WebSocketSettings
from edge_node.listeners.websocket_upgrade import Refused, upgrade

SETTINGS = WebSocketSettings()
FIELDS = {
    "Host": "node.example:9001",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqtt",
}


def request(first: str = "GET /mqtt HTTP/1.1", more: str = "", **changed: str) -> bytes:
    fields = {name: changed.get(name.replace("-", "_"), value) for name, value in FIELDS.items()}
    lines = [f"{name}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([first, *lines, *([more] if more else [])]).encode("latin-1")


def test_the_example_of_the_standard() -> None:
    """RFC 6455 section 1.3."""
    answer = upgrade(request(), SETTINGS).decode()
    assert answer.startswith("HTTP/1.1 101 ")
    assert answer.endswith("\r\n\r\n")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert "Sec-WebSocket-Protocol: mqtt\r\n" in answer


@pytest.mark.parametrize(
    "good",
    [
        request(Upgrade="WebSocket", Connection="upgrade"),
        request("GET /mqtt?token=x HTTP/1.1"),
        request(Sec_WebSocket_Protocol="chat, mqtt"),
        request(Sec_WebSocket_Protocol="chat", more="sec-websocket-protocol: mqtt"),
        request(more="Origin: https://node.example"),
        request(more="Cookie: a=\xe9"),
    ],
)
def test_what_means_the_same(good: bytes) -> None:
    assert upgrade(good, SETTINGS).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (request("POST /mqtt HTTP/1.1"), 405),
        (request("GET /mqtt HTTP/1.0"), 405),
        (request("GET /mqtt"), 400),
        (request("GET /mqtt HTTP/2"), 400),
        (b"", 400),
        (b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab", 400),
        (request("GET /other HTTP/1.1"), 404),
        (request(Upgrade=""), 426),
        (request(Connection="close"), 426),
        (request(Sec_WebSocket_Version="8"), 400),
        (request(Sec_WebSocket_Version=""), 400),
        (request(Sec_WebSocket_Key=""), 400),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 400),
        (request(Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ\xe9="), 400),
        (request(more="Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400),
        (request(Sec_WebSocket_Protocol="MQTT"), 400),
        (request(Sec_WebSocket_Protocol=""), 400),
        (request(more="Origin: https://evil.example"), 403),
        (request(more="Origin: null"), 403),
        (request(more="Origin: http://[x"), 403),
        (request(more=" folded: x"), 400),
        (request(more="no colon"), 400),
    ],
)
def test_what_is_refused(bad: bytes, status: int) -> None:
    with pytest.raises(Refused) as caught:
        upgrade(bad, SETTINGS)
    assert caught.value.status == status
    head, _, body = caught.value.answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in head
    assert f"Content-Length: {len(body)}".encode() in head


@given(st.binary(max_size=400))
def test_nothing_else_comes_of_any_bytes(data: bytes) -> None:
    for head in (data, request() + b"\r\n" + data, request(Sec_WebSocket_Key="") + data):
        answer = b""
        try:
            answer = upgrade(head, SETTINGS)
        except Refused as refused:
            answer = refused.answer
        assert answer.startswith(b"HTTP/1.1 ")
