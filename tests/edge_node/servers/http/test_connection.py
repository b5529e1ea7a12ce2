"""Requests as bytes: pipelining, keep-alive, bounds, and everything that two readers could read in two ways."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.edge_node.servers.http.harness import CONFIG, HttpNode, running
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.support.waiting import PATIENCE_S, until
from weft.bounds.scheduling import TurnBudget
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.units import Address
from weft.edge_node.check.rules import check
from weft.edge_node.ingest import ingest
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.servers.http import storing
from weft.edge_node.servers.http.connection import HttpConnection, longest_body_by
from weft.edge_node.servers.http.part import Http
from weft.edge_node.servers.http.request import KNOWN_HEADS_MAX, Request, RequestHeadCache, RequestParser
from weft.edge_node.servers.http.service import HttpService
from weft.protocols.mqtt.packets import PubAck, Publish
from weft.storage.segment_log import LogFull

HEAD = b"POST /v1/streams/telemetry/plant/a HTTP/1.1\r\nHost: 127.0.0.1\r\n"
GET = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def post(body: bytes, more: bytes = b"") -> bytes:
    return HEAD + b"Content-Length: %d\r\n" % len(body) + more + b"\r\n" + body


async def test_pipelined_requests_are_answered_in_their_order(http: HttpNode) -> None:
    requests = [post(b"%d" % number) for number in range(200)]
    requests[50] = b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answers = (await http.raw(b"".join(requests) + GET + b"Connection: close\r\n\r\n")).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200"] * 50 + [b"404"] + [b"200"] * 149 + [b"204"]
    assert [record.payload for record in http.stored()] == [b"%d" % n for n in range(200) if n != 50]


async def test_a_request_may_come_byte_by_byte_and_in_chunks(http: HttpNode) -> None:
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nHost: trailer\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0)
    assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE_S)
    writer.close()
    assert [record.payload for record in http.stored()] == [b"abcde"]


class KeptConnection:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, data: bytes) -> bytes:
        """Return status and body of the answer."""
        self._writer.write(data)
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        size = int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0])
        return head[9:12] + b" " + await asyncio.wait_for(self._reader.readexactly(size), PATIENCE_S)

    def close(self) -> None:
        self._writer.close()


async def test_a_head_that_came_before_means_the_same_again(http: HttpNode) -> None:
    bodies = [b"1", b"2", b"3", b"[4, 5]", b"12345", b"no JSON, so it is not as an array", b" [6]", b"7"]
    client = KeptConnection(*await asyncio.open_connection("127.0.0.1", http.port))
    json = b"Content-Type: application/json\r\nWeft-Header-Unit: kelvin\r\n"
    for body in bodies:
        assert (await client.ask(post(body, json))).startswith(b"200")
    for data in (post(b"8", json) * 2, b""):  # two in one read
        assert (await client.ask(data)).startswith(b"200")
    too_long = post(b"x" * 5_000_000, json)
    assert (await client.ask(too_long[: too_long.index(b"xx")])).startswith(b"413")
    client.close()
    found = http.stored()
    payloads = [b"1", b"2", b"3", b"4", b"5", b"12345", bodies[5], b"6", b"7", b"8", b"8"]
    assert [record.payload for record in found] == payloads
    assert {(record.key, *record.headers) for record in found if len(record.headers) == 1} == {
        (b"plant/a", ("unit", "kelvin"))
    }, "elements of arrays"
    assert {record.headers for record in found if len(record.headers) == 2} == {
        (("unit", "kelvin"), ("weft.content-type", "application/json"))
    }


async def test_a_head_that_came_before_is_handled_by_the_present_configuration(http: HttpNode, tmp_path: Path) -> None:
    client = KeptConnection(*await asyncio.open_connection("127.0.0.1", http.port))
    for _ in range(3):
        assert (await client.ask(post(b"1"))).startswith(b"200")
    text = CONFIG.format(folder=tmp_path, listener="", more="").replace("plant/{line}/#", "other/#")
    http.node.reconfigure.apply(parse(text, "edge.yaml", EdgeConfig, check).config)
    assert (await client.ask(post(b"1"))).startswith(b"422")
    client.close()
    assert len(http.stored()) == 3


async def test_a_head_that_came_before_lets_nothing_in_that_would_be_refused(tmp_path: Path) -> None:
    """Such a request is stored at once, without the steps of others."""
    (tmp_path / "acl").write_text("topic write line/a\n")
    more = f"  strict: {{from: line/+, payload: json}}\nauth: {{acl_file: {tmp_path}/acl}}"
    async with running(tmp_path, more=more) as http:
        client = KeptConnection(*await asyncio.open_connection("127.0.0.1", http.port))

        async def status(body: bytes) -> int:
            data = post(body).replace(b"telemetry/plant/a", b"strict/line/a")
            return int((await client.ask(data))[:3])

        assert [await status(body) for body in (b"1", b"2", b"3", b"no JSON", b"4")] == [200, 200, 200, 400, 200]
        http.node.ingest.back_pressure.holding = True
        assert await status(b"5") == 429
        http.node.ingest.back_pressure.holding = False
        assert await status(b"6") == 200
        (tmp_path / "acl").write_text("topic write line/b\n")
        await http.node.listeners.reloads.check(all_of_them=True)
        assert await status(b"7") == 403
        client.close()
        assert [record.payload for record in http.stored("strict")] == [b"1", b"2", b"3", b"4", b"6"]
        assert http.node.part(Http).counters.http_requests == 8


async def test_a_fault_behind_a_head_that_came_before_is_answered_and_the_connection_stays(
    http: HttpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = KeptConnection(*await asyncio.open_connection("127.0.0.1", http.port))
    assert [(await client.ask(post(body)))[:3] for body in (b"1", b"2", b"3")] == [b"200"] * 3
    faults = iter([RuntimeError("a fault")])

    def fail(service: HttpService, *_: object) -> bool:
        for fault in faults:
            raise fault
        return False

    monkeypatch.setattr(HttpService, "posts_at_once", fail)
    assert [(await client.ask(post(body)))[:3] for body in (b"4", b"5")] == [b"500", b"200"]
    client.close()
    assert [record.payload for record in http.stored()] == [b"1", b"2", b"3", b"5"]


def test_known_heads_are_bounded_and_have_no_bodies(http: HttpNode) -> None:
    heads, service = RequestHeadCache(), http.node.part(Http).service
    parser = RequestParser(heads, longest_body_by(service.settings), lambda _: None)
    for number in range(3 * KNOWN_HEADS_MAX):
        for _ in range(2):
            parser.feed(post(b"body", b"X: %d\r\n" % number), 0.0)
        parser.complete.clear()
    known: dict[bytes, Request] = heads._known
    assert 0 < len(known) <= KNOWN_HEADS_MAX
    assert not any(b"".join(request.body) for request in known.values())
    assert len(heads._seen) <= KNOWN_HEADS_MAX
    parser.close()


async def test_a_connection_is_kept_or_closed_as_the_client_says(http: HttpNode) -> None:
    assert b"Connection: close" in await http.raw(GET + b"Connection: close\r\n\r\n")
    assert b"Connection" not in await http.raw(GET + b"\r\n", is_kept=True)
    assert b"Connection: close" in await http.raw(b"GET /ping HTTP/1.0\r\n\r\n")
    assert b"Connection: keep-alive" in await http.raw(
        b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", is_kept=True
    )
    head = await http.raw(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n", is_kept=True)
    assert (head[:12], head[-4:]) == (b"HTTP/1.1 200", b"\r\n\r\n")


SMUGGLED = {
    "two lengths": b"Content-Length: 3\r\nContent-Length: 30\r\n\r\nabc",
    "the same length twice": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": b"Content-Length: +3\r\n\r\nabc",
    "a length in hexadecimal": b"Content-Length: 0x3\r\n\r\nabc",
    "length and chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "chunks, and something else": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "something else, and chunks": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "no chunks": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Content-Length : 3\r\n\r\nabc",
    "a folded line": b"X: a\r\n b\r\nContent-Length: 3\r\n\r\nabc",
    "a lone CR": b"X: a\rContent-Length: 3\r\n\r\nabc",
    "a lone LF": b"X: a\nContent-Length: 3\r\n\r\nabc",
    "a zero byte": b"X: a\0b\r\nContent-Length: 3\r\n\r\nabc",
    "a chunk with a lone LF": b"Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "a negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    "two hosts": b"Host: other\r\nContent-Length: 3\r\n\r\nabc",
    "a change of protocol with a body": b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
}


async def test_a_request_of_doubtful_length_is_refused_and_nothing_behind_it_is_read(http: HttpNode) -> None:
    for number, (what, rest) in enumerate(SMUGGLED.items(), 1):
        answer = await http.raw(post(b"before") + HEAD + rest + post(b"behind"))
        answers = answer.split(b"HTTP/1.1 ")[1:]
        assert [each[:1] for each in answers] in ([b"2", b"4"], [b"2", b"5"]), what
        assert b"Connection: close" in answers[1], what
        assert [record.payload for record in http.stored()] == [b"before"] * number, what


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
NO_REQUESTS = [
    (b"GET /\r\n\r\n", b"505"),
    (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"505"),
    (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
    (b"\x16\x03\x01\x02\x00\x01\x00", b"400"),
    (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", b"4"),
    (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"414"),
    (HEAD + b"X: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
    (HEAD + b"X: " + b"x" * 4_000_000, b"431"),
    (HEAD + b"X: x\r\n" * 200 + b"\r\n", b"431"),
    (HEAD + b"Content-Length: 9000000\r\n\r\n", b"413"),
    (CHUNKED + b"1\r\nx\r\n0\r\nT: " + b"x" * 60_000 + b"\r\n\r\n", b"431"),
    (CHUNKED + b"1\r\nx\r\n0\r\nT: " + b"x" * 4_000_000, b"431"),
    (CHUNKED + b"1;" + b"x" * 60_000 + b"\r\nx\r\n0\r\n\r\n", b"431"),
    (CHUNKED + b"10000\r\n" + bytes(65_536) + b"\r\n3f0000\r\n" + bytes(4_128_768) + b"\r\n1\r\nx\r\n", b"413"),
]


async def test_what_is_no_request_or_too_long_is_answered_and_ends_the_connection(http: HttpNode) -> None:
    for data, status in NO_REQUESTS:
        answer = await http.raw(data)
        assert answer.startswith(b"HTTP/1.1 " + status), (data[:40], answer[:40])
        assert b"Connection: close" in answer
    assert http.stored() == []


async def test_a_client_that_waits_for_100_gets_it_or_the_refusal(http: HttpNode) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE_S)
    writer.write(HEAD + b"Content-Length: 9000000\r\nExpect: 100-continue\r\n\r\n")
    assert b" 413 " in await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE_S)
    writer.close()


async def test_slow_and_idle_clients_are_closed(http: HttpNode) -> None:
    node = http.node
    service = node.part(Http).service
    object.__setattr__(service.settings, "head_s", 0.1)
    object.__setattr__(service.settings, "body_s", 0.1)
    object.__setattr__(service.settings, "idle_s", 0.1)

    async def rest_of(data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(data)
        await asyncio.sleep(0.02)  # the node has read it
        now = asyncio.get_running_loop().time() + 1
        for connection in list(service._open):
            connection.due(now)  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(reader.read(), PATIENCE_S)
        return b""

    assert b" 408 " in await rest_of(HEAD + b"X: x\r\n")
    assert b" 408 " in await rest_of(HEAD + b"Content-Length: 100\r\n\r\nabc")
    assert (await rest_of(GET + b"\r\n")).startswith(b"HTTP/1.1 204")
    assert http.node.part(Http).counters.http_timeouts == 2
    assert http.stored() == []


async def test_the_end_of_what_a_client_sends_is_not_the_end_of_its_answers(http: HttpNode) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(post(b"1"))
    writer.write_eof()
    assert b"200 OK" in await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()


async def test_while_too_much_waits_for_the_disk_clients_are_told_to_come_later(http: HttpNode) -> None:
    pressure = http.node.batch._store.back_pressure  # type: ignore[union-attr]
    pressure.holding = True
    status, answer, fields = await http.post("/v1/streams/telemetry/plant/a", b"1")
    assert (status, fields["Retry-After"], "limits.pending" in answer["detail"]) == (429, "1", True)
    refused = await http.raw(HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 429")
    pressure.holding = False
    status, _, _ = await http.post("/v1/streams/telemetry/plant/a", b"1")
    assert status == 200
    assert http.node.part(Http).counters.http_throttled == 2


async def test_a_request_without_a_length_is_refused_and_nothing_is_lost_unsaid(http: HttpNode) -> None:
    head = b"POST /v1/streams/telemetry/plant/a HTTP/1."
    for data in (
        head + b"0\r\n\r\nabc",
        head + b"1\r\nHost: localhost\r\n\r\n",
        b"POST /write?db=plant HTTP/1.0\r\n\r\nm v=1",
    ):
        answer = await http.raw(data)
        assert answer.startswith(b"HTTP/1.1 411"), answer
        assert b"Connection: close" in answer
    assert http.stored() == []
    assert b" 200 " in await http.raw(head + b"0\r\nContent-Length: 3\r\n\r\nabc")
    assert b" 200 " in await http.raw(post(b""), is_kept=True)
    assert [record.payload for record in http.stored()] == [b"abc", b""]


async def test_a_url_with_scheme_and_host_is_taken(http: HttpNode) -> None:
    head = (
        b"POST http://localhost:8080/v1/streams/telemetry/plant/a HTTP/1.1\r\nHost: other\r\nContent-Length: 1\r\n\r\n1"
    )
    assert b" 200 " in await http.raw(head, is_kept=True)
    stranger = head.replace(b"//localhost:8080", b"//stranger.example").replace(b"Host: other", b"Host: localhost")
    assert b" 421 " in await http.raw(stranger, is_kept=True), "the host of the URL counts"
    assert [(record.key, record.payload) for record in http.stored()] == [(b"plant/a", b"1")]


async def test_fields_behind_a_body_do_not_count(http: HttpNode) -> None:
    chunks = b"Transfer-Encoding: chunked\r\nTrailer: Weft-Header-Unit\r\n\r\n1\r\na\r\n0\r\n"
    assert b" 200 " in await http.raw(HEAD + chunks + b"Weft-Header-Unit: C\r\nHost: other\r\n\r\n", is_kept=True)
    (record,) = http.stored()
    assert (record.payload, record.headers) == (b"a", ())


METHODS = [
    (b"GET", b"/v1/streams/telemetry", b"405", b"Allow: POST"),
    (b"DELETE", b"/v1/streams/telemetry/plant/a", b"405", b"Allow: POST"),
    (b"HEAD", b"/v1/topics/plant/a", b"405", b"Allow: POST"),
    (b"PATCH", b"/v1/topics", b"405", b"Allow: GET"),
    (b"GET", b"/api/v2/write?bucket=b", b"405", b"Allow: POST"),
    (b"GET", b"/v1/streams/none/events", b"404", b""),
    (b"GET", b"/v2/streams/telemetry", b"404", b""),
    (b"TRACE", b"/", b"404", b""),
    (b"OPTIONS", b"/v1/streams/telemetry", b"204", b"Allow: GET, HEAD, POST, OPTIONS"),
    (b"OPTIONS", b"*", b"204", b"Allow: GET, HEAD, POST, OPTIONS"),
]


async def test_methods_that_a_path_does_not_have_are_refused_with_those_that_it_has(http: HttpNode) -> None:
    for method, target, status, field in METHODS:
        answer = await http.raw(method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", is_kept=True)
        assert answer.startswith(b"HTTP/1.1 " + status), (method, target, answer)
        assert field in answer
        if method == b"HEAD":
            assert answer.endswith(b"\r\n\r\n")


# --- A request of which very much is to be delivered is stored in pieces, and others are served between them


PATH = "/v1/streams/telemetry/plant/a"
JSON = {"Content_Type": "application/json"}
MESSAGES = list(range(40))
BODY = json.dumps(MESSAGES).encode()
MANY = list(range(2000))
COST_MAX = 90
"""Four subscribers get five messages in one piece."""


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ingest, storing):
        monkeypatch.setattr(module, "COST_MAX", COST_MAX)
    monkeypatch.setattr(storing, "PIECE_COST_MAX", COST_MAX)
    monkeypatch.setattr(storing, "ONCE_COST_MAX", 2 * COST_MAX)


@pytest_asyncio.fixture
async def readers(http: HttpNode) -> AsyncIterator[list[RawClient]]:
    clients = [await subscriber(http, f"reader-{number}") for number in range(4)]
    yield clients
    for client in clients:
        await client.close()


async def subscriber(http: HttpNode, client_id: str) -> RawClient:
    address = http.node.addresses["mqtt"]
    assert isinstance(address, Address)
    client = await RawClient.connect(address.port, client_id)
    await client.subscribe(("plant/#", 1))
    return client


async def received(client: RawClient, count: int) -> list[int]:
    found = []
    for _ in range(count):
        packet = await client.receive()
        assert isinstance(packet, Publish)
        client.send(PubAck(packet.packet_id))
        found.append(int(packet.payload))
    return found


async def stored(http: HttpNode) -> list[int]:
    await http.node.log.durable()
    return [int(record.payload) for record in http.stored()]


def count_stores(monkeypatch: pytest.MonkeyPatch, refuse: Callable[[int], bool] = lambda _: False) -> list[int]:
    """Return a list that gets the records of each store; refuse those whose number fits, from 0 on."""
    counts: list[int] = []

    def counted(name: str) -> None:
        store = getattr(Ingest, name)

        def wrapped(self: Ingest, gathered: Any, **options: Any) -> Any:
            counts.append(sum(len(run.keys) for run in gathered.groups.values()))
            if refuse(len(counts) - 1):
                if name == "store":
                    raise LogFull("no room")
                return {source: LogFull("no room") for run in gathered.groups.values() for source in run.sources}
            return store(self, gathered, **options)

        monkeypatch.setattr(Ingest, name, wrapped)

    counted("store")
    counted("store_each")
    return counts


@pytest.mark.usefixtures("_small_steps")
async def test_all_of_it_is_stored_and_delivered_once_and_in_order(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_stores(monkeypatch)
    status, answer, _ = await http.post(PATH, BODY, **JSON)
    assert (status, answer["first_seq"], answer["count"]) == (200, 0, len(MESSAGES))
    assert await stored(http) == MESSAGES
    assert [await received(reader, len(MESSAGES)) for reader in readers] == [MESSAGES] * len(readers)
    assert max(counts) == 5, "more than a step may deliver"


@pytest.mark.usefixtures("_small_steps")
async def test_points_are_stored_in_pieces_too(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_stores(monkeypatch)
    lines = "".join(f"plant,line=a value={number} {number}\n" for number in MESSAGES)
    status, _, _ = await http.post("/api/v2/write?bucket=plant/a&precision=s", lines.encode())
    assert status == 204
    assert len(http.stored()) == len(MESSAGES)
    assert max(counts) == 5
    for reader in readers:
        assert b'"value"' in (await reader.receive()).payload


@pytest.mark.usefixtures("_small_steps")
async def test_a_request_that_few_get_is_one_piece(http: HttpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_stores(monkeypatch)
    await http.post(PATH, BODY, **JSON)
    await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    assert [count for count in counts if count] == [len(MESSAGES)] * 2


@pytest.mark.usefixtures("_small_steps")
async def test_what_others_store_between_the_pieces_has_numbers_of_its_own(
    http: HttpNode, readers: list[RawClient]
) -> None:
    body = json.dumps(MANY).encode()
    both = await asyncio.gather(*(http.post(PATH, body, **JSON) for _ in range(2)))
    assert all("runs" in answer for _, answer, _ in both)
    rows = [
        answer.get("runs") or [{"first_seq": answer["first_seq"], "count": answer["count"]}] for _, answer, _ in both
    ]
    seqs = [[row["first_seq"] + index for row in each for index in range(row["count"])] for each in rows]
    assert sorted(seqs[0] + seqs[1]) == list(range(2 * len(MANY)))
    found = await stored(http)
    assert [[found[seq] for seq in each] for each in seqs] == [MANY, MANY]
    assert len(readers) == 4


@pytest.mark.usefixtures("_small_steps")
async def test_one_who_subscribes_between_the_pieces_misses_nothing_after_it(
    http: HttpNode, readers: list[RawClient]
) -> None:
    asked = asyncio.create_task(http.post(PATH, json.dumps(MANY).encode(), **JSON))
    first = await readers[0].receive()
    assert int(first.payload) == 0
    late = await subscriber(http, "late")
    packet = await late.receive()
    began = int(packet.payload)
    late.send(PubAck(packet.packet_id))
    assert 0 < began < len(MANY) - 1
    assert await received(late, len(MANY) - 1 - began) == MANY[began + 1 :]
    assert (await asked)[0] == 200


@pytest.mark.usefixtures("_small_steps")
async def test_with_a_key_what_is_too_much_for_one_commit_is_refused(http: HttpNode, readers: list[RawClient]) -> None:
    """Its halves are stored, each whole, and the key of what was refused is free."""
    status, answer, _ = await http.post(PATH, BODY, **JSON, Idempotency_Key="k")
    assert status == 413
    assert "send less at once" in answer["detail"]
    assert f"at most {storing.ONCE_COST_MAX} deliveries" in answer["detail"]
    assert not http.stored()
    for key, part in (("k", MESSAGES[:9]), ("k-2", MESSAGES[9:18])):
        for is_again in (False, True):
            status, answer, fields = await http.post(PATH, json.dumps(part).encode(), **JSON, Idempotency_Key=key)
            assert (status, answer["first_seq"], answer["count"]) == (200, part[0], len(part))
            assert ("Idempotency-Replayed" in fields) is is_again
    assert await stored(http) == MESSAGES[:18]
    assert [await received(reader, 18) for reader in readers] == [MESSAGES[:18]] * len(readers)


@pytest.mark.usefixtures("_small_steps")
async def test_with_a_key_too_many_points_are_refused_too(http: HttpNode, readers: list[RawClient]) -> None:
    lines = "".join(f"plant,line=a value={number} {number}\n" for number in MESSAGES)
    path = "/api/v2/write?bucket=plant/a&precision=s"
    status, answer, _ = await http.post(path, lines.encode(), Idempotency_Key="k")
    assert (status, "send less at once" in json.dumps(answer)) == (413, True)
    assert not http.stored()
    assert len(readers) == 4


@pytest.mark.usefixtures("_small_steps")
async def test_with_a_key_one_message_is_stored_for_any_number_of_subscribers(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "ONCE_COST_MAX", 1)
    assert (await http.post(PATH, b"7", Idempotency_Key="k"))[0] == 200, "it cannot be sent in parts"
    assert [await received(reader, 1) for reader in readers] == [[7]] * len(readers)


@pytest.mark.usefixtures("_small_steps")
async def test_with_a_key_what_the_log_refuses_is_stored_when_it_is_sent_again(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(MESSAGES[:8]).encode()
    with monkeypatch.context() as patch:
        counts = count_stores(patch, refuse=lambda _: True)
        assert (await http.post(PATH, body, **JSON, Idempotency_Key="k"))[0] == 503
    assert counts == [8], "all of it at once"
    assert not http.stored()
    _, answer, fields = await http.post(PATH, body, **JSON, Idempotency_Key="k")
    assert (answer["first_seq"], answer["count"], "Idempotency-Replayed" in fields) == (0, 8, False)
    assert await stored(http) == MESSAGES[:8]
    assert len(readers) == 4


@pytest.mark.usefixtures("_small_steps")
async def test_a_piece_that_is_refused_is_the_last_one(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key; what follows what was refused would come before it when it is sent again."""
    with monkeypatch.context() as patch:
        counts = count_stores(patch, refuse=lambda number: number == 2)
        assert (await http.post(PATH, BODY, **JSON))[0] == 503
    assert await stored(http) == MESSAGES[: 2 * 5]
    assert sum(counts) == 3 * 5
    assert await received(readers[0], 10) == MESSAGES[:10]


@pytest.mark.usefixtures("_small_steps")
async def test_a_request_whose_client_is_gone_is_left(
    http: HttpNode, readers: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is held, nor continues with routes that do not learn of new subscribers."""
    opened: list[asyncio.Transport] = []
    ended: list[Exception | None] = []
    made, lost = HttpConnection.connection_made, HttpConnection.connection_lost

    def note_begin(self: HttpConnection, transport: asyncio.Transport) -> None:
        made(self, transport)
        opened.append(transport)

    def note_end(self: HttpConnection, why: Exception | None) -> None:
        lost(self, why)
        ended.append(why)

    monkeypatch.setattr(HttpConnection, "connection_made", note_begin)
    monkeypatch.setattr(HttpConnection, "connection_lost", note_end)
    monkeypatch.setattr(TurnBudget, "spend", lambda self, cost=1: False)
    _, writer = await asyncio.open_connection("127.0.0.1", http.port)
    body = json.dumps(MANY).encode()
    head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % (PATH.encode(), len(body)) + body)
    await readers[0].receive()
    opened[0].abort()  # a client that has gone is not seen for certain while it is not read
    await until(lambda: ended)
    writer.close()
    count = len(await stored(http))
    await http.post(PATH, b"-2")
    assert len(await stored(http)) == count + 1 < len(MANY)


@pytest.mark.usefixtures("_small_steps")
async def test_requests_of_one_read_have_turns_also_before_what_cannot_be_read(
    http: HttpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a read is no way around the turn's budget, whatever follows."""
    monkeypatch.setattr(TurnBudget, "spend", lambda self, cost=1: False)
    stores = count_stores(monkeypatch)
    one = b"POST /v1/streams/telemetry/plant/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\n1"
    answers = await http.raw(one * 5 + b"no request\r\n\r\n")
    assert [answers.count(b"HTTP/1.1 200"), answers.count(b"HTTP/1.1 400")] == [5, 1]
    assert [count for count in stores if count] == [1] * 5
