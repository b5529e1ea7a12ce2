"""Events out: server-sent ones and over WebSocket, from where the client was, and what becomes of slow readers."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import websockets

from tests.edge_node.servers.http.harness import HttpNode, running
from tests.edge_node.servers.http.test_access import basic, guarded
from tests.support.waiting import PATIENCE_S, until
from weft.edge_node.servers.http import feeds as feed
from weft.edge_node.servers.http import feeds as topic_feed
from weft.edge_node.servers.http.part import Http

__all__ = ["guarded"]
EVENTS = "/v1/streams/telemetry/events"
POST = "/v1/streams/telemetry/plant/a"


class Sse:
    """Server-sent events as a browser reads them."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = {"event": "message"}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                line = (await self.answer.content.readline()).decode()
                assert line, "the connection has ended"
                if line == "\n":
                    if "data" in event:
                        return event
                elif not line.startswith((":", "retry")):
                    name, _, value = line.rstrip("\n").partition(": ")
                    event[name] = json.loads(value) if name == "data" else value


@asynccontextmanager
async def events(http: HttpNode, path: str = EVENTS, **fields: str) -> AsyncIterator[Sse]:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    async with http.session.get(http.url + path, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        yield Sse(answer)


async def test_records_come_as_events_with_their_numbers(http: HttpNode) -> None:
    await http.post(POST, b"before")
    async with events(http) as stream:
        lane = await stream.next()
        assert (lane["event"], lane["data"]["next_seq"]) == ("lane", 1)
        await http.post(POST, b"21.5", Weft_Header_Unit="C")
        await http.post(POST, b"\xff")
        first, second = await stream.next(), await stream.next()
    assert (first["event"], first["id"]) == ("message", "1")
    assert first["data"] == {
        "seq": 1,
        "time": first["data"]["time"],
        "key": "plant/a",
        "payload": "21.5",
        "headers": {"unit": "C", "weft.content-type": "application/octet-stream"},
    }
    assert second["data"]["payload_base64"] == "/w=="


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_each_event_is_whole_for_clients_that_read_in_blocks(http: HttpNode, version: str) -> None:
    """A chunk for each event (RFC 9112, 7.1), and the last chunk at the end; HTTP/1.0 has no chunks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(f"GET {EVENTS} HTTP/{version}\r\nHost: 127.0.0.1\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        assert (b"Transfer-Encoding: chunked" in head) == (version == "1.1")

        async def event() -> bytes:
            if version == "1.0":
                return await reader.readuntil(b"\n\n")
            size = int(await reader.readuntil(b"\r\n"), 16)
            return (await reader.readexactly(size + 2)).removesuffix(b"\r\n")

        assert await event() == b"retry: 2000\n\n"
        assert (await event()).startswith(b"event: lane\ndata: {")
        await http.post(POST, b"last")
        last = await event()
        assert (last.startswith(b"id: 0\ndata: {"), last.endswith(b"}\n\n")) == (True, True)
        await http.node.part(Http).close()
        assert await reader.read() == (b"0\r\n\r\n" if version == "1.1" else b"")
    writer.close()


async def test_a_client_goes_on_after_its_last_event(http: HttpNode) -> None:
    await http.post(POST, b"[0,1,2,3,4]", Content_Type="application/json")
    async with events(http, Last_Event_ID="2") as stream:
        assert (await stream.next())["data"]["next_seq"] == 3
        assert [(await stream.next())["data"]["payload"] for _ in range(2)] == ["3", "4"]
    async with events(http, EVENTS + "?from=earliest") as stream:
        await stream.next()
        assert [(await stream.next())["id"] for _ in range(5)] == ["0", "1", "2", "3", "4"]
    async with events(http, EVENTS + "?from=4") as stream:
        await stream.next()
        assert (await stream.next())["id"] == "4"
    async with events(http, Last_Event_ID="4000") as stream:  # of a log that is no more
        assert (await stream.next())["data"]["next_seq"] == 5


async def test_a_filter_chooses_keys(http: HttpNode) -> None:
    async with events(http, EVENTS + "?filter=plant/%2B/b") as stream:
        await stream.next()
        for key in ("plant/a/a", "plant/a/b", "plant/a/c", "plant/b/b"):
            await http.post(f"/v1/streams/telemetry/{key}", b"1")
        assert [(await stream.next())["data"]["key"] for _ in range(2)] == ["plant/a/b", "plant/b/b"]


async def test_a_websocket_gets_the_same(http: HttpNode) -> None:
    url = http.url.replace("http", "ws") + EVENTS
    async with websockets.connect(url, origin=http.url) as client:  # type: ignore[arg-type]
        assert json.loads(await client.recv())["event"] == "lane"
        await http.post(POST, b"1")
        message = await asyncio.wait_for(client.recv(), PATIENCE_S)
        assert isinstance(message, str)
        assert json.loads(message)["payload"] == "1"
        await (await client.ping())
        await client.send("nothing is done with this")
        await http.post(POST, b"2")
        assert json.loads(await asyncio.wait_for(client.recv(), PATIENCE_S))["seq"] == 1
    await readers_are(http, 0)


async def readers_are(http: HttpNode, count: int) -> None:
    await until(lambda: http.node.part(Http).counters.http_readers == count)


async def test_live_topics_are_sent_whether_they_are_kept_or_not(http: HttpNode) -> None:
    async with events(http, "/v1/topics?filter=%23") as stream:
        await asyncio.sleep(0.02)  # it has subscribed
        await http.post("/v1/topics/nobody/keeps/this", b"1")
        event = await stream.next()
    headers = {"weft.content-type": "application/octet-stream"}
    assert event["data"] == {"topic": "nobody/keeps/this", "payload": "1", "headers": headers}
    await readers_are(http, 0)


async def test_rules_hold_for_events(guarded: tuple[Path, str]) -> None:
    folder, auth = guarded
    async with running(folder, ", anonymous: never", auth) as http:
        status, _, _ = await http.get("/v1/topics?filter=%23", Authorization=basic("bob"))
        assert status == 403
        async with events(http, EVENTS + "?from=earliest", Authorization=basic("alice")) as stream:
            await stream.next()
            await http.post("/v1/streams/telemetry", b"hidden", Authorization=basic("alice"))
            await http.post(POST, b"seen", Authorization=basic("alice"))
            assert (await stream.next())["data"]["payload"] == "seen"
            (folder / "users").write_text("")
            await http.node.listeners.reloads.check(all_of_them=True)
            assert await asyncio.wait_for(stream.answer.content.read(), PATIENCE_S) == b""


async def test_a_right_that_is_taken_away_holds_for_the_next_record(guarded: tuple[Path, str]) -> None:
    folder, auth = guarded
    async with running(folder, ", anonymous: never", auth) as http:
        live_path = f"{http.url}/v1/topics?filter=plant/%23"
        async with (
            events(http, Authorization=basic("alice")) as stream,
            http.session.ws_connect(live_path, headers={"Authorization": basic("alice")}) as live,
        ):
            await stream.next()
            await http.post(POST, b"1", Authorization=basic("alice"))
            assert (await stream.next())["data"]["payload"] == "1"
            assert (await live.receive_json(timeout=PATIENCE_S))["payload"] == "1"
            rules = (folder / "acl").read_text()
            some = "topic write plant/#\ntopic read plant/a/b"
            (folder / "acl").write_text(rules.replace("topic readwrite plant/#", some))
            await http.node.listeners.reloads.check(all_of_them=True)
            await http.post(POST, b"2", Authorization=basic("alice"))
            await http.post(POST + "/b", b"3", Authorization=basic("alice"))
            assert (await stream.next())["data"]["payload"] == "3"
            assert (await live.receive_json(timeout=PATIENCE_S))["payload"] == "3"


async def test_readers_have_a_share(tmp_path: Path) -> None:
    async with running(tmp_path, more="limits: {http_readers: 4}") as http:
        async with events(http):
            status, answer, fields = await http.get(EVENTS)
            assert (status, "http_readers" in answer["detail"]) == (429, True)
            assert fields["Retry-After"]
        await readers_are(http, 0)
        async with events(http):
            pass


async def deaf(http: HttpNode, path: str) -> socket.socket:
    """A client that asks and reads nothing, with little room in its socket."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", http.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await readers_are(http, 1)
    return connection


def feeds(http: HttpNode) -> list[Any]:
    service = http.node.part(Http).service
    return [connection._feed for connection in service._open if connection._feed]  # type: ignore[attr-defined]


async def test_a_reader_that_does_not_read_holds_its_place_and_no_memory(http: HttpNode) -> None:
    connection = await deaf(http, EVENTS)
    (reader,) = feeds(http)
    body = b"[" + b",".join([b'"' + b"x" * 9000 + b'"'] * 100) + b"]"
    for _ in range(8):
        assert (await http.post(POST, body, Content_Type="application/json"))[0] == 200
    assert isinstance(reader, feed.Feed)
    await until(lambda: reader.is_paused)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    connection.setblocking(False)
    found = b""
    async with asyncio.timeout(PATIENCE_S):
        while not found.endswith(b"\n\n\r\n") or b"id: 799\n" not in found[-20_000:]:
            try:
                found += connection.recv(1 << 20)
            except BlockingIOError:
                await asyncio.sleep(0.001)
    assert re.findall(rb"^id: (\d+)$", found, re.MULTILINE) == [b"%d" % number for number in range(800)]
    connection.close()


async def test_live_messages_for_a_reader_that_does_not_read_are_dropped_and_told(http: HttpNode) -> None:
    connection = await deaf(http, "/v1/topics?filter=%23")
    (reader,) = feeds(http)
    assert isinstance(reader, topic_feed.TopicFeed)
    body = b"[" + b",".join([b'"' + b"x" * 9000 + b'"'] * 100) + b"]"
    for _ in range(8):
        assert (await http.post(POST, body, Content_Type="application/json"))[0] == 200
    assert http.node.part(Http).counters.http_events_dropped > 0
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    connection.setblocking(False)
    found = b""
    async with asyncio.timeout(PATIENCE_S):
        while b"event: dropped\n" not in found:
            try:
                found += connection.recv(1 << 20)
            except BlockingIOError:
                await asyncio.sleep(0.001)
    connection.close()


# --- The ``fetch`` that browsers have, by Node.js: bodies of every kind, streams, events that continue after the last
# one


SCRIPT = Path(__file__).with_name("fetch.mjs")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js 18 or later")
async def test_fetch_posts_and_reads(http: HttpNode) -> None:
    process = await asyncio.create_subprocess_exec(
        "node", str(SCRIPT), http.url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    found = json.loads(said)
    first = {name: found[name]["first_seq"] for name in ("text", "array", "bytes", "streamed")}
    assert first == {"text": 0, "array": 1, "bytes": 3, "streamed": 4}
    assert found["keyed"] == [[6, None], [6, "true"]]
    assert found["refused"] == 405
    assert found["ids"] == [3, 4, 5, 6], "after the last event that it has seen"
    payloads = [b"21.5", b"1", b'{"v":2}', b"\x00\xff", b'{"n":1}', b'{"n":2}', b"once"]
    assert [record.payload for record in http.stored()] == payloads
