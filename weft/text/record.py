"""Records of a log for people and for programs. Bytes from devices are never trusted to be harmless on a terminal."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from weft.edge_node.derived.offline import Offline, OfflineEvent, RowOutcome
from weft.edge_node.inspect.tail import Item, LogReplaced, Missing, TailGap, TailRecord
from weft.edge_node.inspect.view import DamagedBytes
from weft.functions.contract import Row
from weft.output import counted, harmless
from weft.protocols.batch import Flag, HeaderPairs, Record, header_json, header_text
from weft.storage.segment_log.index import reason_name

if TYPE_CHECKING:
    from weft.proofs.trace import Forward, LineageStep, Looked, Trace, TracedRecord


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
        yield f"-- {timestamp(cause)} has come"
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
        known |= _happening_text("payload", outcome.payload)
    if outcome.row is not None and outcome.kind in ("out", "routed"):
        known |= _row_facts(outcome.row, offline)
    return known


def _row_facts(row: Row, offline: Offline, *, is_input: bool = False) -> dict[str, Any]:
    known: dict[str, Any] = {"time": timestamp(row.time), "time_ns": row.time}
    known |= _happening_text("topic", row.key) | _happening_text("payload", row.payload or b"")
    if (fields := offline.fields(row, is_input=is_input)) is not None:
        known["fields"] = fields
    if row.headers:
        known["headers"] = [(name, header_json(value)) for name, value in row.headers]
    return known


def _happening_text(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _key(row: Row) -> str:
    return shown(row.key.decode("utf-8", "backslashreplace"))


def _payload(row: Row, offline: Offline, *, is_input: bool = False) -> str:
    """Return a payload in a line; of formats that are no text its fields as JSON."""
    fields = offline.fields(row, is_input=is_input)
    return shown_payload(row.payload or b"" if fields is None else msgspec.json.encode(fields))


# Traces for people.

CELL_SHOWN_MAX = 80
"""Characters of a cell of a row in a line for people."""


def print_traces(traces: Sequence[Trace], looked: Looked, *, more: bool) -> None:
    """Print rows, and below each what it was made of.

    Args:
        more: there are rows that were not traced.
    """
    for trace in traces:
        if trace.row:
            click.echo(f"row {_row(trace.row)}")
        for step in trace.made_of:
            for line in _lines(step, "  "):
                click.echo(line)
    if not traces:
        click.echo("no row of the table meets the condition")
    if more:
        click.echo("there are more rows; --rows N traces more of them")
    if looked.files_there or looked.indexes:
        click.echo(
            f"read {looked.files} of {counted(looked.files_there, 'table file')}, and the records of {looked.sections} "
            f"of {counted(looked.indexes, 'chunk')} above the tables"
        )


def print_forward(found: Forward) -> None:
    """Print messages, and what edge functions made of them."""
    for message in found.messages:
        click.echo(_record(message))
    for each in found.made:
        doubt = "" if each.is_certain else ": the message is in its range, of which not all was used"
        click.echo(f"  {each.stream} {_record(each.record)}, made of {each.of}{doubt}")
    if not found.messages:
        click.echo("no such record is in the log or table")
    elif not found.made:
        click.echo("  no record says that it was made of it")
    if found.more:
        click.echo("there are more; --records N shows more of them")


def _row(row: Mapping[str, Any]) -> str:
    cells = (
        f"{shown(name)}={_cut(shown(_cell(value)))}"
        for name, value in row.items()
        if value is not None and name not in {"_from", "payload"}
    )
    return ", ".join(cells)


def _cell(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    return msgspec.json.encode(value, enc_hook=str).decode().strip('"')


def _cut(text: str) -> str:
    return text if len(text) <= CELL_SHOWN_MAX else f"{text[:CELL_SHOWN_MAX]}..."


def _lines(step: LineageStep, indent: str) -> Iterator[str]:
    used = step.used
    span = f"seq {used.first}" if step.numbers == 1 else f"seq {used.first} to {used.last}"
    yield f"{indent}{step.stream}, lane {used.edge}/{used.log}, {span}: {step.trouble or _verdict(step)}"
    if step.open_gap is not None:
        yield f"{indent}  OPEN GAP: {harmless(step.open_gap.sentence)}"
    for record in step.records:
        yield f"{indent}  {_record(record)}"
        for each in record.made_of:
            yield from _lines(each, f"{indent}    ")
        if record.is_unknown:
            yield f"{indent}    unknown source: the record does not say what it was made of"


def _verdict(step: LineageStep) -> str:
    used, found = step.used, counted(len(step.records), "record")
    by = f", narrowed by {', '.join(map(shown, step.narrowed_by))}" if step.narrowed_by else ""
    if step.is_exact:
        return found + by
    if step.more:
        return f"the first {found} of {used.count} used{by}; --records N shows more"
    if len(step.records) > used.count:
        return f"{found}{by}, of which {used.count} were used: the row does not say which"
    return f"{found}{by}; {used.count} were used: the others are not in the log or table"


def _record(record: TracedRecord) -> str:
    payload = base64.b64decode(record.payload_base64) if record.payload_base64 else (record.payload or "").encode()
    parts = [record.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), str(record.seq), shown(record.key), shown_payload(payload)]
    if record.origin is not None:
        parts.append(f"<{shown(record.origin)}>")
    return " ".join(parts)
