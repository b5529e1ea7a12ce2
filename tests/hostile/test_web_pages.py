"""A page of a stranger, open in a browser on the machine, reads and publishes nothing through loopback listeners.

Its owner has the page's host name resolved to 127.0.0.1 (DNS rebinding), so that the browser takes page and listener
for one origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from examples.demo.fabric import Service, free_port
from tests.support.waiting import PATIENCE_S
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, Subscribe, Subscription

pytestmark = pytest.mark.processes
STRANGER = "page.stranger.example"
EDGE = """\
node: press-1
data_dir: {folder}/data
listeners: {{ws: {{bind: "127.0.0.1:{ws}"}}}}
http: {{bind: "127.0.0.1:{http}"{hosts}}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}}}
"""
HUB = "listen: 127.0.0.1:{port}\nstore: {folder}/store\nshards: 1\nprocesses: 1\n{hosts}"


class WebEdge(Service):
    def __init__(self, folder: Path, hosts: str = "") -> None:
        self.ws, self.http = free_port(), free_port()
        config = folder / "edge.yaml"
        config.write_text(EDGE.format(folder=folder, ws=self.ws, http=self.http, hosts=hosts))
        super().__init__(folder, "edge", ["edge", "run", str(config)], f"http://127.0.0.1:{self.http}/status")


class WebHub(Service):
    def __init__(self, folder: Path, hosts: str = "") -> None:
        self.port = free_port()
        config = folder / "hub.yaml"
        config.write_text(HUB.format(folder=folder, port=self.port, hosts=hosts))
        super().__init__(folder, "hub", ["hub", "run", str(config)], f"http://127.0.0.1:{self.port}/v1/status")


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[WebEdge]:
    node = WebEdge(tmp_path)
    node.start()
    try:
        yield node
    finally:
        node.stop()


async def fetch(port: int, path: str, host: str) -> tuple[int, str]:
    """What a browser gets that has resolved ``host`` to this machine."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers={"Host": f"{host}:{port}"}) as answer,
    ):
        return answer.status, await answer.text()


async def speak_mqtt(port: int, host: str, origin: str) -> bytes:
    """Connect and subscribe to everything, as the page at ``origin`` does; return the answers."""
    headers: dict[str, Any] = {"Host": f"{host}:{port}", "Origin": origin}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}/mqtt", headers=headers, protocols=("mqtt",)) as socket,
    ):
        await socket.send_bytes(encode(Connect("page"), 4))
        await socket.send_bytes(encode(Subscribe(1, (Subscription("#", 0),)), 4))
        received = b""
        while len(received) < 9:
            received += await socket.receive_bytes(timeout=PATIENCE_S)
        return received


async def test_a_stranger_s_name_reads_no_page_of_a_node(edge: WebEdge) -> None:
    for path in ("/", "/status", "/metrics", "/healthz"):
        status, text = await fetch(edge.http, path, STRANGER)
        assert status == HTTPStatus.MISDIRECTED_REQUEST
        assert "`http.hosts`" in text
        assert "press-1" not in text
    for own in ("127.0.0.1", "localhost", "[::1]"):
        assert (await fetch(edge.http, "/status", own))[0] == HTTPStatus.OK


async def test_a_stranger_s_page_is_no_mqtt_client(edge: WebEdge) -> None:
    port = edge.ws
    for host, origin in (
        (STRANGER, f"http://{STRANGER}:{port}"),
        ("127.0.0.1", f"http://{STRANGER}:{port}"),
        ("localhost", "http://localhost:3000"),
        ("localhost", f"https://localhost:{port}"),
        ("localhost", "null"),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await speak_mqtt(port, host, origin)
        assert refused.value.status == HTTPStatus.FORBIDDEN
    for own in ("127.0.0.1", "localhost"):
        assert await speak_mqtt(port, own, f"http://{own}:{port}") == b"\x20\x02\x00\x00\x90\x03\x00\x01\x00"


async def test_a_stranger_s_name_reads_nothing_of_a_hub(tmp_path: Path) -> None:
    hub = WebHub(tmp_path)
    hub.start()
    try:
        for path in ("/v1/status", "/v1/streams", "/v1/streams/telemetry/records", "/metrics"):
            status, text = await fetch(hub.port, path, STRANGER)
            assert status == HTTPStatus.MISDIRECTED_REQUEST
            assert "`hosts`" in text
        assert (await fetch(hub.port, "/v1/streams", "localhost"))[0] == HTTPStatus.OK
    finally:
        hub.stop()


async def test_names_that_the_configuration_gives_are_the_server_s_own(tmp_path: Path) -> None:
    edge = WebEdge(tmp_path, hosts=", hosts: edge.example.com")
    hub = WebHub(tmp_path, hosts="hosts: [hub.example.com, Hub.internal]\n")
    await asyncio.gather(*map(asyncio.to_thread, (edge.start, hub.start)))
    try:
        assert (await fetch(edge.http, "/status", "Edge.example.com"))[0] == HTTPStatus.OK
        assert (await fetch(hub.port, "/v1/streams", "hub.internal"))[0] == HTTPStatus.OK
        for port, path in ((edge.http, "/status"), (hub.port, "/v1/streams")):
            assert (await fetch(port, path, STRANGER))[0] == HTTPStatus.MISDIRECTED_REQUEST
    finally:
        edge.stop()
        hub.stop()
