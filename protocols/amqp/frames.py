"""Frames of AMQP 0-9-1, its errors with their reply codes, and runs of plain basic.publish: the hot loop of
publishers."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from weft.protocols.batch import HeaderPairs

# Errors of AMQP 0-9-1, each with its reply code (section 1.2 of the specification's reference).

REPLY_TEXT_BYTES_MAX = 255
"""Longest reply text: it is a short string."""


class ReplyCode(IntEnum):
    """Reply codes. Those from 500 on, and three others, end the connection; the rest end a channel."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def ends_connection(self) -> bool:
        """Return whether it is a hard error."""
        return self >= 500 or self in (ReplyCode.CONNECTION_FORCED, ReplyCode.INVALID_PATH)


class AmqpError(Exception):
    """A client's violation of the protocol. The message is for the client and the log.

    Args:
        code: reply code, which decides whether the channel or the connection ends.
        reason: what went wrong, then what to do.
        method: index of the method that failed (class << 16 | method), 0 for none.
    """

    def __init__(self, code: ReplyCode, reason: str, method: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.method = method

    @property
    def text(self) -> str:
        """Return the reply text: the code's name and the message, cut to the length of a short string."""
        whole = f"{self.code.name} - {self}"
        return whole.encode()[:REPLY_TEXT_BYTES_MAX].decode(errors="ignore")


# Frames: type, channel, size, payload, end octet (section 2.3.5 of the specification).

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
HEAD_BYTES: Final = 7
OVERHEAD_BYTES: Final = 8
"""Bytes of a frame beside its payload."""
FRAME_BYTES_MIN: Final = 4096
"""Longest frame that every peer must accept (``frame-min-size``)."""
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
END: Final = b"\xce"
_HEAD = struct.Struct(">BHI")


class Frame(NamedTuple):
    """One frame."""

    kind: int
    channel: int
    payload: bytes


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame's bytes."""
    return _HEAD.pack(kind, channel, len(payload)) + payload + END


def frame_end(data: bytes | bytearray, at: int, frame_bytes_max: int) -> int | None:
    """Return the end of the frame at ``at``, perhaps beyond ``data``; None while its head is incomplete.

    Raises:
        AmqpError: it is longer than allowed.
    """
    if len(data) - at < HEAD_BYTES:
        return None
    size = int.from_bytes(data[at + 3 : at + 7], "big")
    if size > frame_bytes_max - OVERHEAD_BYTES:
        raise AmqpError(
            ReplyCode.FRAME_ERROR, f"a frame of {size + OVERHEAD_BYTES} bytes; {frame_bytes_max} are agreed on"
        )
    return at + OVERHEAD_BYTES + size


def read_frame(data: bytes, at: int, frame_bytes_max: int) -> tuple[Frame, int] | None:
    """Return the frame at ``at`` and its end; None while it is incomplete.

    Raises:
        AmqpError: it is longer than allowed, or lacks the end octet.
    """
    end = frame_end(data, at, frame_bytes_max)
    if end is None or end > len(data):
        return None
    if data[end - 1] != FRAME_END:
        raise AmqpError(ReplyCode.FRAME_ERROR, f"a frame ends with octet {data[end - 1]:#04x}, not with 0xce")
    kind, channel, _ = _HEAD.unpack_from(data, at)
    return Frame(kind, channel, data[at + HEAD_BYTES : end - 1]), end


# Plain basic.publish, gathered by destination: the hot loop of AMQP publishers.
#
# A message is three frames: method, content header, body. Publishers send the same method frame and the same
# properties again and again, so messages are recognised by their bytes, except the body and its size, which is there
# twice. ``scan`` compares them with the form of the previous message, and looks up another form if they differ. A
# message without a known form, and any possible error, is left to the code that reads fields.

_METHOD_BYTES_MIN = 8 + 9
"""A basic.publish with empty names, and its frame."""
_CONTENT_HEADER = b"\x00\x3c\x00\x00"
"""Class and weight of a content header."""
_SIZE_AT = 11
"""Offset of the body's size in the content header's frame, after type, channel and length of the frame, class and
weight."""
_PROPERTIES_AT = _SIZE_AT + 8
_NEXT_BYTES_MIN = _METHOD_BYTES_MIN + _PROPERTIES_AT + 8
"""Minimum bytes from one message to the next: the shortest has an empty body."""
_END = 0xCE
_header_size = struct.Struct(">Q").unpack_from
_frame_size = struct.Struct(">I").unpack_from


class Form:
    """The first bytes of messages with one method frame and the same properties, and the route of these messages.

    Args:
        method: the frame.
        channel: its number, as in frames.
        publisher: the channel, which counts its publishes.
        route: of the records.
        lasts: True if the headers are the same for messages of a later read.
    """

    __slots__ = ("head", "headers", "lasts", "middle", "publisher", "route", "topic")

    def __init__(  # noqa: PLR0917
        self,
        method: bytes,
        channel: bytes,
        properties: bytes,
        topic: bytes,
        headers: HeaderPairs,
        publisher: Any,
        route: Any,
        *,
        lasts: bool = True,
    ) -> None:
        header_bytes = (_PROPERTIES_AT - 7 + len(properties)).to_bytes(4, "big")
        self.head = method + b"\x02" + channel + header_bytes + _CONTENT_HEADER
        """Bytes up to the body's size in the content header."""
        self.middle = properties + b"\xce\x03" + channel
        """Bytes between that and the body's size in the body's frame."""
        self.topic = topic
        self.headers = headers
        self.publisher = publisher
        self.route = route
        self.lasts = lasts


class Forms(Protocol):
    """Forms known to a connection. Forms of messages that need more than storing are not among them."""

    form: Form | None
    """Form of the last message."""

    def find(self, method: bytes, properties: bytes) -> Form | None:
        """Return the form of messages with a method frame and properties."""
        ...


class Publisher(Protocol):
    """A channel in normal operation."""

    def published(self, count: int) -> None:
        """Count gathered messages, and have them confirmed if the channel is in confirm mode."""


class PublishRun(Protocol):
    """Records of one destination, in order of receipt."""

    keys: list[bytes]
    payloads: list[bytes]
    sources: list[Any]
    headers: dict[int, HeaderPairs]


class PublishCollector(Protocol):
    """Collector of the records (``edge_node/ingest/record.py``)."""

    @property
    def groups(self) -> Mapping[Any, PublishRun]:
        """Return the runs by destination; a new destination gets an empty run."""
        ...

    def note(self, route: Any, run: Any, first: int) -> None:
        """Note that the records of a run from ``first`` on are of a route that is ``noted``."""


def scan(  # noqa: PLR0917 - positional, for speed
    data: bytes, at: int, forms: Forms, gathered: PublishCollector, until: int, cost_max: int = sys.maxsize
) -> int:
    """Read a run of plain messages from ``data[at:]``. It ends at a message without a body, which has no third frame.

    Args:
        until: messages that begin after this offset are left.
        cost_max: messages that would make the total cost higher are left, except the first.

    Returns:
        The offset of the first frame not read (perhaps of an incomplete message). Never raises.
    """
    end, starts, groups = len(data), data.startswith, gathered.groups
    form = forms.form
    publisher: Any = None
    count = 0
    while at < end and at <= until:
        if form is None or not starts(form.head, at) or not starts(form.middle, at + len(form.head) + 8):
            found = _look_up(data, at, forms)
            if found is None or not starts(found.head, at) or not starts(found.middle, at + len(found.head) + 8):
                break
            form = found
        head, middle, route = form.head, form.middle, form.route
        head_bytes, before_body = len(head), len(middle) + 12
        run = groups[route.destination]
        payloads = run.payloads
        first = len(payloads)
        if route.cost and (before := at + cost_max // route.cost * _NEXT_BYTES_MIN) <= until:
            until = before - 1
        while True:
            size_at = at + head_bytes
            body_at = size_at + before_body
            (size,) = _header_size(data, size_at)
            body_end = body_at + size
            if body_end >= end or not size or data[body_end] != _END or _frame_size(data, body_at - 4)[0] != size:
                break
            payloads.append(data[body_at:body_end])
            at = body_end + 1
            if at > until or not starts(head, at) or not starts(middle, at + head_bytes + 8):
                break
        taken = len(payloads) - first
        if not taken:
            break
        if form.publisher is not publisher:
            if count:
                publisher.published(count)
            publisher, count = form.publisher, 0
        count += taken
        if taken == 1:
            # In a fleet, each device has only one message in flight.
            run.keys.append(form.topic)
            run.sources.append(publisher)
            if form.headers:
                run.headers[first] = form.headers
        else:
            run.keys += [form.topic] * taken
            run.sources += [publisher] * taken
            if form.headers:
                run.headers.update(dict.fromkeys(range(first, first + taken), form.headers))
        if route.noted:
            gathered.note(route, run, first)
            cost_max -= taken * route.cost
    if count:
        publisher.published(count)
    forms.form = form if form is not None and form.lasts else None
    return at


def _look_up(data: bytes, at: int, forms: Forms) -> Form | None:
    """Return the form found by a message's lengths, if any; the caller must check that the message has that form."""
    if len(data) - at < _METHOD_BYTES_MIN + _PROPERTIES_AT:
        return None
    method_end = at + 8 + _frame_size(data, at + 3)[0]
    if len(data) < method_end + _PROPERTIES_AT:
        return None
    header_end = method_end + 7 + _frame_size(data, method_end + 3)[0]
    return forms.find(data[at:method_end], data[method_end + _PROPERTIES_AT : header_end])
