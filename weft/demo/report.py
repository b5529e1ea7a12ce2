"""Report of the demo: Spark results over the stream, what was sent beside what is there, and ``weft audit``."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from weft.demo.devices import AMQP_DEVICE, CSV_DEVICES, HTTP_DEVICE
from weft.demo.fabric import STREAM, FabricError
from weft.text.proofs import show_audit

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


class Seen(NamedTuple):
    """A window as the table had it at a moment."""

    start: datetime
    at: datetime
    records: int
    devices: int

    def __str__(self) -> str:
        """Return the figures as text."""
        return f"{self.records:,} records of {self.devices} devices"


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
        columns = ["window_start", "machine", "_complete", "records"]
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


Check = tuple[str, int, str, bool | None]
"""(what, count, note, whether it is as it must be)."""
HOURS_SHOWN = 2
"""Hours per device in the printed table; the job computes all of them."""


def hourly_statistics(frame: Any) -> list[Any]:
    """Return (device, hour, n, lowest, mean, highest temperature) of every device and hour, from one Spark job."""
    from pyspark.sql import functions as f

    payload = f.col("payload").cast("string")
    measured = f.timestamp_seconds(f.get_json_object(payload, "$.ts").cast("double"))
    readings = frame.select(
        "device",
        f.date_trunc("hour", measured).alias("hour"),
        f.get_json_object(payload, "$.n").cast("long").alias("n"),
        f.get_json_object(payload, "$.data.temp").cast("double").alias("temperature"),
    )
    hours = readings.groupBy("device", "hour")
    statistics = hours.agg(
        f.countDistinct("n").alias("n"),
        f.min("temperature").alias("lowest"),
        f.avg("temperature").alias("mean"),
        f.max("temperature").alias("highest"),
    )
    return list(statistics.orderBy("device", "hour").collect())


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


def show_hours(console: Console, hours: MachineHours, records: int) -> bool:
    """Print the pipeline's table, and return whether it is complete, with all records of the hub's log."""
    early, whole, rows = hours.early, hours.whole, hours.rows()
    assert early is not None
    assert whole is not None
    incomplete, counted = sum(not row["_complete"] for row in rows), sum(row["records"] for row in rows)
    checks: list[Check] = [
        ("windows", len({row["window_start"] for row in rows}), f"'hours' of {HOUR_S} s, by arrival", None),
        ("  seen incomplete", len(hours.late), "written before all was there", None),
        (f"  {early.start:%H:%M:%S} incomplete", early.records, f"records of {early.devices} devices", None),
        (
            f"  {whole.start:%H:%M:%S} complete", whole.records, f"records of {whole.devices} devices",
            whole.records > early.records,
        ),
        ("rows: window and device", len(rows), "", None),
        ("  incomplete now", incomplete, "must be 0", incomplete == 0),
        ("records in them", counted, "must equal the hub's log", counted == records),
    ]  # fmt: skip
    return _show_checks(console, "Machine hours", checks)


def show_sent(
    console: Console, acked: Mapping[str, int], again: int, statistics: Sequence[Any], audits: Sequence[AuditReport]
) -> bool:
    """Print the messages that devices got an ack for, beside what the hub has of them. Return whether all is there.

    Args:
        acked: device -> messages, as the device counted.
        again: messages that were sent again without a flag that says so, by AMQP.
        statistics: of ``hourly_statistics``, with the number of different messages.
        audits: of the stream that has all messages, and of the one that has some of the readings.
    """
    there: Counter[str] = Counter()
    for row in statistics:
        there[row.device] += row.n
    checks: list[Check] = []
    for device, count in acked.items():
        if device in CSV_DEVICES:
            checks.append((device, count, "by MQTT, stay at the edge", None))
        else:
            protocol = {AMQP_DEVICE: "AMQP", HTTP_DEVICE: "HTTP"}.get(device, "MQTT")
            checks.append((device, count, f"by {protocol}, {there[device]:,} in the table", there[device] == count))
    messages, points = (report.total("table_records") for report in audits)
    readings, copies = sum(acked[name] for name in CSV_DEVICES), messages - sum(there.values())
    may_be, made = again + audits[0].total("resent"), sum(audits[1].origins().values())
    checks += [
        ("sent again, stored twice", copies, f"{may_be:,} were sent again", 0 <= copies <= may_be),
        ("points of what stays", points, f"{points / max(readings, 1):.1%}, by a function", 0 < points == made),
    ]
    return _show_checks(console, "Acked to devices", checks)


def show_audits(console: Console, audits: Sequence[AuditReport], complete_up_to: Mapping[str, str | None]) -> bool:
    """Print what ``weft audit`` prints of each stream, and up to what moment it is complete. Return whether all agree.

    Args:
        audits: of the streams.
        complete_up_to: stream -> moment, as the hub says; None if it claims nothing.
    """
    for report in audits:
        moment = complete_up_to[report.stream]
        console.print(f"\n[cyan]weft audit {report.stream}[/]")
        show_audit(report)
        until = "to no known moment" if moment is None else f"to {moment[:19]}Z"
        console.print(f"{report.stream} is complete up {until}", soft_wrap=True, highlight=False)
    gaps = any(lane.gaps for report in audits for lane in report.lanes)
    return not gaps and all(
        report.agrees and not report.total("holes") and complete_up_to[report.stream] for report in audits
    )


def _show_checks(console: Console, title: str, checks: Sequence[Check]) -> bool:
    """Print checks in a table, and return whether none is wrong."""
    marks = {None: "", True: "[green]ok[/]", False: "[red]WRONG[/]"}
    table = Table(title=title)
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("")
    table.add_column("")
    for what, count, note, good in checks:
        table.add_row(what, f"{count:,}", escape(note), marks[good])
    console.print(table)
    return all(good is not False for *_, good in checks)
