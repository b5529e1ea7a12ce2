"""Incoming HTTP requests. The parser is httptools'; this module adds the bounds, and refuses requests whose length two
parsers could interpret differently (request smuggling, RFC 9112 section 11.2).

httptools refuses by itself: two lengths, a length beside a transfer coding, white space before a colon, folded lines,
lone CRs and LFs, signs and lists in lengths, and bytes after a request that ends its connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

import httptools
import msgspec

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.http.settings import HttpCounters, HttpSettings
from weft.network.problem import PROBLEM_JSON
from weft.network.problem import problem as problem_document
from weft.storage.segment_log import LogFull
from weft.storage.segment_log.settings import RecordTooLarge

# Refusal of a request: its status, and a sentence with the remedy.

QUOTED_MAX = 80
"""Maximum number of characters of a client's input in an answer."""


class Problem(Exception):
    """A refused request.

    Args:
        status: of the answer.
        sentence: the problem, then the remedy.
        closes: whether the connection ends, because later data on it cannot be parsed.
        fields: further fields of the answer's head.
        code: InfluxDB's error code, for its clients.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        closes: bool = False,
        fields: Sequence[tuple[str, str]] = (),
        code: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.closes = closes
        self.fields = fields
        self.code = code or _CODES.get(status, "invalid")


_CODES = {
    401: "unauthorized",
    403: "forbidden",
    404: "not found",
    405: "method not allowed",
    409: "conflict",
    413: "request too large",
    429: "too many requests",
    500: "internal error",
    503: "unavailable",
}


def quoted(text: str) -> str:
    """Return a client's input, shortened for an answer."""
    return repr(text if len(text) <= QUOTED_MAX else f"{text[:QUOTED_MAX]}...")


def try_later(status: int, sentence: str, seconds: int = 1) -> Problem:
    """Return a refusal after which the same request may be sent again."""
    return Problem(status, sentence, fields=(("Retry-After", str(seconds)),))


HEAD_BYTES_MAX = 16 << 10
"""Longest head of a request: its first line and its fields."""
TAIL_BYTES_MAX = 16 << 10
"""Maximum bytes of a trailer, which is ignored, and of the extensions of a chunk."""
FIELDS_MAX = 128
"""Maximum number of fields of a head."""
PIECE_BYTES = 16 << 10
"""Bytes that are parsed before their requests are handled."""
QUERY_FIELDS_MAX = 32
KNOWN_HEADS_MAX = 2048
"""Maximum number of remembered heads; beyond it, all are forgotten and parsed again."""
KNOWN_HEAD_BYTES_MAX = 1024
"""Longest head that is remembered."""
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,9})\r\n")
_OF_ONE_REQUEST = frozenset(
    {
        b"content-encoding",
        b"expect",
        b"idempotency-key",
        b"traceparent",
        b"transfer-encoding",
        b"weft-expiry",
        b"weft-time",
    }
)
"""Fields with which a head is not remembered: another request will have others, or is not handled by its head alone."""
_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)", re.IGNORECASE)
_ONCE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"expect",
        b"host",
        b"idempotency-key",
        b"last-event-id",
        b"origin",
        b"transfer-encoding",
        b"weft-key",
        b"weft-time",
        b"weft-time-field",
    }
)
"""Fields that must occur at most once."""


class LongestBody(NamedTuple):
    """Bound on the body of a request."""

    size: int
    setting: str
    """Setting with the bound, for the refusal of a longer body."""


class Request:
    """One request."""

    __slots__ = (
        "_query",
        "body",
        "bytes_max",
        "fields",
        "headers",
        "is_http10",
        "keeps_alive",
        "known",
        "method",
        "path",
        "plan",
        "size",
        "target",
        "upgrades",
    )

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        """Path and query as received."""
        self.path = b""
        """Path as received; known with the head."""
        self.fields: list[tuple[bytes, bytes]] = []
        """Fields of the head in their order; names in lower case."""
        self.headers: dict[bytes, bytes] = {}
        """The same by name; a repeated field has its last value."""
        self.body: list[bytes] = []
        self.size = 0
        """Bytes of the body so far."""
        self.bytes_max = LongestBody(0, "")
        """Longest body, as received and unpacked; known with the head."""
        self.is_http10 = False
        self.keeps_alive = True
        self.upgrades = False
        """True if the client wants to speak WebSocket from now on."""
        self.known: Request | None = None
        """Earlier request with the same head, whose ``plan`` is for all of them; None for a head that is not known."""
        self.plan: object = None
        """Decisions that depend on the head alone, kept by the code that handles such requests."""
        self._query: dict[str, str] | None = None

    def again(self, body: bytes) -> Request:
        """Return a request with the same head, except for its length, and a body."""
        found = Request()
        found.method, found.target, found.path = self.method, self.target, self.path
        found.fields, found.headers, found._query = self.fields, self.headers, self._query
        found.bytes_max, found.known = self.bytes_max, self
        found.body.append(body)
        found.size = len(body)
        return found

    def header(self, name: bytes) -> str:
        """Return a field as text; empty without it.

        Raises:
            Problem: it is not UTF-8.
        """
        value = self.headers.get(name)
        if value is None:
            return ""
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Problem(400, f"the field {name.decode()} is not UTF-8; send it as UTF-8") from None

    @property
    def has_body(self) -> bool:
        """Return whether the head announces a body of any length."""
        return b"content-length" in self.headers or b"transfer-encoding" in self.headers

    @property
    def query(self) -> dict[str, str]:
        """Return the query's fields; a repeated field has its last value.

        Raises:
            Problem: it cannot be parsed.
        """
        if self._query is None:
            text = self.target.partition(b"?")[2]
            try:
                pairs = parse_qsl(
                    text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
                )
            except ValueError:
                raise Problem(400, "the query of the URL cannot be read; send up to 32 fields in UTF-8") from None
            self._query = dict(pairs)
        return self._query

    def payload(self) -> bytes:
        """Return the body as received."""
        body = self.body
        return body[0] if len(body) == 1 else b"".join(body)


def unquoted(segment: bytes) -> bytes:
    """Return a part of a path without its percent signs."""
    return unquote_to_bytes(segment) if b"%" in segment else segment


class RequestHeadCache:
    """Heads of earlier requests, of all connections. Devices send the same head again and again, and parsing it costs
    more than storing the message. A head is equal if all of its bytes are, except for the digits of its length."""

    def __init__(self) -> None:
        self._known: dict[bytes, Request] = {}
        self._seen: set[int] = set()

    def find(self, data: bytes) -> tuple[Request, bytes] | None:
        """Return the head and the body of the request that ``data`` is, from first to last byte; None if its head is
        not known, or there is more or less than one request."""
        # By bytes and not by fields: the same bytes have the same meaning, and what the parser refuses never came here.
        # A second reader of lengths is where requests are smuggled.
        parts = _parts(data)
        if parts is None or (known := self._known.get(parts[0])) is None:
            return None
        body = data[parts[1] :]
        return (known, body) if len(body) <= known.bytes_max.size else None

    def note(self, data: bytes, request: Request) -> None:
        """Remember the head of a parsed request, if it came before and ``data`` is this one request."""
        if request.is_http10 or request.upgrades or not request.keeps_alive or request.method != "POST":
            return
        parts = _parts(data)
        if parts is None or parts[1] > KNOWN_HEAD_BYTES_MAX or not _OF_ONE_REQUEST.isdisjoint(request.headers):
            return
        # At its second coming: a device whose heads all differ would fill the table.
        key = hash(parts[0])
        if key not in self._seen:
            if len(self._seen) >= KNOWN_HEADS_MAX:
                self._seen.clear()
            self._seen.add(key)
            return
        if len(self._known) >= KNOWN_HEADS_MAX:
            self._known.clear()
        known = self._known[parts[0]] = request.again(b"")
        known.known = None


def _parts(data: bytes) -> tuple[bytes, int] | None:
    """Return the head of a request without the digits of its length, and the offset of its body; None if the data is
    not one whole request with a length."""
    end = data.find(b"\r\n\r\n") + 4
    length = _LENGTH.search(data, 0, end)
    if length is None or int(length[1]) != len(data) - end or end == len(data):
        return None
    first, last = length.span(1)
    return data[:first] + data[last:end], end


class RequestParser:
    """Parser of the requests of one connection.

    Args:
        heads: known heads, of which requests are not parsed.
        longest_body: returns the bound on the body of a request whose head is complete.
        on_head: called when a head is complete; may raise ``Problem``.
    """

    __slots__ = (
        "_failed",
        "_head_bytes",
        "_heads",
        "_in_body",
        "_is_between",
        "_longest_body",
        "_now",
        "_on_head",
        "_parser",
        "_request",
        "_tail_bytes",
        "began",
        "complete",
        "rest",
    )

    def __init__(
        self,
        heads: RequestHeadCache,
        longest_body: Callable[[Request], LongestBody],
        on_head: Callable[[Request], None],
    ) -> None:
        self._heads = heads
        self._is_between = True
        """True if the next byte begins a request."""
        self._longest_body = longest_body
        self._on_head = on_head
        self._parser: Any = httptools.HttpRequestParser(self)
        self._request: Request | None = None
        self._in_body = False
        self._head_bytes = 0
        """Bytes of the head's pieces so far, without the last one."""
        self._tail_bytes = 0
        """Bytes of the pieces since the body last grew: part of a trailer, or of the extensions of a chunk."""
        self._failed: Problem | None = None
        self._now = self.began = 0.0
        """Time at which the latest request began."""
        self.complete: list[Request] = []
        """Complete requests that are not handled yet."""
        self.rest = b""
        """Bytes after a request that asked for WebSocket."""

    @property
    def held(self) -> int:
        """Return the bytes held of an incomplete request."""
        request = self._request
        return 0 if request is None else self._head_bytes + request.size + self._tail_bytes

    @property
    def is_within(self) -> bool:
        """Return whether a request has begun and is incomplete."""
        return self._request is not None

    @property
    def awaits_request(self) -> bool:
        """Return whether the next byte begins a request, and none waits to be handled."""
        return self._is_between and not self.complete

    @property
    def is_in_body(self) -> bool:
        """Return whether its head is complete."""
        return self._in_body

    def feed(self, data: bytes, now: float) -> None:
        """Parse up to ``PIECE_BYTES``. ``complete`` has the complete requests, even when this raises.

        Raises:
            Problem: the data is not a request, or exceeds a bound. Later data cannot be parsed.
        """
        self._now = now
        is_whole = self._is_between
        if is_whole and (found := self._heads.find(data)) is not None:
            head, body = found
            self.complete.append(head.again(body))
            return
        count = len(self.complete)
        within, size = (self._request, self._request.size) if self._request is not None else (None, 0)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if self._failed is not None:
                raise self._failed from None
            if self.complete and not self.complete[-1].keeps_alive:
                return  # the request has announced the end of the connection: later data is ignored
            raise Problem(400, f"this is not a request in HTTP/1.1: {_reason(error)}", closes=True) from None
        if is_whole and self._is_between and len(self.complete) == count + 1:
            self._heads.note(data, self.complete[-1])
        if self._request is not None and not self._in_body:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX + PIECE_BYTES:  # bytes before it in its first piece count, too
                raise _long_head()
        elif self._request is not None:
            has_grown = self._request is not within or self._request.size > size
            self._tail_bytes = 0 if has_grown else self._tail_bytes + len(data)
            if self._tail_bytes > TAIL_BYTES_MAX:
                raise Problem(
                    431,
                    f"a trailer, or what follows the size of a chunk, has more than {TAIL_BYTES_MAX} "
                    "bytes; send less there",
                    closes=True,
                )

    def close(self) -> None:
        """End the parser: it and this object hold each other."""
        self._parser = None

    # --- httptools

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._request = Request()
        self._is_between = False
        self.began = self._now
        self._head_bytes, self._tail_bytes, self._in_body = 0, 0, False

    def on_url(self, url: bytes) -> None:
        """Add a part of the first line."""
        assert self._request is not None
        self._request.target += url
        if len(self._request.target) > HEAD_BYTES_MAX:
            self._fail(Problem(414, f"the URL is longer than {HEAD_BYTES_MAX} bytes; send a shorter one", closes=True))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a field. Fields behind the body are skipped: no relevant field is allowed there."""
        if self._in_body:
            return
        request = self._request
        assert request is not None
        fields = request.fields
        fields.append((name.lower(), value))
        if len(fields) > FIELDS_MAX:
            self._fail(_long_head())

    def on_headers_complete(self) -> None:
        """Check the head."""
        request, parser = self._request, self._parser
        assert request is not None
        self._in_body = True
        request.method = parser.get_method().decode("ascii")
        headers = request.headers = dict(request.fields)
        version = parser.get_http_version()
        try:
            if len(headers) != len(request.fields):
                _check_repeated(request.fields)
            if version != "1.1":
                request.is_http10 = True
                if version != "1.0" or b"transfer-encoding" in headers:
                    raise Problem(505, "this listener speaks HTTP/1.1; send the request so", closes=True)
            elif b"host" not in headers:
                raise Problem(400, "a request of HTTP/1.1 needs the field Host; send it", closes=True)
            if self._head_bytes and _length(request) > HEAD_BYTES_MAX:
                raise _long_head()
            if not request.target.startswith(b"/"):
                _without_authority(request)
            request.path = request.target.partition(b"?")[0]
            if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
                what = quoted(headers[b"transfer-encoding"].decode("latin-1"))
                raise Problem(501, f"transfer coding {what} is not known; send `chunked`, or a length", closes=True)
            if parser.should_upgrade():
                _check_upgrade(request)
            request.bytes_max = self._longest_body(request)
            if b"content-length" in headers and int(headers[b"content-length"]) > request.bytes_max.size:
                raise _long_body(request)
            self._on_head(request)
        except Problem as problem:
            self._fail(problem)

    def on_body(self, data: bytes) -> None:
        """Add a part of the body."""
        request = self._request
        assert request is not None
        request.body.append(data)
        request.size += len(data)
        if request.size > request.bytes_max.size:
            self._fail(_long_body(request))
        if len(request.body) > 64:
            request.body = [b"".join(request.body)]  # many small chunks are many small objects

    def on_message_complete(self) -> None:
        """End a request."""
        request = self._request
        assert request is not None
        request.keeps_alive = self._parser.should_keep_alive()
        self._request, self._in_body = None, False
        self._is_between = request.keeps_alive and not request.upgrades
        self.complete.append(request)

    def _fail(self, problem: Problem) -> None:
        problem.closes = True
        self._failed = problem
        raise problem


def _long_body(request: Request) -> Problem:
    size, setting = request.bytes_max
    return Problem(413, f"the body is longer than {size} bytes ({setting}); send less at a time", closes=True)


def _length(request: Request) -> int:
    return len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.fields)


def _check_repeated(fields: list[tuple[bytes, bytes]]) -> None:
    names = set()
    for name, _ in fields:
        if name in names and name in _ONCE:
            raise Problem(400, f"the field {name.decode('latin-1')} was sent twice; send it once", closes=True)
        names.add(name)


def _without_authority(request: Request) -> None:
    """Reduce a URL with scheme and host, as for a proxy, to its path. Its host takes precedence (RFC 9112, 3.2.2)."""
    found = _ABSOLUTE.match(request.target)
    if found is not None:
        request.headers[b"host"] = found[1]
        rest = request.target[found.end() :]
        request.target = rest if rest.startswith(b"/") else b"/" + rest


def _check_upgrade(request: Request) -> None:
    is_websocket = request.headers.get(b"upgrade", b"").lower() == b"websocket"
    if request.method != "GET" or not is_websocket or request.has_body:
        raise Problem(
            400, "this listener changes to WebSocket only, by GET; send the request without Upgrade", closes=True
        )
    request.upgrades = True


def _long_head() -> Problem:
    return Problem(
        431,
        f"the head of the request has more than {HEAD_BYTES_MAX} bytes or {FIELDS_MAX} fields; send fewer",
        closes=True,
    )


def _reason(error: Exception) -> str:
    return str(error)[:120] or type(error).__name__


# Answers as bytes.

JSON = "application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_NO_BODY = (204, 304)
Fields = Sequence[tuple[str, str]]


class Answers:
    """Encoder of answers. Answers of the same second share their date.

    Args:
        wall_clock: nanoseconds since 1970.
    """

    __slots__ = ("_date", "_done", "_second", "_wall_clock")

    def __init__(self, wall_clock: Callable[[], int]) -> None:
        self._wall_clock = wall_clock
        self._second = -1
        self._date = b""
        self._done = b""
        """Beginning of the usual answer: JSON with status 200 on a connection that stays open."""

    def _look_at_clock(self) -> None:
        second = self._wall_clock() // 1_000_000_000
        if second != self._second:
            self._second = second
            self._date = f"Server: weft\r\nDate: {formatdate(second, usegmt=True)}\r\n".encode()
            self._done = b"%b%bContent-Type: %b\r\nContent-Length: " % (_FIRST_LINES[200], self._date, JSON.encode())

    def done(self, body: bytes) -> bytes:
        """Return the usual answer with its body, as ``whole`` does."""
        self._look_at_clock()
        return b"%b%d\r\n\r\n%b" % (self._done, len(body), body)

    def head(self, status: int, fields: Fields, *, keeps_alive: bool, is_http10: bool = False) -> bytes:
        """Return the first line and the fields of an answer, without the empty line."""
        self._look_at_clock()
        parts = [_FIRST_LINES[status], self._date]
        if not keeps_alive:
            parts.append(b"Connection: close\r\n")
        elif is_http10:
            parts.append(b"Connection: keep-alive\r\n")
        parts += [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in fields]
        return b"".join(parts)

    def whole(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = JSON,
        fields: Fields = (),
        *,
        keeps_alive: bool = True,
        is_http10: bool = False,
        is_head: bool = False,
    ) -> bytes:
        """Return an answer with its body.

        Args:
            is_head: whether the request was HEAD, whose answer has no body.
        """
        head = self.head(status, fields, keeps_alive=keeps_alive, is_http10=is_http10)
        if status in _NO_BODY:
            return head + b"\r\n"
        length = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return head + length if is_head else head + length + body


def influx_error(problem: Problem) -> bytes:
    """Return the body of a refusal to a client of InfluxDB."""
    return msgspec.json.encode({"code": problem.code, "message": str(problem), "error": str(problem)})


# One request and its answer, which waits for the disk and for the answers before it.

FULL_RETRY_S = 5
"""Seconds after which a client of a full log may try again."""


class HttpTransport(Protocol):
    """The connection of an exchange (``HttpConnection``)."""

    def answered(self) -> None:
        """Send the answers that are due."""

    def stream_to(self, feed: FeedHandler) -> None:
        """Pass the connection to a feed; the exchange was answered with its head."""

    @property
    def is_first(self) -> bool:
        """Return whether no answer is due before that of the latest request."""
        ...


class FeedTransport(Protocol):
    """Interface of the connection for a feed."""

    def send(self, data: bytes) -> None:
        """Write bytes."""

    def send_all(self, parts: Sequence[bytes]) -> None:
        """Write bytes in parts, which other clients may share."""

    def close(self) -> None:
        """Close it, after the waiting bytes if the client reads."""


class FeedHandler(Protocol):
    """A feed: it sends to a connection until either ends."""

    def begin(self, way: FeedTransport) -> None:
        """Begin to send."""

    def received(self, data: bytes) -> None:
        """Handle the client's input meanwhile."""

    def pause(self) -> None:
        """Send nothing until ``resume``: the client does not read."""

    def resume(self) -> None:
        """Resume sending."""

    def recheck(self) -> None:
        """Check again what the client may read, and whether it is admitted: users or rules were read again."""

    def stop(self) -> None:
        """End: the connection has ended, or the node stops."""


class HttpExchange:
    """A request until its answer is sent; the ``Source`` of its records."""

    protocol = "http"
    """Name of the protocol in traces."""
    __slots__ = (
        "_transport",
        "answer_fields",
        "identity",
        "is_influx",
        "keeps_alive",
        "owner",
        "publisher",
        "ready",
        "request",
        "routes",
        "status",
        "stored",
        "whole",
    )

    def __init__(self, transport: HttpTransport, request: Request, owner: Owner, answer_fields: Fields = ()) -> None:
        self._transport = transport
        self.request = request
        """The request; of one with a known head, perhaps only the head, which others share."""
        self.keeps_alive = request.keeps_alive
        """False if the connection ends with the answer."""
        self.owner = owner
        """Owner in whose turns it is served."""
        self.publisher: str | None = None
        self.identity: Identity | None = None
        """Identity of the client; None for requests that need none."""
        self.routes: RouteCache
        self.is_influx = False
        """True if errors have the form of InfluxDB's."""
        self.answer_fields = answer_fields
        """Fields that each answer to this request has."""
        self.ready = False
        self.status = 0
        self.whole: tuple[bytes, str, Fields] = (b"", JSON, ())
        """Body, type and fields of the answer."""
        self.stored: Callable[[], None] | None = None
        """Answers once the records are durable."""

    def answer(self, status: int, body: bytes = b"", content_type: str = JSON, fields: Fields = ()) -> None:
        """Set the answer; it is sent after earlier ones. The first call counts.

        JSON ends with a line break: people read it on a terminal.
        """
        if self.ready:
            return
        if body and content_type == JSON:
            body += b"\n"
        self.ready = True
        self.status, self.whole = status, (body, content_type, fields)
        self._transport.answered()

    def rendered(self, answers: Answers) -> bytes:
        """Return the answer as bytes."""
        request, (body, content_type, fields) = self.request, self.whole
        is_usual = self.status == 200 and content_type is JSON and not fields and not self.answer_fields
        if is_usual and self.keeps_alive and not request.is_http10 and request.method == "POST":
            return answers.done(body)
        return answers.whole(
            self.status,
            body,
            content_type,
            (*self.answer_fields, *fields),
            keeps_alive=self.keeps_alive,
            is_http10=request.is_http10,
            is_head=request.method == "HEAD",
        )

    def fail(self, problem: Problem) -> None:
        """Answer that the request is refused."""
        if problem.closes:
            self.keeps_alive = False
        if not self.is_influx:
            self.answer(problem.status, problem_document(problem.status, str(problem)), PROBLEM_JSON, problem.fields)
            return
        text = str(problem).replace("\r", " ").replace("\n", " ")
        fields = (*problem.fields, ("X-Influxdb-Error", text.encode("ascii", "replace").decode()))
        self.answer(problem.status, influx_error(problem), fields=fields)

    def stream_to(self, feed: FeedHandler) -> None:
        """Pass the connection to a feed, once the earlier answers are sent."""
        self._transport.stream_to(feed)

    @property
    def is_first(self) -> bool:
        """Return whether no answer is due before this one."""
        return self._transport.is_first

    # --- ``Source``

    def acknowledge(self, answers: bytes) -> None:  # noqa: ARG002 - the answer says where the records are
        """Answer: the records are durable."""
        stored, self.stored = self.stored, None  # it refers to this exchange, and would be left to the collector
        if stored is not None:
            stored()

    def refuse(self, error: BaseException) -> None:
        """Answer that the records could not be stored."""
        self.stored = None
        self.fail(problem_of(error))


def problem_of(error: BaseException) -> Problem:
    """Return the refusal of a request whose records the log refused."""
    if isinstance(error, LogFull):
        return try_later(503, f"not stored: {error}; send it again later", FULL_RETRY_S)
    if isinstance(error, RecordTooLarge):
        return Problem(413, f"not stored: {error}; send less in one message")
    return try_later(
        503, "not stored: the node's log has failed; send it again when the node has started again", FULL_RETRY_S
    )


# Interface of the HTTP side for its connections. ``HttpService`` implements it.


class OpenConnection(Protocol):
    """One connection (``HttpConnection``)."""

    def recheck(self) -> None:
        """Check the client again: users or rules were read again."""

    def shut_down(self) -> None:
        """Close: the node stops."""


class Server(Protocol):
    """The shared part of all connections. Belongs to the event loop's thread."""

    context: ProtocolContext
    settings: HttpSettings
    counters: HttpCounters
    answers: Answers
    heads: RequestHeadCache

    def arrived(self, connection: OpenConnection) -> None:
        """Register a connection."""

    def left(self, connection: OpenConnection) -> None:
        """Forget a connection that has ended."""

    def count(self, status: int) -> None:
        """Count an answer."""

    @property
    def holds(self) -> bool:
        """Return whether too much waits for the disk to accept more."""
        ...

    def busy(self) -> Problem:
        """Return the refusal for requests meanwhile."""
        ...

    def is_open_to_all(self, request: Request) -> bool:
        """Return whether a request needs no authentication."""
        ...

    def handle(self, exchange: HttpExchange) -> Iterator[None] | None:
        """Carry out a request. Return the steps of a long one, for the caller to run.

        Raises:
            Problem: it is refused; the steps raise it, too.
        """
        ...

    def posts_at_once(self, exchange: HttpExchange, body: bytes) -> bool:
        """Store a message by the plan of its known head. Return False, with nothing done, if it needs ``handle``."""
        ...
