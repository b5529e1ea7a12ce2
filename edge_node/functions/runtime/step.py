"""One step of a derived stream, ready to write: all of it becomes durable, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from weft.edge_node.functions.chain import Alert, Outputs, Rejected
from weft.edge_node.functions.contract import Row, Source, Values
from weft.edge_node.functions.runtime.state_log import Positions
from weft.edge_node.functions.series.sources import source_of, text_of
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import REASON, SOURCE
from weft.storage.segment_log import SegmentLog
from weft.storage.segment_log.settings import RECORD_BYTES_MAX
from weft.storage.segment_log.state.pending import parts_max
from weft.storage.segment_log.state.run_sizes import BATCH_OVERHEAD_BYTES, run_bytes

ROW_BYTES_MAX = RECORD_BYTES_MAX >> 1
"""Maximum bytes of a row's key and payload; longer ones are rejected."""
REASON_CHARACTERS_MAX = 500
_SHOWN_BYTES = 4096
"""Number of bytes kept of a payload that is too long."""


class StreamRows(NamedTuple):
    """Rows for one stream."""

    stream: int
    keys: list[bytes]
    payloads: list[bytes]
    headers: dict[int, HeaderPairs]
    times: list[int]


class Step(NamedTuple):
    """Contents of a step."""

    runs: list[StreamRows]
    alerts: list[Alert]
    entry: bytes
    """Record of positions and states."""
    positions: Positions
    version: str
    """Version of the functions, and of the files that they read."""
    digest: bytes
    """Checksum of their settings."""

    def room(self) -> int:
        """Return the bytes of all records with headers, as ``SegmentLog.together`` counts them."""
        runs = sum(run_bytes(run.keys, run.payloads, run.headers) for run in self.runs)
        batches = sum(parts_max(run.times) for run in self.runs)
        alerts = sum(len(alert.topic) + len(alert.payload) + BATCH_OVERHEAD_BYTES for alert in self.alerts)
        return runs + 4 * alerts + len(self.entry) + BATCH_OVERHEAD_BYTES * (batches + 2 * len(self.runs) + 2)


def write(  # noqa: PLR0917
    log: SegmentLog, step: Step, state: tuple[int, bytes], origin: int, now: int, alert: Callable[[Alert], None]
) -> int:
    """Append a step as a whole. Return the number of its record of positions and states.

    Args:
        state: number of the stream of states, and the key of the derived stream in it.
        origin: number of the functions' version.
        now: ns since 1970.
        alert: publishes within the same commit.

    Raises:
        LogFull, LogFailed: nothing was appended.
    """
    stream, key = state
    log.ask_room([(run.stream, run.keys, run.payloads, run.headers) for run in step.runs], now)
    with log.together(step.room(), uses_spare=True):
        for run in step.runs:
            log.append(
                run.stream, now, run.keys, run.payloads, run.headers or None, origin=origin, times=run.times
            )  # fmt: skip
        for message in step.alerts:
            alert(message)
        return log.append(stream, now, [key], [step.entry])


def runs_of(
    outputs: Outputs, own: int, errors: int, others: Mapping[str, int], *, after: int, last: dict[int, int]
) -> list[StreamRows]:
    """Return the outputs of a chain by their stream.

    Args:
        own: number of the derived stream.
        errors: number of its stream of errors.
        others: name -> number of the streams that rows are routed to.
        after: time that every row must be later than: marks may have passed it.
        last: number of a stream -> time of the last row written to it; updated by this call. Overlapping windows emit
            rows whose times go back. For a reader of the stream, a row means that all rows before its time have come,
            so such a row gets the time of the one before it.
    """
    rejected = list(outputs.rejected)
    runs = []
    for stream, rows in [(own, outputs.rows), *((others[name], rows) for name, rows in outputs.routed.items())]:
        fits = [row for row in rows if len(row.payload or b"") + len(row.key) <= ROW_BYTES_MAX]
        if len(fits) < len(rows):
            rejected += [
                Rejected(row, f"a row of more than {ROW_BYTES_MAX >> 20} MiB")
                for row in rows
                if len(row.payload or b"") + len(row.key) > ROW_BYTES_MAX
            ]
        runs.append(_run(stream, fits, after, last))
    runs.append(_run(errors, [_error_row(each) for each in rejected], after, last))
    return [run for run in runs if run.keys]


def _run(stream: int, rows: Iterable[Row], after: int, last: dict[int, int]) -> StreamRows:
    run = StreamRows(stream, [], [], {}, [])
    time = max(after + 1, last.get(stream, 0))
    for index, row in enumerate(rows):
        run.keys.append(row.key)
        run.payloads.append(row.payload or b"")
        time = max(time, row.time)
        run.times.append(time)
        headers = _with_source(row.headers, row.source) if row.source else row.headers
        if headers:
            run.headers[index] = headers
    if run.keys:
        last[stream] = time
    return run


def _with_source(headers: HeaderPairs, source: Source) -> HeaderPairs:
    """Return headers with the source of their row, in place of the source of an input record."""
    return (*(pair for pair in headers if pair[0] != SOURCE), (SOURCE, text_of(source)))


def _error_row(rejected: Rejected) -> Row:
    row, reason = rejected.row, rejected.reason
    headers = (*(() if row.is_private else row.headers), (REASON, reason[:REASON_CHARACTERS_MAX]))
    if source := source_of(row):
        headers = _with_source(headers, source)
    payload = row.payload if row.original is None else row.original
    if row.is_private:
        payload = b""
    elif payload is None:
        payload = _as_json(row.values)
    if len(payload) + len(row.key) > ROW_BYTES_MAX:
        payload = payload[:_SHOWN_BYTES]
    return Row(row.time, row.key, payload, {}, headers)


def _as_json(values: Values) -> bytes:
    """Return the values of a row that a function created as JSON. The stream's own format may be unable to hold
    them."""
    try:
        return msgspec.json.encode(values, enc_hook=repr)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(values)[:_SHOWN_BYTES].encode(errors="replace")
