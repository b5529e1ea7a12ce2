"""Records of a log for people and for programs. Bytes from devices are never trusted to be harmless on a terminal."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from weft.edge_node.inspect.tail import Item, LogReplaced, Missing, TailGap, TailRecord
from weft.edge_node.inspect.view import DamagedBytes
from weft.protocols.batch import Flag, HeaderPairs, Record
from weft.protocols.columns import header_json, header_text
from weft.storage.segment_log.state.gaps import reason_name

PAYLOAD_SHOWN_MAX = 1000
"""Characters of a payload in a line for people; programs get all of it."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPACES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})
_FLAGS = {
    Flag.RETAINED: "retained",
    Flag.DUPLICATE_SUSPECTED: "resent",
    Flag.PUBLISHED_QOS0: "qos0",
    Flag.PUBLISHED_QOS2: "qos2",
}


def line(item: Item) -> str:
    """Return one line for people."""
    if isinstance(item, TailRecord):
        return record_line(item.record, item.stream, origin=item.origin)
    if isinstance(item, TailGap):
        notice = item.notice
        return (
            f"-- {timestamp(notice.time)} {item.stream} {_span(notice.first, notice.end)} can never come: "
            f"{reason_name(notice.reason)}"
        )
    if isinstance(item, Missing):
        return f"-- {item.stream} {_span(item.first, item.end)}: no longer in the log"
    if isinstance(item, DamagedBytes):
        return f"-- {item.file} is damaged from byte {item.offset} to {item.end}"
    return f"-- {item.directory} holds a new log from here on"


def record_line(record: Record, *stream: str, origin: str | None = None) -> str:
    """Return a record in one line: time, stream where it is given, sequence number, topic, payload, headers, flags,
    origin."""
    parts = [timestamp(record.time), *stream, str(record.seq), shown(record.key.decode("utf-8", "backslashreplace"))]
    parts.append(shown_payload(record.payload))
    if record.headers:
        parts.append(_headers(record.headers))
    if names := flag_names(record.flags):
        parts.append(f"({', '.join(names)})")
    if origin is not None:
        parts.append(f"<{shown(origin)}>")
    return " ".join(parts)


def facts(item: Item) -> dict[str, Any]:
    """Return one JSON object for programs."""
    if isinstance(item, TailRecord):
        made_by = {} if item.origin is None else {"origin": item.origin}
        return {"kind": "record", "stream": item.stream, **record_facts(item.record), **made_by}
    if isinstance(item, TailGap):
        notice = item.notice
        span = {"first": notice.first, "end": notice.end, "reason": reason_name(notice.reason)}
        return {"kind": "gap", "stream": item.stream, "time": timestamp(notice.time), **span}
    if isinstance(item, Missing):
        return {"kind": "missing", "stream": item.stream, "first": item.first, "end": item.end}
    if isinstance(item, DamagedBytes):
        return {"kind": "damage", "file": item.file, "offset": item.offset, "end": item.end}
    assert isinstance(item, LogReplaced)
    return {"kind": "log_replaced", "directory": item.directory}


def record_facts(record: Record) -> dict[str, Any]:
    """Return a record as a JSON object. Bytes that are not UTF-8 have a key that says so."""
    known: dict[str, Any] = {"seq": record.seq, "time": timestamp(record.time), "time_ns": record.time}
    known |= _text_or_base64("key", record.key) | _text_or_base64("payload", record.payload)
    if record.headers:
        known["headers"] = [(name, header_json(value)) for name, value in record.headers]
    if record.flags:
        known["flags"] = flag_names(record.flags)
    return known


def timestamp(ns: int) -> str:
    """Return a time in ISO 8601, UTC, to the nanosecond."""
    second, rest = divmod(ns, 10**9)
    try:
        return f"{(_EPOCH + timedelta(seconds=second)).strftime('%Y-%m-%dT%H:%M:%S')}.{rest:09d}Z"
    except OverflowError:
        return f"{ns} ns"


def shown(text: str) -> str:
    """Return text with invisible characters and terminal controls escaped."""
    if text.isprintable():
        return text
    escaped = text.translate(_SPACES)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped)


def shown_payload(payload: bytes) -> str:
    """Return a payload in a line: text where it is text, else ``hex:`` and its bytes; cut where it is long."""
    head = payload[: 4 * PAYLOAD_SHOWN_MAX]
    try:
        text = payload.decode() if len(payload) == len(head) else head.decode(errors="ignore")
        is_text = text.translate({ord(c): None for c in "\n\r\t"}).isprintable() and (text or not payload)
    except UnicodeDecodeError:
        is_text = False
    cut = shown(text)[:PAYLOAD_SHOWN_MAX] if is_text else "hex:" + head[: PAYLOAD_SHOWN_MAX // 2].hex()
    whole = len(shown(text)) if is_text else 4 + 2 * len(head)
    return f"{cut}... ({len(payload)} bytes)" if len(head) < len(payload) or len(cut) < whole else cut


def flag_names(flags: Flag) -> list[str]:
    """Return the flags of a record in words."""
    return [name for flag, name in _FLAGS.items() if flags & flag]


def _headers(headers: HeaderPairs) -> str:
    text = "{" + ", ".join(f"{shown(name)}: {shown(header_text(value) or '')}" for name, value in headers) + "}"
    return text if len(text) <= PAYLOAD_SHOWN_MAX else text[:PAYLOAD_SHOWN_MAX] + "...}"


def _span(first: int, end: int) -> str:
    return f"seq {first}" if end == first + 1 else f"seq {first} to {end - 1} ({end - first} records)"


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
