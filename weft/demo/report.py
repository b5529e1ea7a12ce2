"""Final report of the demo: a Spark result over the stream, and the audit of every message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from weft.demo.devices import AMQP_DEVICE, HTTP_DEVICE
from weft.demo.fabric import DEADBAND
from weft.demo.hours import HOUR_S, Comparison, MachineHours
from weft.demo.thinned import Thinned

if TYPE_CHECKING:
    from weft.proofs.audit.report import AuditReport

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
        ("points that are no reading", f"{thinned.strangers:,}", "must be 0", thinned.strangers == 0),
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
