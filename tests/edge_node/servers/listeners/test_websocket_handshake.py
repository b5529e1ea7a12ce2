from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.edge_node.servers.listeners.settings import WebSocketSettings
from weft.edge_node.servers.listeners.websocket_connection import (
    END,
    REASON_LENGTH_MAX,
    UpgradeRefused,
    too_long,
    upgrade,
)

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
    return "\r\n".join([first, *lines, *([more] if more else []), "", ""]).encode("latin-1")


def test_the_example_of_the_standard() -> None:
    """RFC 6455 section 1.3."""
    answer = upgrade(request(), SETTINGS).decode()
    assert answer.startswith("HTTP/1.1 101 ")
    assert answer.endswith("\r\n\r\n")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert "Sec-WebSocket-Protocol: mqtt\r\n" in answer


def test_there_are_no_extensions() -> None:
    answer = upgrade(request(more="Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"), SETTINGS)
    assert b"Extensions" not in answer


@pytest.mark.parametrize(
    "good",
    [
        request(Upgrade="WebSocket", Connection="upgrade"),
        request("GET /mqtt?token=x HTTP/1.1"),
        request(Sec_WebSocket_Protocol="chat, mqtt"),
        request(Sec_WebSocket_Protocol="mqttv3.1, mqtt"),
        request(Sec_WebSocket_Protocol="chat", more="sec-websocket-protocol: mqtt"),
        request(more="Origin: http://127.0.0.1:9001", Host="127.0.0.1:9001"),
        request(more="Origin: http://[::1]:9001", Host="[::1]:9001"),
        request(more="Origin: http://localhost", Host="LocalHost:80"),
        request(more="Cookie: a=\xe9"),
    ],
)
def test_what_means_the_same(good: bytes) -> None:
    answer = upgrade(good, SETTINGS)
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer


# The first of websockets 15, the second of 17.
WRONG_METHOD, WRONG_VERSION, WRONG_PATH = (400, 405), (400, 505), (404, 400)


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (request("POST /mqtt HTTP/1.1"), WRONG_METHOD),
        (request("GET /mqtt HTTP/1.0"), WRONG_VERSION),
        (request("GET /mqtt"), 400),
        (request("GET /mqtt HTTP/2"), 400),
        (b"\r\n\r\n", 400),
        (b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab\r\n\r\n", 400),
        (request("GET /other HTTP/1.1"), 404),
        (request("GET /\xe9 HTTP/1.1"), WRONG_PATH),
        (request(Upgrade=""), 426),
        (request(Upgrade="h2c"), 426),
        (request(Upgrade="\xe9"), 400),
        (request(Connection="close"), 426),
        (request(Sec_WebSocket_Version="8"), 400),
        (request(Sec_WebSocket_Version=""), 400),
        (request(Sec_WebSocket_Key=""), 400),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 400),
        (request(Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ\xe9="), 400),
        (request(more="Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400),
        (request(Sec_WebSocket_Protocol="MQTT"), 400),
        (request(Sec_WebSocket_Protocol="\xe9"), 400),
        (request(Sec_WebSocket_Protocol=","), 400),
        (request(Sec_WebSocket_Protocol=""), 400),
        (request(more="Origin: https://evil.example"), 403),
        (request(more="Origin: http://node.example:9001"), 403),  # its own name, which strangers can have as well
        (request(more="Origin: http://localhost:3000", Host="localhost:9001"), 403),
        (request(more="Origin: https://localhost:9001", Host="localhost:9001"), 403),
        (request(more="Origin: http://127.0.0.1:9001", Host="localhost:9001"), 403),
        (request(more="Origin: null"), 403),
        (request(more="Origin: null", Host=""), 403),
        (request(more="Origin: http://[x"), 403),
        (request(more="Origin: https://node.example\r\nHost: node.example"), 403),
        (request(more="Origin: https://node.example\r\nOrigin: https://node.example"), 400),
        (request(more=" folded: x"), 400),
        (request(more="no colon"), 400),
        (request(more="Content-Length: 5"), 400),
        (request(more="Transfer-Encoding: chunked"), 400),
        (request(more="\r\n".join(["a:"] * 130)), 400),
    ],
)
def test_what_is_refused(bad: bytes, status: int | tuple[int, int]) -> None:
    with pytest.raises(UpgradeRefused) as caught:
        upgrade(bad, SETTINGS)
    assert caught.value.status in (status if isinstance(status, tuple) else (status,))
    is_whole(caught.value)


NAMED = ("https://Dash.example.com:443/", "app://dash")


@pytest.mark.parametrize(
    ("settings", "origin", "comes_in"),
    [
        (WebSocketSettings(is_loopback=False), "http://node.example:9001", True),
        (WebSocketSettings(is_loopback=False), "http://node.example", False),
        (WebSocketSettings(is_loopback=False), "https://node.example:9001", False),
        (WebSocketSettings(is_loopback=False, scheme="https"), "https://node.example:9001", True),
        (WebSocketSettings(is_loopback=False, scheme="https"), "http://node.example:9001", False),
        (WebSocketSettings(origins=NAMED), "https://dash.example.com", True),
        (WebSocketSettings(origins=NAMED), "http://dash.example.com", False),
        (WebSocketSettings(origins=NAMED), "https://dash.example.com:8443", False),
        (WebSocketSettings(origins=NAMED), "https://evil.example/dash.example.com", False),
        (WebSocketSettings(origins=NAMED), "http://node.example:9001", False),
        (WebSocketSettings(origins=NAMED), "app://dash", True),
        (WebSocketSettings(origins=NAMED), "app://other", False),
        (WebSocketSettings(origins=("*",)), "https://anyone.example", True),
    ],
)
def test_origins_are_compared_by_scheme_host_and_port(settings: WebSocketSettings, origin: str, comes_in: bool) -> None:
    head = request(more=f"Origin: {origin}")
    if comes_in:
        assert upgrade(head, settings).startswith(b"HTTP/1.1 101 ")
    else:
        with pytest.raises(UpgradeRefused, match=r"`websocket\.origins`"):
            upgrade(head, settings)


def test_what_goes_on_too_long() -> None:
    assert too_long().status == 431
    is_whole(too_long())


def test_a_log_line_about_a_refusal_is_short() -> None:
    with pytest.raises(UpgradeRefused) as caught:
        upgrade(request(Sec_WebSocket_Version="1" * 5000), SETTINGS)
    assert len(str(caught.value)) < REASON_LENGTH_MAX + 10


@given(st.binary(max_size=400))
def test_nothing_else_comes_of_any_bytes(data: bytes) -> None:
    fields = ("Upgrade", "Connection", "Sec_WebSocket_Key", "Sec_WebSocket_Version", "Sec_WebSocket_Protocol")
    for head in (
        data,
        request().rstrip() + data,
        request(more="Origin: _").replace(b"_", data, 1),
        *(request(**{field: "_"}).replace(b"_", data, 1) for field in fields),
    ):
        refused = None
        try:
            answer = upgrade(head.partition(END)[0] + END, SETTINGS)
        except UpgradeRefused as error:
            refused = error
        if refused is None:
            assert answer.startswith(b"HTTP/1.1 101 ")
        else:
            assert 400 <= refused.status < 500 or refused.status == 505
            assert str(refused).replace("\t", " ").isprintable(), "it goes to the log"
            is_whole(refused)


def is_whole(refused: UpgradeRefused) -> None:
    """Whether a client that reads the answer knows when it ends, and that the connection ends with it."""
    head, _, body = refused.answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % refused.status)
    assert b"Connection: close" in head
    assert f"Content-Length: {len(body)}".encode() in head
