"""``POST /v1/streams/STREAM`` and ``POST /v1/topics/TOPIC``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

from weft.edge_node.counters import HttpCounters
from weft.edge_node.http.exchange import Exchange
from weft.edge_node.http.idempotency import KEY_CHARACTERS_MAX
from weft.edge_node.http.problem import Problem
from weft.edge_node.http.request import Request
from weft.edge_node.http.settings import HttpSettings
from weft.edge_node.http.writes import bodies, cloud_events
from weft.edge_node.http.writes.fields import (
    Placed,
    headers_of,
    media_type_of,
    nanoseconds,
    sent,
    with_content_type,
)
from weft.edge_node.http.writes.storing import NewRecord, Once, Storing, Target
from weft.protocols.batch import HeaderPairs

FINGERPRINT_BYTES = 8
_JSON = "application/json"
_KEY_FIELDS = (b"weft-key", b"weft-time", b"weft-time-field", b"weft-time-precision", b"weft-batch", b"content-type")


class Posts:
    """Takes messages. Belongs to the event loop's thread."""

    def __init__(
        self, storing: Storing, settings: HttpSettings, counters: HttpCounters, wall_clock: Callable[[], int]
    ) -> None:
        self._storing = storing
        self._settings = settings
        self._counters = counters
        self._wall_clock = wall_clock

    def to_stream(self, exchange: Exchange, target: Target, rest: bytes | None) -> None:
        """Store the messages of a request in a stream.

        Args:
            rest: key in the path; None without one.

        Raises:
            Problem: nothing was stored.
        """
        request = exchange.request
        key = _key_of(request, rest) or target.topic.decode()
        records = self._records(request, key)
        self._storing.store(exchange, target, records, once_of(request), partial(_answer_stream, target))

    def to_topic(self, exchange: Exchange, topic: bytes) -> None:
        """Publish the messages of a request to a topic.

        Raises:
            Problem: nothing was stored.
        """
        request = exchange.request
        key = _key_of(request, topic or None)
        if not key:
            raise Problem(400, "the request names no topic; send it in the path or as Weft-Key")
        records = self._records(request, key)
        self._storing.store(exchange, None, records, once_of(request), _answer_topic)

    # --- inside

    def _records(self, request: Request, key: str) -> list[NewRecord]:
        content_type = request.header(b"content-type")
        kind = media_type_of(content_type)
        settings = self._settings
        body = bodies.expanded(request.payload(), request.header(b"content-encoding"), settings.body_bytes_max)
        if kind.startswith("multipart/"):
            raise Problem(415, "a body in several parts is not taken; send one message, a JSON array or NDJSON")
        if kind == cloud_events.STRUCTURED:
            found = [cloud_events.structured(body, key)]
        elif kind == cloud_events.BATCHED:
            found = [cloud_events.structured(event, key) for event in bodies.elements(body, settings.records_max)]
        elif cloud_events.is_binary(request):
            found = [cloud_events.binary(request, body, content_type, key)]
        else:
            return self._plain(request, key, body, content_type)
        self._counters.http_messages += len(found)
        return found

    def _plain(self, request: Request, key: str, body: bytes, content_type: str) -> list[NewRecord]:
        kind, records_max = media_type_of(content_type), self._settings.records_max
        now = self._wall_clock()
        payloads, headers = None, headers_of(request, now)
        if bodies.is_lines(kind):
            payloads = bodies.lines(body, records_max)
        elif kind == _JSON and body.lstrip()[:1] == b"[" and request.header(b"weft-batch") != "no":
            payloads = bodies.elements(body, records_max)
        pairs: HeaderPairs = with_content_type(headers, content_type) if payloads is None else tuple(headers)
        time_field, precision = request.header(b"weft-time-field"), request.header(b"weft-time-precision") or "s"
        placed = Placed(key, time_field, precision)
        if b"weft-time" in request.headers:
            if time_field:
                raise Problem(400, "both Weft-Time and Weft-Time-Field came; send one of them")
            pairs = sent(pairs, nanoseconds(request.header(b"weft-time"), precision))
        if payloads is None:
            payloads = [body]
        self._counters.http_messages += len(payloads)
        if placed.is_plain:
            encoded = key.encode()
            return [NewRecord(encoded, payload, pairs) for payload in payloads]
        found = []
        for payload in payloads:
            own, time = placed.key_and_time(payload)
            found.append(NewRecord(own, payload, sent(pairs, time)))
        return found


def _key_of(request: Request, rest: bytes | None) -> str:
    named = request.header(b"weft-key")
    if rest is None:
        return named
    if named:
        raise Problem(400, "a key came both in the path and as Weft-Key; send one of them")
    try:
        return rest.decode()
    except UnicodeDecodeError:
        raise Problem(400, "the key in the path is not UTF-8; send it as UTF-8, with percent signs") from None


def once_of(request: Request) -> Once | None:
    """Return the idempotency key of a request; None without one.

    Raises:
        Problem: it is too long, or no text.
    """
    if b"idempotency-key" not in request.headers:
        return None
    key = request.header(b"idempotency-key").strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 0 < len(key) <= KEY_CHARACTERS_MAX or not key.isprintable():
        raise Problem(400, f"Idempotency-Key has 1 to {KEY_CHARACTERS_MAX} characters; send a new UUID for new data")
    digest = hashlib.blake2b(request.target, digest_size=FINGERPRINT_BYTES)
    for name in _KEY_FIELDS:
        digest.update(b"\0" + request.headers.get(name, b""))
    digest.update(b"\0" + request.payload())
    return Once(key, digest.digest())


def _answer_stream(target: Target, exchange: Exchange, seqs: list[tuple[int, int]], count: int) -> None:
    if not seqs:  # functions before the log have worked on them, or there were none
        exchange.answer(200, b'{"lane":"%b","first_seq":null,"count":%d}' % (target.lane.encode(), count))
        return
    more = b""
    if len(seqs) > 1:
        runs = b",".join(b'{"first_seq":%d,"count":%d}' % each for each in seqs)
        more = b',"runs":[%b]' % runs
    exchange.answer(200, b'{"lane":"%b","first_seq":%d,"count":%d%b}' % (target.lane.encode(), seqs[0][0], count, more))


def _answer_topic(exchange: Exchange, _seqs: list[tuple[int, int]], count: int) -> None:
    exchange.answer(200, b'{"count":%d}' % count)
