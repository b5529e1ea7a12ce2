"""``POST /v1/streams/STREAM`` and ``POST /v1/topics/TOPIC``."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from weft.edge_node.servers.http import bodies
from weft.edge_node.servers.http.bodies import (
    HEADERS_MAX,
    NO_JSON,
    Placed,
    fill,
    headers_of,
    media_type_of,
    nanoseconds,
    placed,
    sent,
    trace_context,
    with_content_type,
)
from weft.edge_node.servers.http.idempotency import KEY_CHARACTERS_MAX, Once
from weft.edge_node.servers.http.request import HttpExchange, Problem, Request, quoted
from weft.edge_node.servers.http.settings import HttpCounters, HttpSettings
from weft.edge_node.servers.http.storing import (
    CHECKED_SLICE_BYTES,
    CHECKED_SLICE_MESSAGES,
    Answer,
    NewRecord,
    PostTarget,
    Storing,
    check_cost,
)
from weft.protocols.batch import HeaderPairs, HeaderValue
from weft.protocols.message_headers import CONTENT_TYPE, SENT
from weft.protocols.ranges import packed_headers

# CloudEvents 1.0: binary, structured and batched. Attributes become headers ``ce-NAME``, data the payload.

PREFIX = "ce-"
STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
OF_ANY_FORMAT = "application/cloudevents"
"""Prefix of the media types of events whose attributes are in the body."""
_NAME = re.compile(r"[a-z0-9]{1,64}")
_NEEDED = ("id", "source", "specversion", "type")
_EVENT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INT32 = range(-(1 << 31), 1 << 31)


def binary(fields: Sequence[tuple[bytes, bytes]], content_type: str, key: str, payload: bytes) -> NewRecord:
    """Return the event of a request in binary mode.

    Args:
        fields: those of the request's head.

    Raises:
        Problem: it is not an event.
    """
    attributes: dict[str, HeaderValue] = {}
    for name, value in fields:
        if name.startswith(b"ce-"):
            text = value.decode("latin-1").strip()
            if len(text) > 1 and text[0] == text[-1] == '"':
                text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
            attributes[name[3:].decode("latin-1")] = unquote(text)
    if content_type:
        attributes["datacontenttype"] = content_type
    return _record(attributes, payload, key)


def structured(key: str, event: bytes) -> NewRecord:
    """Return an event in JSON.

    Raises:
        Problem: it is not an event.
    """
    try:
        fields = _EVENT.decode(event)
        attributes = {
            name: msgspec.json.decode(value) for name, value in fields.items() if name not in ("data", "data_base64")
        }
    except NO_JSON as error:
        raise Problem(400, f"the event is not a JSON object: {error}; correct it") from None
    for name, value in attributes.items():
        if value is not None and not isinstance(value, str | bool) and not (type(value) is int and value in _INT32):
            raise Problem(400, f"the event's attribute {quoted(name)} is neither text, a boolean nor an integer")
    payload = b""
    if "data_base64" in fields:
        try:
            payload = base64.b64decode(msgspec.json.decode(fields["data_base64"], type=str), validate=True)
        except (*NO_JSON, binascii.Error):
            raise Problem(400, "the event's data_base64 is not valid base64; correct it") from None
        if "data" in fields:
            raise Problem(400, "the event has both data and data_base64; send one of them")
    elif "data" in fields:
        payload = _data(bytes(fields["data"]), str(attributes.get("datacontenttype") or ""))
    return _record({name: value for name, value in attributes.items() if value is not None}, payload, key)


def _data(data: bytes, content_type: str) -> bytes:
    """Return data in the form of a body: text that is not JSON becomes the text itself (JSON format, 3.1.1)."""
    kind = content_type.partition(";")[0].strip().lower()
    if data[:1] == b'"' and kind and not (kind.endswith(("/json", "+json"))):
        try:
            return msgspec.json.decode(data, type=str).encode()
        except NO_JSON as error:
            raise Problem(400, f"the event's data is not text in JSON: {error}; correct it") from None
    return data


def _record(attributes: dict[str, Any], payload: bytes, key: str) -> NewRecord:
    for name in _NEEDED:
        if not attributes.get(name) or not isinstance(attributes[name], str):
            raise Problem(400, f"the event has no attribute {name}; CloudEvents 1.0 needs it as text")
    if attributes["specversion"] != "1.0":
        raise Problem(400, f"the event is of version {quoted(attributes['specversion'])}; send CloudEvents 1.0")
    if len(attributes) > HEADERS_MAX:
        raise Problem(400, f"the event has more than {HEADERS_MAX} attributes; send fewer")
    headers: list[tuple[str, HeaderValue]] = []
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise Problem(400, f"{quoted(name)} cannot name an attribute; use lower-case letters and digits")
        if name == "datacontenttype":
            headers.append((CONTENT_TYPE, value))
        else:
            headers.append((PREFIX + name, value))
    if "time" in attributes:
        headers.append((SENT, nanoseconds(attributes["time"], "s")))
    return NewRecord(fill(key, attributes.get).encode(), payload, tuple(headers))


FINGERPRINT_BYTES = 8
SLICE = 128
"""Number of messages handled before others may have their turn."""
Make = Callable[[bytes], NewRecord]
"""Converter of a message to a record."""
Split = Callable[[bytes, int], list[bytes]]
"""(body, most messages) -> payloads of its messages."""
_JSON = "application/json"
_COUNTING_FIELDS = (b"weft-", b"ce-", b"content-type")
"""Prefixes of the names of fields that affect the stored records."""


class SameKey:
    """Converter of messages that all have the same key and headers."""

    __slots__ = ("_headers", "_key")

    def __init__(self, key: bytes, headers: HeaderPairs) -> None:
        self._key = key
        self._headers = headers

    def __call__(self, payload: bytes) -> NewRecord:
        """Return the record of a message."""
        return NewRecord(self._key, payload, self._headers)


class Plan(NamedTuple):
    """Handling of the messages of requests that have the same head, made from it once."""

    target: PostTarget | None
    answer: Answer
    one: Make
    """Converter of a body that is one message."""
    each: Make
    """Converter of each message of a body that has several. It does not have the type of the body."""
    split: Split | None = None
    """Splitter of bodies with several messages; None if each body is one."""
    may_be_one: bool = False
    """True if only a body that begins with a bracket has several messages."""
    is_json: bool = False
    """True if the messages of a split body are known to be JSON."""

    def splitter(self, body: bytes) -> Split | None:
        """Return the splitter of this body; None for one message."""
        return None if self.may_be_one and body.lstrip()[:1] != b"[" else self.split


def plan_of(request: Request, target: PostTarget | None, key: str, answer: Answer, now_ns: int) -> Plan:
    """Return the handling of requests with the head of this one.

    Args:
        now_ns: now, from which expiries count.

    Raises:
        Problem: the head says what is not possible.
    """
    content_type = request.header(b"content-type")
    kind = media_type_of(content_type)
    if kind.startswith("multipart/"):
        raise Problem(415, "a body in several parts is not supported; send one message, a JSON array or NDJSON")
    has_event_in_body = kind in (STRUCTURED, BATCHED)
    if kind.startswith(OF_ANY_FORMAT) and not has_event_in_body:
        raise Problem(415, f"CloudEvents as {quoted(kind)} are not supported; send them in JSON, or in binary mode")
    if has_event_in_body or b"ce-specversion" in request.headers:
        in_head = partial(binary, request.fields, content_type, key)
        event = _traced(partial(structured, key) if has_event_in_body else in_head, tuple(trace_context(request)))
        return Plan(target, answer, event, event, bodies.elements if kind == BATCHED else None)
    headers = headers_of(request, now_ns)
    time_field, precision = request.header(b"weft-time-field"), request.header(b"weft-time-precision") or "s"
    own, time = placed(key, time_field, precision), None
    if b"weft-time" in request.headers:
        if time_field:
            raise Problem(400, "both Weft-Time and Weft-Time-Field were sent; send one of them")
        time = nanoseconds(request.header(b"weft-time"), precision)
    one = _plain(own, key, sent(with_content_type(headers, content_type), time), is_packed=request.known is not None)
    may_be_array = kind == _JSON and request.header(b"weft-batch") != "no"
    split = bodies.lines if bodies.is_lines(kind) else bodies.elements if may_be_array else None
    each = one if split is None else _plain(own, key, sent(tuple(headers), time), is_packed=True)
    return Plan(target, answer, one, each, split, may_be_array, is_json=True)


class Posts:
    """Handler of posted messages. Belongs to the event loop's thread."""

    def __init__(
        self, storing: Storing, settings: HttpSettings, counters: HttpCounters, wall_clock: Callable[[], int]
    ) -> None:
        self._storing = storing
        self._settings = settings
        self._counters = counters
        self._wall_clock = wall_clock

    def to_stream(self, exchange: HttpExchange, target: PostTarget, rest: bytes | None) -> Iterator[None] | None:
        """Store the messages of a request in a stream. Return the steps of a long one.

        Args:
            rest: key in the path; None without one.

        Raises:
            Problem: nothing was stored.
        """
        key = _key_of(exchange.request, rest) or target.topic.decode()
        return self._store(exchange, target, key, partial(_answer_stream, target))

    def to_topic(self, exchange: HttpExchange, topic: bytes) -> Iterator[None] | None:
        """Publish the messages of a request to a topic. Return the steps of a long one.

        Raises:
            Problem: nothing was stored.
        """
        key = _key_of(exchange.request, topic or None)
        if not key:
            raise Problem(400, "the request names no topic; send it in the path or as Weft-Key")
        return self._store(exchange, None, key, _answer_topic)

    def planned(self, exchange: HttpExchange, plan: Plan) -> Iterator[None] | None:
        """Store the message of a request as that of the one before with the same head.

        Raises:
            Problem: nothing was stored.
        """
        return self._store_body(exchange, plan, exchange.request.payload(), None)

    def at_once(self, exchange: HttpExchange, plan: Plan, body: bytes) -> bool:
        """Store a message likewise. Return False, with nothing done, if it needs ``planned``."""
        if plan.splitter(body) is not None:
            return False
        if not self._storing.store_at_once(exchange, plan.target, plan.one(body), plan.answer):
            return False
        self._counters.http_messages += 1
        return True

    # --- inside

    def _store(
        self, exchange: HttpExchange, target: PostTarget | None, key: str, answer: Answer
    ) -> Iterator[None] | None:
        request = exchange.request
        once = once_of(request)
        if once is not None and self._storing.repeats(exchange, once, answer):
            return None
        is_packed = b"content-encoding" in request.headers
        if is_packed and "{" not in key:  # one key for all messages: without the right to it, nothing is unpacked
            self._storing.route(exchange, target, key.encode())
        plan = plan_of(request, target, key, answer, self._wall_clock())
        if is_packed:
            return self._unpacked(exchange, plan, once)
        if request.known is not None and type(plan.one) is SameKey:
            request.known.plan = plan
        return self._store_body(exchange, plan, request.payload(), once)

    def _unpacked(self, exchange: HttpExchange, plan: Plan, once: Once | None) -> Iterator[None]:
        request = exchange.request
        coding = request.header(b"content-encoding")
        body = yield from bodies.expanded(request.payload(), coding, request.bytes_max)
        yield from self._store_body(exchange, plan, body, once) or ()

    def _store_body(self, exchange: HttpExchange, plan: Plan, body: bytes, once: Once | None) -> Iterator[None] | None:
        split = plan.splitter(body)
        payloads = [body] if split is None else split(body, self._settings.records_max)
        make, target = plan.one if split is None else plan.each, plan.target
        if self._storing.misfits.knows_json and not (split is not None and plan.is_json):
            make = partial(self._looked_at, exchange, target, make)
        self._counters.http_messages += len(payloads)
        is_long = len(payloads) > SLICE
        if self._storing.has_checks:
            make = partial(self._checked, exchange, target, make)
            is_long |= sum(map(len, payloads)) > CHECKED_SLICE_BYTES or len(payloads) > CHECKED_SLICE_MESSAGES
        if is_long:
            return self._in_steps(exchange, plan, payloads, make, once)
        return self._storing.store(exchange, target, [make(payload) for payload in payloads], once, plan.answer)

    def _in_steps(
        self, exchange: HttpExchange, plan: Plan, payloads: list[bytes], make: Make, once: Once | None
    ) -> Iterator[None]:
        records: list[NewRecord] = []
        left, bytes_left = SLICE, CHECKED_SLICE_BYTES
        for payload in payloads:
            record = make(payload).packed()
            records.append(record)
            left -= 1
            if record.misfits is not None:
                bytes_left -= check_cost(len(payload), record.misfits)
            if left <= 0 or bytes_left <= 0:
                left, bytes_left = SLICE, CHECKED_SLICE_BYTES
                yield
        yield
        yield from self._storing.store(exchange, plan.target, records, once, plan.answer) or ()

    def _looked_at(self, exchange: HttpExchange, target: PostTarget | None, make: Make, payload: bytes) -> NewRecord:
        record = make(payload)
        streams = self._storing.route(exchange, None, record.key).streams if target is None else (target.number,)
        self._storing.misfits.look(streams, record.payload)
        return record

    def _checked(self, exchange: HttpExchange, target: PostTarget | None, make: Make, payload: bytes) -> NewRecord:
        return self._storing.checked(exchange, target, make(payload))


def _traced(make: Make, context: HeaderPairs) -> Make:
    """Return the converter of events that also have the trace context of their request."""
    if not context:
        return make

    def traced(payload: bytes) -> NewRecord:
        record = make(payload)
        return record._replace(headers=(*record.headers, *context))

    return traced


def _plain(own: Placed, key: str, pairs: HeaderPairs, *, is_packed: bool) -> Make:
    """Return the converter of messages that are not events.

    Args:
        is_packed: whether headers are packed once for many messages.
    """
    if own.is_plain:
        return SameKey(key.encode(), packed_headers(pairs) if is_packed else pairs)

    def make(payload: bytes) -> NewRecord:
        filled, time = own.key_and_time(payload)
        return NewRecord(filled, payload, sent(pairs, time))

    return make


def _key_of(request: Request, rest: bytes | None) -> str:
    named = request.header(b"weft-key")
    if rest is None:
        return named
    if named:
        raise Problem(400, "the key was sent both in the path and as Weft-Key; send one of them")
    try:
        return rest.decode()
    except UnicodeDecodeError:
        raise Problem(400, "the key in the path is not UTF-8; send it as UTF-8, with percent signs") from None


def once_of(request: Request) -> Once | None:
    """Return the idempotency key of a request; None without one.

    Raises:
        Problem: it is too long, or not text.
    """
    if b"idempotency-key" not in request.headers:
        return None
    key = request.header(b"idempotency-key").strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 0 < len(key) <= KEY_CHARACTERS_MAX or not key.isprintable():
        raise Problem(400, f"Idempotency-Key has 1 to {KEY_CHARACTERS_MAX} characters; send a new UUID for new data")
    digest = hashlib.blake2b(request.target, digest_size=FINGERPRINT_BYTES)
    for name, value in sorted(request.fields):
        if name.startswith(_COUNTING_FIELDS):
            digest.update(b"\0%b:%b" % (name, value))
    digest.update(b"\0" + request.payload())
    return Once(key, digest.digest())


def _answer_stream(target: PostTarget, exchange: HttpExchange, seqs: list[tuple[int, int]], count: int) -> None:
    if not seqs:  # functions before the log have worked on them, or there were none
        exchange.answer(200, b'{"lane":"%b","first_seq":null,"count":%d}' % (target.lane.encode(), count))
        return
    more = b""
    if len(seqs) > 1:
        runs = b",".join(b'{"first_seq":%d,"count":%d}' % each for each in seqs)
        more = b',"runs":[%b]' % runs
    exchange.answer(200, b'{"lane":"%b","first_seq":%d,"count":%d%b}' % (target.lane.encode(), seqs[0][0], count, more))


def _answer_topic(exchange: HttpExchange, _seqs: list[tuple[int, int]], count: int) -> None:
    exchange.answer(200, b'{"count":%d}' % count)
