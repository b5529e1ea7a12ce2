"""Happenings of a derived stream that is tried out, for people and for programs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from weft.edge_node.functions.contract import Row
from weft.edge_node.functions.offline import Happening, Offline, RowOutcome
from weft.protocols.columns import header_json, header_text
from weft.text.record import shown, shown_payload, timestamp

_INDENT = "    "


def lines(happening: Happening, offline: Offline, file: str) -> Iterator[str]:
    """Yield lines for people: the record with its place in the file, then what became of it, indented."""
    cause = happening.cause
    if isinstance(cause, int):
        yield f"-- {timestamp(cause)} has come"
    elif isinstance(cause.event, Row):
        row = cause.event
        yield f"{file}:{cause.line} {timestamp(row.time)} {_key(row)} {_payload(row, offline, is_input=True)}"
    else:
        gap = cause.event
        yield f"{file}:{cause.line} {gap.input} misses {gap.end - gap.first} records ({shown(gap.reason)})"
    for outcome in happening.outcomes:
        yield _INDENT + _told(outcome, offline)


def facts(happening: Happening, offline: Offline) -> dict[str, Any]:
    """Return one JSON object for programs."""
    cause = happening.cause
    outcomes = [_outcome_facts(outcome, offline) for outcome in happening.outcomes]
    if isinstance(cause, int):
        return {"kind": "time", "time": timestamp(cause), "time_ns": cause, "outcomes": outcomes}
    if isinstance(cause.event, Row):
        known = {"kind": "record", "line": cause.line, "stream": cause.event.input}
        return {**known, **_row_facts(cause.event, offline, is_input=True), "outcomes": outcomes}
    gap = cause.event
    known = {"kind": "gap", "line": cause.line, "stream": gap.input, "first": gap.first, "end": gap.end}
    return {**known, "reason": gap.reason, "outcomes": outcomes}


def counted_outcomes(happening: Happening) -> Iterator[str]:
    """Yield a word for the record, if it is one, and for each thing that became of it."""
    if not isinstance(happening.cause, int) and isinstance(happening.cause.event, Row):
        yield "records"
    for outcome in happening.outcomes:
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


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
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
