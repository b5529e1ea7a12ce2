"""Final report of the demo: a Spark result over the stream, and the audit of every message."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from weft.demo.devices import AMQP_DEVICE, HTTP_DEVICE
from weft.demo.fabric import DEADBAND, RAW_STREAM, STREAM, THINNED_STREAM, FabricError

if TYPE_CHECKING:
    from spark_sinks.completeness.windows import WindowQuery
    from weft.proofs.audit.report import AuditReport


# The demo's pipeline: the shipped *machine hours*, and what a reader of its table sees while one edge is cut off.

PIPELINE = "machine-hours"
HOUR_S = 2
"""Length of a window in seconds. The devices' day is replayed in less than 20 seconds, so two stand for some hours."""
GRACE_S = 2
"""Seconds after which a window is written without what is missing."""
LOOK_S = 0.5
"""Time between two looks at the table."""
COMPLETE_TIMEOUT_S = 120.0
STOP_S_MAX = 3.0
"""Longest wait for the end of a pipeline that is stopped: a person who pressed Ctrl-C waits for it."""
FIGURES = {"mean": "avg", "lowest": "min", "highest": "max", "deviation": "stddev_samp"}
"""Columns of the table with a measured value -> Spark's function that makes it. The median is an approximation, and
may differ from one computation to the next."""
_COUNTS = ("records", "readings")
Key = tuple[datetime, str]
"""(start of the window, device)."""


class Seen(NamedTuple):
    """A window as the table had it at a moment."""

    start: datetime
    at: datetime
    records: int
    devices: int

    def __str__(self) -> str:
        """Return the figures as text."""
        return f"{self.records:,} records of {self.devices} devices"


@dataclass(frozen=True)
class Comparison:
    """The pipeline's table beside a batch job over the whole stream."""

    windows: int
    rows: int
    records: int
    incomplete: int
    """Rows that are not complete."""
    different: int
    """Rows of one of the two that the other has not, or has with other figures."""


class MachineHours:
    """The pipeline, started as ``weft spark run`` does it, and its table as any reader sees it."""

    def __init__(self, directory: Path, store: str, edges: Iterable[str]) -> None:
        """Take the store, and the names of the edges whose word a complete window needs."""
        self.table = str(directory / PIPELINE)
        self.settings = [
            f"source.store={store}",
            f"source.stream={STREAM}",
            "source.schema.fields={machine: {type: string, from: device}, temperature: {type: float, from: data.temp}}",
            f"steps[1].window.every={HOUR_S}s",
            f"complete.edges=[{', '.join(edges)}]",
            f"complete.grace={GRACE_S}s",
            f"sink.delta.path={self.table}",
            "trigger=1s",
            f"checkpoint={self.table}-checkpoint",
        ]
        self.early: Seen | None = None
        """First window after the cut, as it was written without the edge that is cut off."""
        self.whole: Seen | None = None
        """The same window once it was complete."""
        self.late: set[datetime] = set()
        """Windows that were seen incomplete."""
        self._query: WindowQuery | None = None
        self._version = -1
        self._look_at = 0.0

    @property
    def is_started(self) -> bool:
        """Return whether ``start`` was called."""
        return self._query is not None

    def start(self, spark: Any) -> None:
        """Start the pipeline. The hub must have the stream by now."""
        from spark_sinks.completeness.windows import WindowQuery
        from spark_sinks.pipelines.catalog import located
        from spark_sinks.pipelines.job import start

        query = start(located(PIPELINE, self.settings).config, spark)
        assert isinstance(query, WindowQuery)
        self._query = query

    def look(self, cut_at: datetime | None) -> Seen | None:
        """Read the table again if it has changed. Return the moment that was waited for, once, when it has come.

        Args:
            cut_at: time since when an edge is cut off; None before.

        Raises:
            FabricError: the pipeline has ended with an error.
        """
        self._need_running()
        if self._query is None or time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + LOOK_S
        windows = self._changed()
        incomplete = [start for start in windows if not all(row["_complete"] for row in windows[start])]
        self.late.update(incomplete)
        if self.early is None:
            chosen = min((start for start in incomplete if cut_at is not None and start >= cut_at), default=None)
            if chosen is not None:
                self.early = _seen(chosen, windows[chosen])
                return self.early
        elif self.whole is None and self.early.start in windows and self.early.start not in incomplete:
            self.whole = _seen(self.early.start, windows[self.early.start])
            return self.whole
        return None

    def is_done(self, records: int) -> bool:
        """Return whether all windows of a log with this number of records are written and complete."""
        self._need_running()
        progress = {} if self._query is None else self._query.lastProgress
        return bool(progress) and not progress["windowsPending"] and sum(progress["offsets"].values()) == records

    def stop(self) -> None:
        """End the pipeline, and wait for its end as long as ``STOP_S_MAX``."""
        if self._query is not None:
            stopping = threading.Thread(target=self._query.stop, name="demo-stop", daemon=True)
            stopping.start()
            stopping.join(STOP_S_MAX)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table; none before there is one."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.table):
            return []
        table = DeltaTable(self.table)
        self._version = table.version()
        columns = ["window_start", "machine", "_complete", *_COUNTS, *FIGURES]
        return list(table.to_pyarrow_table(columns=columns).to_pylist())

    def _changed(self) -> dict[datetime, list[dict[str, Any]]]:
        """Return the rows of the table by window if it has changed, and none otherwise."""
        before = self._version
        windows: dict[datetime, list[dict[str, Any]]] = {}
        for row in self.rows():
            windows.setdefault(row["window_start"], []).append(row)
        return windows if self._version != before else {}

    def _need_running(self) -> None:
        error = None if self._query is None else self._query.exception()
        if error is not None:
            raise FabricError(f"the pipeline {PIPELINE} failed: {error}") from error


def _seen(start: datetime, rows: list[dict[str, Any]]) -> Seen:
    return Seen(start, datetime.now(UTC), sum(row["records"] for row in rows), len(rows))


def recomputed(frame: Any) -> dict[Key, dict[str, Any]]:
    """Compute the windows once more, by one batch job of Spark's own functions over all rows of the stream."""
    from pyspark.sql import functions as f

    payload = f.col("payload").cast("string")
    value = f.get_json_object(payload, "$.data.temp").cast("double")
    window = f.unix_micros(f.window("_time", f"{HOUR_S} seconds")["start"])
    figures = [getattr(f, function)("value").alias(name) for name, function in FIGURES.items()]
    counts = [f.count("*").alias("records"), f.count("value").alias("readings")]
    found = frame.select(window.alias("start"), "device", value.alias("value")).groupBy("start", "device")
    rows = found.agg(*counts, *figures).collect()
    return {(datetime.fromtimestamp(row.start / 1e6, UTC), row.device): row.asDict() for row in rows}


def compare_rows(table: list[dict[str, Any]], batch: Mapping[Key, Mapping[str, Any]]) -> Comparison:
    """Compare the table with the batch job, row by row."""
    rows = {(row["window_start"], row["machine"]): row for row in table}
    return Comparison(
        windows=len({start for start, _ in rows}),
        rows=len(table),
        records=sum(row["records"] for row in table),
        incomplete=sum(not row["_complete"] for row in table),
        different=len(rows.keys() ^ batch.keys())
        + sum(not _agree(rows[key], batch[key]) for key in rows.keys() & batch.keys()),
    )


def _agree(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether counts are equal, and figures but for the order in which doubles were added."""
    if any(row[name] != other[name] for name in _COUNTS):
        return False
    return all(
        row[name] == other[name]
        or (None not in (row[name], other[name]) and math.isclose(row[name], other[name], rel_tol=1e-9, abs_tol=1e-9))
        for name in FIGURES
    )


# Check of the demo's derived stream: readings that stayed at the edges, against the points in the hub's table.

Series = tuple[str, bytes]
"""(edge node, topic)."""


class Thinned(NamedTuple):
    """Figures of the derived stream over all edges."""

    readings: int
    """Different readings in the logs of the edges."""
    points: int
    """Rows in the hub's table."""
    raw_bytes: int
    """Payload bytes of the readings."""
    bytes: int
    """Payload bytes of the points."""
    furthest: float
    """Greatest difference between a reading and the point before it, by which it was left out."""
    strangers: int
    """Points that are no reading, or not in the readings' order."""
    origins: tuple[str, ...]
    """Texts of what made the points."""


def compare(
    raw: Mapping[Series, Sequence[bytes]], points: Mapping[Series, Sequence[bytes]], origins: Iterable[str]
) -> Thinned:
    """Compare the readings of each series with its points, both in order."""
    furthest, strangers = 0.0, 0
    for series in raw.keys() | points.keys():
        found = _walk(raw.get(series, ()), points.get(series, ()))
        furthest, strangers = max(furthest, found[0]), strangers + found[1]
    return Thinned(
        readings=sum(len({_number(payload) for payload in payloads}) for payloads in raw.values()),
        points=sum(map(len, points.values())),
        raw_bytes=sum(sum(map(len, payloads)) for payloads in raw.values()),
        bytes=sum(sum(map(len, payloads)) for payloads in points.values()),
        furthest=furthest,
        strangers=strangers,
        origins=tuple(sorted(set(origins))),
    )


def _walk(raw: Sequence[bytes], points: Sequence[bytes]) -> tuple[float, int]:
    """Return the greatest difference of a reading to the last point, and the number of points that no reading is."""
    furthest, at, last = 0.0, 0, None
    for payload in raw:
        if at < len(points) and points[at] == payload:
            at, last = at + 1, _temperature(payload)
        elif last is None:
            furthest = float("inf")
        else:
            furthest = max(furthest, abs(_temperature(payload) - last))
    return furthest, len(points) - at


def _temperature(payload: bytes) -> float:
    return float(json.loads(payload)["data"]["temp"])


def _number(payload: bytes) -> int:
    return int(json.loads(payload)["n"])


def readings_of(edge: str, directory: str) -> dict[Series, list[bytes]]:
    """Return the readings in the log of an edge, which may be running, by topic and in order."""
    from weft.edge_node.inspect.tail import Start, TailRecord, newest_records
    from weft.edge_node.inspect.view import Durability, LogDirectory

    found: dict[Series, list[bytes]] = defaultdict(list)
    items = newest_records(LogDirectory(directory), RAW_STREAM.__eq__, Start(), Durability(directory))
    for item in items:
        if isinstance(item, TailRecord):
            found[edge, item.record.key].append(item.record.payload)
    return found


def points_of(store: str) -> tuple[dict[Series, list[bytes]], list[str]]:
    """Return the rows of the hub's table by edge and topic, in order, and what made them."""
    from deltalake import DeltaTable

    columns = ["_edge", "_key", "_seq", "payload", "_origin"]
    table = DeltaTable(f"{store}/tables/default/{THINNED_STREAM}").to_pyarrow_table(columns=columns)
    rows: list[dict[str, Any]] = table.sort_by([("_edge", "ascending"), ("_seq", "ascending")]).to_pylist()
    found: dict[Series, list[bytes]] = defaultdict(list)
    for row in rows:
        payload = row["payload"]  # text in a table of JSON
        found[row["_edge"], row["_key"].encode()].append(payload.encode() if isinstance(payload, str) else payload)
    return found, [row["_origin"] or "a device" for row in rows]


Check = tuple[str, str, str, bool | None]
"""(what, count, note, whether it is as it must be)."""
HOURS_SHOWN = 2
"""Hours per device in the printed table; the job computes all of them."""


class Acked(NamedTuple):
    """Numbers of messages that were acked to devices."""

    messages: int
    """Messages that edges pass on as they are."""
    readings: int
    """Messages that stay at the edges, but for some points."""
    by_device: Mapping[str, int]
    again: int
    """Messages that were sent again without a flag, by AMQP."""


@dataclass(frozen=True)
class MessageCount:
    """The number of rows per message (device, n)."""

    distinct: int
    copies: int
    """Rows beyond the first of the same message, which the device sent again."""
    unflagged_copies: int
    """Copies without a DUP flag that explains them, of devices whose protocol has one or that have keys: must be 0."""
    amqp_copies: int
    """Copies without a flag of the device that speaks AMQP 0-9-1, where publishes have none."""


def _readings(frame: Any) -> Any:
    """Return the rows of the stream with the fields that the demo's devices put into their payloads."""
    from pyspark.sql import functions as f

    payload = f.col("payload").cast("string")
    return frame.select(
        "device",
        "_resent",
        f.get_json_object(payload, "$.n").cast("long").alias("n"),
        f.timestamp_seconds(f.get_json_object(payload, "$.ts").cast("double")).alias("measured"),
        f.get_json_object(payload, "$.data.temp").cast("double").alias("temperature"),
    )


def hourly_statistics(frame: Any) -> list[Any]:
    """Return (device, hour, n, lowest, mean, highest temperature) of every device and hour, from one Spark job."""
    from pyspark.sql import functions as f

    hours = _readings(frame).groupBy("device", f.date_trunc("hour", "measured").alias("hour"))
    statistics = hours.agg(
        f.countDistinct("n").alias("n"),
        f.min("temperature").alias("lowest"),
        f.avg("temperature").alias("mean"),
        f.max("temperature").alias("highest"),
    )
    return list(statistics.orderBy("device", "hour").collect())


def count_messages(frame: Any) -> MessageCount:
    """Count the stream's rows by message, for comparison with the devices' own count."""
    from pyspark.sql import functions as f

    messages = (
        _readings(frame)
        .groupBy("device", "n")
        .agg((f.count("*") - 1).alias("copies"), f.sum(f.col("_resent").cast("long")).alias("resent"))
    )
    unflagged = f.greatest(f.col("copies") - f.col("resent"), f.lit(0))
    is_amqp = f.col("device") == AMQP_DEVICE
    row = messages.agg(
        f.count("*"),
        f.sum("copies"),
        f.sum(f.when(~is_amqp, unflagged).otherwise(0)),
        f.sum(f.when(is_amqp, unflagged).otherwise(0)),
    ).collect()[0]
    return MessageCount(*(count or 0 for count in row))


def show_statistics(console: Console, rows: list[Any]) -> None:
    """Print the first hours of each device."""
    table = Table(
        title="Spark: temperature per device and hour",
        caption=f"{len(rows):,} rows; the first {HOURS_SHOWN} of each device are shown",
    )
    table.add_column("device")
    table.add_column("hour (UTC)")
    for name in ("messages", "lowest", "mean", "highest"):
        table.add_column(name, justify="right")
    shown: dict[str, int] = {}
    for row in rows:
        shown[row.device] = shown.get(row.device, 0) + 1
        if shown[row.device] <= HOURS_SHOWN:
            table.add_row(
                row.device,
                f"{row.hour:%Y-%m-%d %H:%M}",
                str(row.n),
                f"{row.lowest:.1f}",
                f"{row.mean:.1f}",
                f"{row.highest:.1f}",
            )
    console.print(table)


def show_audit(console: Console, acked: Acked, report: AuditReport, messages: MessageCount) -> bool:
    """Print the audit and return whether everything agrees."""
    by_amqp, by_http = acked.by_device[AMQP_DEVICE], acked.by_device[HTTP_DEVICE]
    log, rows = report.total("records"), report.total("table_records")
    doubled = report.total("log_doubled") + report.total("table_doubled")
    gaps = sum(sum(lane.gaps.values()) for lane in report.lanes)
    holes = report.total("holes")
    checks: list[tuple[str, int, str, bool | None]] = [
        ("messages acked to devices", acked.messages, "as the devices counted", None),
        ("  confirmed by AMQP", by_amqp, AMQP_DEVICE, None),
        ("  answered by HTTP", by_http, HTTP_DEVICE, None),
        ("messages in the table", messages.distinct, "must equal the first", messages.distinct == acked.messages),
        ("records in the hub's log", log, "", None),
        ("rows in the table", rows, "must equal the log", rows == log == messages.distinct + messages.copies),
        ("doubled by the fabric", doubled, "same lane and seq: must be 0", doubled == 0),
        ("sent again by devices", report.total("resent"), "an ack was lost: DUP", None),
        ("  sent again by AMQP", acked.again, "it has no flag for that", messages.amqp_copies <= acked.again),
        ("  of them stored before", messages.copies, "rows beyond one a message", None),
        ("  copies without a flag", messages.unflagged_copies, "must be 0", messages.unflagged_copies == 0),
        ("lost, with a gap notice", gaps, "must be 0 here", gaps == 0),
        ("missing, without one", holes, "must be 0", holes == 0),
        ("weft audit", len(report.problems), "problems: must be 0", report.agrees),
    ]
    return _show_checks(
        console, "Audit", [(what, f"{count:,}", note, good) for what, count, note, good in checks], report.problems
    )


def show_hours(console: Console, hours: MachineHours, found: Comparison, records: int) -> bool:
    """Print the pipeline's table beside the batch job, and return whether they agree."""
    early, whole = hours.early, hours.whole
    assert early is not None
    assert whole is not None
    checks: list[Check] = [
        ("windows", f"{found.windows:,}", f"'hours' of {HOUR_S} s, by arrival", None),
        ("  seen incomplete", f"{len(hours.late):,}", "written before all was there", None),
        (f"  {early.start:%H:%M:%S} incomplete", f"{early.records:,}", f"records of {early.devices} devices", None),
        (
            f"  {whole.start:%H:%M:%S} complete", f"{whole.records:,}", f"records of {whole.devices} devices",
            whole.records > early.records,
        ),
        ("rows: window and device", f"{found.rows:,}", "", None),
        ("  incomplete now", f"{found.incomplete:,}", "must be 0", found.incomplete == 0),
        ("  unlike a batch job", f"{found.different:,}", "over all data: must be 0", found.different == 0),
        ("records in them", f"{found.records:,}", "must equal the hub's log", found.records == records),
    ]  # fmt: skip
    return _show_checks(console, "Machine hours", checks, [])


def show_thinned(console: Console, acked: int, thinned: Thinned, report: AuditReport) -> bool:
    """Print what the edges kept back of the readings, and return whether everything agrees."""
    points, table_rows = thinned.points, report.total("table_records")
    share, saved = points / max(thinned.readings, 1), 1 - thinned.bytes / max(thinned.raw_bytes, 1)
    made = sum(report.origins().values())
    checks: list[Check] = [
        ("readings acked to devices", f"{acked:,}", "they stay at the edges", None),
        ("readings at the edges", f"{thinned.readings:,}", "must equal the above", thinned.readings == acked),
        ("points in the hub's table", f"{points:,}", f"{share:.1%} of the readings", 0 < points == table_rows),
        ("payload bytes", f"{thinned.bytes:,}", f"instead of {thinned.raw_bytes:,}", None),
        ("  of them saved", f"{saved:.1%}", "", None),
        ("furthest from a point", f"{thinned.furthest:.2f}", f"at most {DEADBAND:g}", thinned.furthest <= DEADBAND),
        ("points that are not readings", f"{thinned.strangers:,}", "must be 0", thinned.strangers == 0),
        ("made by a function", f"{made:,}", " ".join(thinned.origins), made == points),
        ("weft audit", f"{len(report.problems):,}", "problems: must be 0", report.agrees),
    ]
    return _show_checks(console, "Edge functions", checks, report.problems)


def _show_checks(console: Console, title: str, checks: list[Check], problems: list[str]) -> bool:
    """Print checks in a table, and return whether none is wrong."""
    marks = {None: "", True: "[green]ok[/]", False: "[red]WRONG[/]"}
    table = Table(title=title)
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("")
    table.add_column("")
    for what, count, note, good in checks:
        table.add_row(what, count, escape(note), marks[good])
    console.print(table)
    for problem in problems:
        console.print(f"[red]{escape(problem)}[/]", soft_wrap=True, highlight=False)
    return all(good is not False for *_, good in checks)
