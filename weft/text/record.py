"""Records of a log for people and for programs. Bytes from devices are never trusted to be harmless on a terminal."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from weft.edge_node.derived.offline import Offline, OfflineEvent, RowOutcome
from weft.edge_node.inspect.tail import Item, LogReplaced, Missing, TailGap, TailRecord
from weft.edge_node.inspect.view import DamagedBytes
from weft.functions.contract import Row
from weft.protocols.batch import Flag, HeaderPairs, Record, header_json, header_text
from weft.storage.segment_log.index import reason_name

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


# Text of ``weft log dump``: a line for each entry of a log, and for each record.

_TIMES = frozenset({"created", "first_time", "last_time"})


def entry_line(facts: dict[str, Any]) -> str:
    """Return a line for an entry: place and kind, then names and values."""
    facts = dict(facts)
    place = f"{facts.pop('position'):>12} " if "position" in facts else ""
    kind = facts.pop("kind", "")
    return f"{place}{kind:<7} " + " ".join(f"{name}={_shown(name, value)}" for name, value in facts.items())


def record_line_below(record: Record) -> str:
    """Return a line for a record, under its batch."""
    return f"{'':>20} {record_line(record)}"


def _shown(name: str, value: Any) -> str:
    if name in _TIMES:
        return timestamp(value)
    return shown(value if isinstance(value, str) and " " not in value else msgspec.json.encode(value).decode())


# Happenings of a derived stream that is tried out, for people and for programs.

_INDENT = "    "


def lines(event: OfflineEvent, offline: Offline, file: str) -> Iterator[str]:
    """Yield lines for people: the record with its place in the file, then what became of it, indented."""
    cause = event.cause
    if isinstance(cause, int):
        yield f"-- {timestamp(cause)} has arrived"
    elif isinstance(cause.event, Row):
        row = cause.event
        yield f"{file}:{cause.line} {timestamp(row.time)} {_key(row)} {_payload(row, offline, is_input=True)}"
    else:
        gap = cause.event
        yield f"{file}:{cause.line} {gap.input} misses {gap.end - gap.first} records ({shown(gap.reason)})"
    for outcome in event.outcomes:
        yield _INDENT + _told(outcome, offline)


def event_facts(event: OfflineEvent, offline: Offline) -> dict[str, Any]:
    """Return one JSON object for programs."""
    cause = event.cause
    outcomes = [_outcome_facts(outcome, offline) for outcome in event.outcomes]
    if isinstance(cause, int):
        return {"kind": "time", "time": timestamp(cause), "time_ns": cause, "outcomes": outcomes}
    if isinstance(cause.event, Row):
        known = {"kind": "record", "line": cause.line, "stream": cause.event.input}
        return {**known, **_row_facts(cause.event, offline, is_input=True), "outcomes": outcomes}
    gap = cause.event
    known = {"kind": "gap", "line": cause.line, "stream": gap.input, "first": gap.first, "end": gap.end}
    return {**known, "reason": gap.reason, "outcomes": outcomes}


def counted_outcomes(event: OfflineEvent) -> Iterator[str]:
    """Yield a word for the record, if it is one, and for each thing that became of it."""
    if not isinstance(event.cause, int) and isinstance(event.cause.event, Row):
        yield "records"
    for outcome in event.outcomes:
        if outcome.kind != "log":
            yield outcome.kind


def _told(outcome: RowOutcome, offline: Offline) -> str:
    row, reason = outcome.row, f": {shown(outcome.reason)}" if outcome.reason else ""
    if outcome.kind == "alert":
        return f"alert by {outcome.function} to {shown(outcome.to)}: {shown_payload(outcome.payload)}"
    if outcome.kind in ("dropped", "error", "kept", "log") or row is None:
        return f"{outcome.kind} by {outcome.function}{reason}"
    headers = "".join(f" {shown(name)}={shown(header_text(value) or '')}" for name, value in row.headers)
    to = f"routed by {outcome.function} to {outcome.to}" if outcome.kind == "routed" else "out"
    return f"{to} {timestamp(row.time)} {_key(row)} {_payload(row, offline)}{headers}"


def _outcome_facts(outcome: RowOutcome, offline: Offline) -> dict[str, Any]:
    known: dict[str, Any] = {"outcome": outcome.kind}
    known |= {name: value for name in ("function", "reason", "to") if (value := getattr(outcome, name))}
    if outcome.kind == "alert":
        known |= _text_or_base64("payload", outcome.payload)
    if outcome.row is not None and outcome.kind in ("out", "routed"):
        known |= _row_facts(outcome.row, offline)
    return known


def _row_facts(row: Row, offline: Offline, *, is_input: bool = False) -> dict[str, Any]:
    known: dict[str, Any] = {"time": timestamp(row.time), "time_ns": row.time}
    known |= _text_or_base64("topic", row.key) | _text_or_base64("payload", row.payload or b"")
    if (fields := offline.fields(row, is_input=is_input)) is not None:
        known["fields"] = fields
    if row.headers:
        known["headers"] = [(name, header_json(value)) for name, value in row.headers]
    return known


def _key(row: Row) -> str:
    return shown(row.key.decode("utf-8", "backslashreplace"))


def _payload(row: Row, offline: Offline, *, is_input: bool = False) -> str:
    """Return a payload in a line; of formats that are no text its fields as JSON."""
    fields = offline.fields(row, is_input=is_input)
    return shown_payload(row.payload or b"" if fields is None else msgspec.json.encode(fields))
