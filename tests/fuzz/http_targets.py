"""Targets of what clients send by HTTP: whole conversations, InfluxDB's lines, and WebSocket frames of readers."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec
import zstandard

from tests.fuzz.target import NOW, Target, check_storable
from weft.bounds import Owner, OwnerKind
from weft.config.limits import EdgeLimits
from weft.edge_node.ingest.record import CHECK_COST
from weft.edge_node.servers.http.access import Browsers, claim_of, credentials_of
from weft.edge_node.servers.http.connection import longest_body_by
from weft.edge_node.servers.http.idempotency import Once
from weft.edge_node.servers.http.influx import LINE_BYTES_MAX, BadLine, Influx, lines_of, parse_line
from weft.edge_node.servers.http.posts import Posts
from weft.edge_node.servers.http.request import (
    PIECE_BYTES,
    Answers,
    FeedHandler,
    HttpExchange,
    Problem,
    Request,
    RequestHeadCache,
    RequestParser,
    unquoted,
)
from weft.edge_node.servers.http.settings import BrowserSettings, HttpCounters, HttpSettings
from weft.edge_node.servers.http.storing import NewRecord
from weft.edge_node.servers.http.storing import PostTarget as Stream
from weft.edge_node.servers.http.websocket import WebSocketWrapping, upgrade
from weft.protocols.topics import InvalidTopic, check_topic

SETTINGS = HttpSettings(limits=EdgeLimits(request_bytes=64 << 10, message_bytes=64 << 10), records_max=1000)
"""Small bounds: what a request may unpack to would else be more than its bytes allow."""
FUZZ = Owner(OwnerKind.USER, "fuzz")
STREAM = Stream("telemetry", 1, "t/n/l/telemetry", b"stream/telemetry")
ANSWERS = Answers(lambda: NOW)
BROWSERS = (Browsers(BrowserSettings()), Browsers(BrowserSettings(origins=("https://a.example",), is_loopback=False)))


class _Line:
    """The connection."""

    is_first = True

    def answered(self) -> None:
        pass

    def stream_to(self, taker: FeedHandler) -> None:
        pass


class _NoMisfits:
    """A stream that takes all payloads."""

    knows_json = False


class _Check:
    """A check that a payload does not pass."""

    cost = CHECK_COST


class _Storing:
    """The way to the log: whatever comes here must be something that the log takes."""

    misfits = _NoMisfits()
    has_checks = True

    def repeats(self, _exchange: HttpExchange, once: Once, _answer: object) -> bool:
        assert once.key.isprintable()
        return False

    def route(self, exchange: HttpExchange, target: Stream | None, key: bytes) -> None:
        try:
            check_topic(key.decode())
        except InvalidTopic as error:
            raise Problem(400, str(error)) from None

    def checked(
        self, exchange: HttpExchange, target: Stream | None, record: NewRecord, once: Once | None = None
    ) -> NewRecord:
        self.route(exchange, target, record.key)
        return record._replace(misfits=[(_Check, "odd")] if len(record.payload) % 2 else ())

    def store(
        self,
        exchange: HttpExchange,
        target: Stream | None,
        records: Sequence[NewRecord],
        once: Once | None,
        answer: Callable[[HttpExchange, list[tuple[int, int]], int], None],
    ) -> None:
        assert len(records) <= SETTINGS.records_max
        for record in records:
            self.route(exchange, target, record.key)
        check_storable([(record.key, record.payload, record.headers) for record in records])
        assert once is None or (once.key.isprintable() and once.fingerprint)
        answer(exchange, [(7, len(records))] if records else [], len(records))


STORING = _Storing()
POSTS = Posts(STORING, SETTINGS, HttpCounters(), lambda: NOW)  # type: ignore[arg-type]
HEADS = RequestHeadCache()
INFLUX = Influx(STORING, SETTINGS, HttpCounters())  # type: ignore[arg-type]


def _requests(data: bytes) -> None:
    """The first byte says in what pieces the rest comes."""
    if not data:
        return
    parser = RequestParser(HEADS, longest_body_by(SETTINGS), lambda _: None)
    size, stream, taken = data[0] << 1 or PIECE_BYTES, data[1:], 0
    try:
        for at in range(0, len(stream), size):
            parser.feed(stream[at : at + size], 0.0)
            while parser.complete:
                request = parser.complete.pop(0)
                taken += request.size
                _handle(request)
                if request.upgrades or not request.keeps_alive:
                    return
            assert parser.held <= SETTINGS.limits.request_bytes + 3 * PIECE_BYTES
    except Problem as problem:
        _check_refusal(HttpExchange(_Line(), Request(), FUZZ), problem)
    finally:
        parser.close()
    assert taken <= len(stream)


def _handle(request: Request) -> None:
    """Do with a request what its path asks for, and what is done with any."""
    for act in (_ask_browser, _introduce, _carry_out):
        exchange = HttpExchange(_Line(), request, FUZZ)
        try:
            act(request, exchange)
        except Problem as problem:
            _check_refusal(exchange, problem)
        if exchange.ready:
            _check_answer(exchange)


def _introduce(request: Request, _: HttpExchange) -> None:
    credentials_of(claim_of(request))


def _carry_out(request: Request, exchange: HttpExchange) -> None:
    path = request.path
    if request.upgrades:
        upgrade(request)
    elif path in (b"/api/v2/write", b"/write"):
        for _ in INFLUX.write(exchange, is_v2=path != b"/write"):
            pass
    elif path in (b"/query", b"/ping", b"/health"):
        INFLUX.answer(exchange, path, "weft")
    elif path == b"/":
        _take_steps(POSTS.to_stream(exchange, STREAM, None))
    else:
        _take_steps(POSTS.to_topic(exchange, unquoted(path[1:])))


def _take_steps(steps: Iterator[None] | None) -> None:
    for _ in steps or ():
        pass


def _ask_browser(request: Request, exchange: HttpExchange) -> None:
    for browsers in BROWSERS:
        with suppress(Problem):
            exchange.answer_fields = (*browsers.check(request), *browsers.preflight(request))
    exchange.answer(204)


def _check_refusal(exchange: HttpExchange, problem: Problem) -> None:
    assert 400 <= problem.status < 600
    for exchange.is_influx in (False, True):
        exchange.ready = False
        exchange.fail(problem)
        _check_answer(exchange)


def _check_answer(exchange: HttpExchange) -> None:
    """An answer has one head, and nothing that a client sent makes a line of it."""
    answer = exchange.rendered(ANSWERS)
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 %d " % exchange.status)
    assert all(b": " in line and b"\n" not in line and b"\r" not in line for line in lines[1:]), head
    if body:
        msgspec.json.decode(body)


def _gzip(data: bytes) -> bytes:
    """Compress with the number of Unix as the system's: Python 3.13 says that it is unknown."""
    found = bytearray(gzip.compress(data, mtime=0))
    found[9] = 3
    return bytes(found)


def _request_seeds() -> list[bytes]:
    array, host = b'[1,{"a":"b"},"c"]', b"Host: a\r\n"
    event = b'{"id":"1","source":"s","specversion":"1.0","type":"t","time":"2020-01-01T00:00:00Z","data":{"a":1}}'
    other = b'{"id":"1","source":"s","specversion":"1.0","type":"t","x":true,"data_base64":"YWJj"}'
    json, binary = b"Content-Type: application/json\r\n", b"ce-id: 1\r\nce-source: s%20\r\nce-type: t\r\n"
    bomb = bytes(10 << 20)
    posts = [
        post(b"/plant/a", b"21.5"),
        post(b"/plant/a", array, json),
        post(
            b"/?x=1",
            b'{"a":1,"t":"2020-01-01T00:00:00Z"}\n{"a":2,"t":1}\n',
            b"Content-Type: application/x-ndjson\r\nWeft-Key: plant/{a}\r\nWeft-Time-Field: t\r\n",
        ),
        post(
            b"/a",
            b"x",
            b"Weft-Header-A: 42\r\nWeft-Header-B: :YWJj:\r\nWeft-Header-C: ?1\r\nWeft-Priority: 4\r\n"
            b'Weft-Expiry: 60\r\nWeft-Correlation-Id: "a"\r\nWeft-Time: 1700000000.5\r\n',
        ),
        post(b"/a", b"x", b'Idempotency-Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"\r\n' + json),
        post(b"/a", event, b"Content-Type: application/cloudevents+json\r\n"),
        post(b"/a", b"[" + event + b"," + other + b"]", b"Content-Type: application/cloudevents-batch+json\r\n"),
        post(b"/a", b"data", b'ce-specversion: 1.0\r\nce-time: 2020-01-01T00:00:00.5Z\r\nce-x: "a"\r\n' + binary),
        post(b"/a", _gzip(array), b"Content-Encoding: gzip\r\n" + json),
        post(b"/a", zstandard.compress(array), b"Content-Encoding: zstd\r\n" + json),
        post(b"/a", _gzip(bomb)[:9_000], b"Content-Encoding: gzip\r\n"),
        post(b"/a", zstandard.compress(bomb), b"Content-Encoding: zstd\r\n"),
        post(b"/api/v2/write?bucket=plant&precision=s", b'm,a=1 b=2.5,c="x",d=3i,e=t 1700000000\n# no\n'),
        post(b"/write?db=p/{measurement}/{a}&u=a&p=b", b"m,a=1 b=2\nm b=2\n", b"Authorization: Token a:b\r\n"),
        b"POST /query HTTP/1.1\r\n" + host + b"Content-Length: 13\r\n\r\nq=CREATE+DATA",
        b"POST /a HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n",
    ]
    upgrading = (
        b"GET /v1/streams/s/events HTTP/1.1\r\n" + host + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    return [
        *(b"\0" + one for one in posts),
        b"\x05" + b"".join(posts[:6]),
        b"\0" + upgrading,
        b"\0OPTIONS /a HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\r\nAccess-Control-Request-Headers: X\r\n\r\n",
        b"\0GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic YTpi\r\n\r\n" * 100,
        b"\0" + post(b"/a", b"x", b"".join(b"X-%d: a\r\n" % number for number in range(120))),
        b"\0" + post(b"/a", b"[" * 16_000, json),
        b"\0" + post(b"/a", b"[" * 9_000, b"Content-Type: application/x-ndjson\r\n"),
        b"\0" + post(b"/a", b'{"t":"\xff"}', b"Weft-Time-Field: t\r\n"),
        b"\0" + post(b"/", b'{"\\"t":"1"}', b"Weft-Key: a/{t}\r\nWeft-Time-Field: t\r\n"),
        b"\0" + post(b"/a", b'{"\\"t":"1"}', b'Weft-Time-Field: "t\r\n'),
        b"\0" + post(b"/", b"{}", b"Weft-Key: a" + b"".join(b"/{%d}" % number for number in range(2_000)) + b"\r\n"),
        b"\0" + post(b"/a", b'{"\xff":"1"}', b"Content-Type: application/cloudevents+json\r\n"),
        b"\0"
        + post(
            b"/a",
            event.replace(b'{"a":1}', b'"\xff","datacontenttype":"text/plain"'),
            b"Content-Type: application/cloudevents+json\r\n",
        ),
        b"\0" + post(b"/a", b"[" + b"1," * 900 + b"1]", json),
        b"\0POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2_000 + b"0\r\n\r\n",
        b"\0GET /" + b"%41" * 5_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ]


def post(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    """A request with a body."""
    head = b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n"
    return head % (path, more, len(body)) + body


# --- InfluxDB's line protocol


def _lines(data: bytes) -> None:
    size = 0
    for line in lines_of(data):
        size += len(line)
        try:
            point = parse_line(line)
        except BadLine:
            continue
        fields = msgspec.json.decode(point.fields)
        assert fields
        assert isinstance(fields, dict)
        assert len({name for name, _ in point.tags}) == len(point.tags)
    assert size <= len(data)


def _line_seeds() -> list[bytes]:
    return [
        b'm a=1\nm,t=x a=1i,b=2u,c=t,d="text",e=-1.5e3 1700000000\n# comment\n\n',
        b'm\\ n,t\\,u=x\\=y f="a\\"b\\\\c",g=F 1\r\nbroken\nm a=\nm,a a=1\nm a="open\nclosed" 5\n',
        b'm a="' + b"\n" * 16_000,
        b'm a="' + b'\\"' * 8_000 + b'"\n',
        b"m," + b"t=x," * 1_500 + b"u=1 a=1\n",
        b"m " + b",".join(b"f%d=%d" % (number, number) for number in range(1_000)),
        b"m a=" + b"9" * 5_000,
        b'm a="x"\n' * 2_000,
        b'"\n' * (LINE_BYTES_MAX // 2),
    ]


# --- WebSocket frames of those who read events


def _frames(data: bytes) -> None:
    """The first byte says in what pieces the rest comes; an event is sent after each."""
    if not data:
        return
    socket, size, body = WebSocketWrapping(), data[0] or 4096, data[1:]
    try:
        for at in range(0, len(body), size):
            answer, is_over = socket.received(body[at : at + size])
            assert len(answer) <= 8 * size + 256
            if is_over:
                break
            assert socket.event("record", b'{"seq":1}', 1)
            assert socket.idle()
        socket.end()
    finally:
        socket.forget()


def _frame_seeds() -> list[bytes]:
    def frame(opcode: int, payload: bytes = b"", first: int = 0x80) -> bytes:
        return bytes((first | opcode, 0x80 | len(payload))) + bytes(4) + payload

    return [
        b"\0" + frame(1, b"hello") + frame(9, b"x") + frame(10) + frame(8, b"\x03\xe8bye") + frame(1, b"late"),
        b"\3" + frame(2, b"abc", 0) + frame(9) + frame(0, b"def"),
        b"\0" + frame(8),
        b"\0" + frame(8, b"\x03"),
        b"\0" + frame(1, b"\xff\xff"),
        b"\0\x82\xfe\x20\0" + bytes(4 + 8192),
        b"\0\x82\xff" + (1 << 62).to_bytes(8, "big"),
        b"\0\x82\x05hello",
        b"\0" + frame(9) * 1_000,
        b"\0" + frame(2, b"", 0) + frame(0, b"", 0) * 1_000,
    ]


HTTP = Target(
    _requests,
    _request_seeds,
    head=1,
    memory_per_byte=128,
    weight=lambda data: 4 * len(data),
    longest=16 << 10,
    is_slow=True,
)
"""A request takes 60 bytes, and some tenths of a millisecond."""
TARGETS = {
    "http": HTTP,
    "lines": Target(_lines, _line_seeds, memory_per_byte=64, is_slow=True),
    "events": Target(_frames, _frame_seeds, head=1, memory_per_byte=64, longest=16 << 10, is_slow=True),
}
