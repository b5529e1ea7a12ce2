"""Records as the API shows them, from batches of the log and from rows of a table."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from weft.cloud_hub.api.views import View, moment
from weft.protocols import batch as batches
from weft.protocols.batch import Flag
from weft.protocols.chunk import LaneUpdate, StreamSection
from weft.protocols.columns import header_json
from weft.protocols.lane import format_log_id
from weft.protocols.payloads import PayloadKind, keeps
from weft.storage.table.record_time import CLOCKS, BatchTimes

HEADER_BYTES = 16
"""Bytes of a header pair in an answer, beside name and value."""


class Taken(NamedTuple):
    """Facts that the records of a batch have in common."""

    received: int
    """Nanoseconds since 1970."""
    times: BatchTimes
    origin: str | None


def record_views(
    records: Iterator[batches.Record], lane: LaneUpdate, section: StreamSection, taken: Taken, payload: PayloadKind
) -> Iterator[View]:
    """Yield the records of a batch, without their offsets. ``_bytes`` are those of payload and headers."""
    for record in records:
        time, clock, stamp = taken.times.of(record.time, record.seq, taken.received)
        view: View = {
            "offset": 0,
            "edge": lane.edge,
            "log": format_log_id(lane.log_id),
            "stream": section.stream,
            "seq": record.seq,
            "time": moment(time),
            "clock": CLOCKS[clock],
            "received": moment(taken.received),
            "key": record.key.decode("utf-8", "replace"),
            "resent": bool(record.flags & Flag.DUPLICATE_SUSPECTED),
            "_bytes": len(record.payload)
            + sum(HEADER_BYTES + len(name) + _length(each) for name, each in record.headers),
        }
        if stamp is not None:
            view["edge_time"] = moment(stamp)
        if taken.origin is not None:
            view["origin"] = taken.origin
        # In a stream of JSON, this decides as the table does between `payload` and `_payload_bytes`.
        _add_payload(view, record.payload, keeps(max(payload, PayloadKind.TEXT), record.payload))
        if record.headers:
            view["headers"] = [[name, header_json(value)] for name, value in record.headers]
        yield view


def row_view(row: Mapping[str, Any], stream: str, payload: PayloadKind) -> View:
    """Return a row of a table as ``record_views`` shows the record; times are whole microseconds, and headers text.

    Args:
        row: its columns, with times in microseconds since 1970.
        payload: the payload kind of the table.
    """
    data, headers = row["payload"], row.get("_headers") or []
    is_text = data is not None
    if payload is PayloadKind.BYTES:
        is_text = keeps(PayloadKind.TEXT, data)
    else:
        data = data.encode() if is_text else row.get("_payload_bytes") or b""
    view: View = {
        "offset": row["_offset"],
        "edge": row["_edge"],
        "log": row["_log"],
        "stream": stream,
        "seq": row["_seq"],
        "time": moment(row["_time"] * 1000),
        "clock": row["_clock"],
        "received": moment(row["_received"] * 1000),
        "key": row["_key"],
        "resent": row["_resent"],
        "_bytes": len(data) + sum(HEADER_BYTES + len(name) + _length(each or "") for name, each in headers),
    }
    if row.get("_edge_time") is not None:
        view["edge_time"] = moment(row["_edge_time"] * 1000)
    if row.get("_origin") is not None:
        view["origin"] = row["_origin"]
    _add_payload(view, data, is_text)
    if headers:
        view["headers"] = [[name, value] for name, value in headers]
    return view


def _add_payload(view: View, payload: bytes, is_text: bool) -> None:
    if is_text:
        view["payload"] = payload.decode()
    else:
        view["payload_base64"] = base64.b64encode(payload).decode()


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 8
