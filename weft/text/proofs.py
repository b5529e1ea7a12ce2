"""Text of ``weft audit`` and ``weft trace``."""

from __future__ import annotations

import base64
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from weft.output import counted, harmless, print_table
from weft.protocols.shard.completeness import UNREADABLE, never_came
from weft.text.record import shown, shown_payload

if TYPE_CHECKING:
    from weft.proofs.audit.report import AuditReport, DeclaredDeletion, LaneAudit, RegionsReport
    from weft.proofs.trace import Forward, LineageStep, Looked, Trace, TracedRecord

_COUNTS = ("in the log", "in the table", "waiting", "doubled", "missing", "gaps", "holes", "sent again")


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def show_audit(report: AuditReport) -> None:
    """Print the counts of all lanes and what else the audit found: a table on a terminal, else a line a lane."""
    if sys.stdout.isatty():
        _show_lanes(report)
    elif report.lanes:
        print_table(("edge", "log id", *_COUNTS), [_row(lane) for lane in report.lanes])
    say = print_wrapped if sys.stdout.isatty() else click.echo
    for problem in report.problems:
        say(f"PROBLEM: {problem}")
    for gap in report.open_gaps:
        say(f"OPEN GAP: {harmless(gap.sentence)}")
    for name in report.never_heard:
        who = "" if name == UNREADABLE else f"{harmless(name)} is expected (`weft hub stream expect`): "
        say(f"NEVER HEARD: {who}{never_came(name).why}")
    for origin, count in report.origins().items():
        say(f"{counted(count, 'record')} {'was' if count == 1 else 'were'} made by {harmless(origin)}")
    holes = report.total("holes")
    if holes:
        say(f"{holes} records have not arrived over a link, or are not explained yet")
    skipped = report.total("skipped")
    if skipped:
        say(f"{skipped} records are not in the table because an operator skipped them (`weft hub skip`)")
    deleted = report.total("deleted")
    if deleted:
        say(f"{deleted} records are not in the table because their deletion was declared (`weft hub declare-deletion`)")
    if report.only_latest:
        say(
            "The stream has a latest table instead of a table of all rows. It has no row for "
            f"{report.total('replaced')} records: newer ones of their keys replaced or deleted them"
        )
    for each in report.deletions:
        say(_deletion(each))
    if not report.lanes:
        say(f"the hub knows no stream {report.tenant}/{report.stream}. `weft streams` lists those it knows")
    elif report.agrees:
        is_whole = not report.open_gaps and not report.never_heard
        verdict = "good" if is_whole else "log and table agree, and the hub may lack records"
        say(f"{verdict}: every record is in the log once, {report.total('table_records')} of them are table rows")


def _deletion(deletion: DeclaredDeletion) -> str:
    if deletion.received_until is not None:
        until = _moment(deletion.received_until)
        return f"RETENTION: {counted(deletion.count, 'record')} received up to {until} were removed: {deletion.reason}"
    at = _moment(deletion.time)
    act = "ERASED" if deletion.is_erased else "DELETED"
    rows = f"{counted(deletion.count, 'record')} ({harmless(deletion.rows)})"
    return f"{act}: {rows} on {at} by {harmless(deletion.by)}: {harmless(deletion.reason)}"


def _show_lanes(report: AuditReport) -> None:
    rows = [
        Counted(f"edge {lane.edge}, log {lane.log_id}", _counts(lane), f"gaps: {_gaps(lane)}" if lane.gaps else "")
        for lane in report.lanes
    ]
    if len(rows) > 1:
        sums = tuple(map(sum, zip(*(row.counts for row in rows), strict=True)))
        rows.append(Counted(f"all {len(rows)} lanes together", sums))
    click.echo()
    print_wrapped(f"{report.tenant}/{report.stream}")
    click.echo()
    if rows:
        print_counted(_COUNTS, rows)
    click.echo()


def _counts(lane: LaneAudit) -> tuple[int, ...]:
    return (
        lane.records,
        lane.table_records,
        lane.waiting,
        lane.log_doubled + lane.table_doubled + sum(lane.named_twice.values()),
        lane.missing,
        sum(lane.gaps.values()),
        lane.holes,
        lane.resent,
    )


def _row(lane: LaneAudit) -> tuple[object, ...]:
    """Return one line for programs, with the reasons of the gaps in their column."""
    counts: list[object] = list(_counts(lane))
    counts[_COUNTS.index("gaps")] = _gaps(lane) or 0
    return lane.edge, lane.log_id, *counts


def _gaps(lane: LaneAudit) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in lane.gaps.items())


def show_regions(report: RegionsReport) -> None:
    """Print the records that only one of two regions has, by lane."""
    rows = [
        (lane.edge, lane.log_id, lane.both, lane.only_first, lane.only_second, *map(_until, lane.complete_up_to))
        for lane in report.lanes
    ]
    titles = ("edge", "log id", "in both", "only in 1", "only in 2", "1 complete up to", "2 complete up to")
    print_table(titles, rows)
    for lane in report.lanes:
        for number, ranges in enumerate(lane.ranges, 1):
            if ranges:
                text = ", ".join(f"{first} to {end - 1}" for first, end in ranges)
                click.echo(f"ONLY IN {number}: {harmless(lane.edge)}/{lane.log_id}: {text}")
        for number, count in enumerate(lane.given_up, 1):
            if count:
                click.echo(
                    f"GIVEN UP IN {number}: {harmless(lane.edge)}/{lane.log_id}: {counted(count, 'record')} that the "
                    "other region has. An operator's act removed them: an erasure, retention, or one for the lane"
                )
    if not report.lanes:
        click.echo(f"neither hub knows a stream {report.tenant}/{report.stream}")
    elif report.agree:
        click.echo("numbers were compared, not columns: `_time` of a record with a corrected clock may differ")
        click.echo(f"good: both regions have the same {sum(lane.both for lane in report.lanes)} records")


def _until(claim: int | None) -> str:
    return "unknown" if claim is None else _moment(claim)


# Many counts of things with long names, on a terminal of 80 columns: a line with the name, and one with the counts.

_GAP = 2
"""Spaces between two columns."""


class Counted(NamedTuple):
    """A thing with its counts."""

    name: str
    counts: tuple[int, ...]
    note: str = ""
    """Text below the counts."""


def print_counted(columns: Sequence[str], rows: Sequence[Counted]) -> None:
    """Print every count of every row in full, however narrow the terminal is.

    Columns side by side where they fit, else one below the other. Nothing is cut off or broken within a number.
    """
    room = shutil.get_terminal_size().columns
    widths = [
        max(len(column), *(len(f"{row.counts[at]}") for row in rows)) if rows else len(column)
        for at, column in enumerate(columns)
    ]
    fits = sum(widths) + _GAP * len(widths) <= room
    if fits:
        click.echo(_line(columns, widths))
    for row in rows:
        print_wrapped(row.name)
        if fits:
            click.echo(_line(list(map(str, row.counts)), widths))
        else:
            width = max(map(len, columns))
            for column, count in zip(columns, row.counts, strict=True):
                click.echo(f"  {column:<{width}}  {count}")
        if row.note:
            print_wrapped(row.note, indent="  ")


def print_wrapped(text: str, indent: str = "") -> None:
    """Print a sentence in lines that fit the terminal; names longer than a line are broken."""
    room = shutil.get_terminal_size().columns
    for line in textwrap.wrap(
        text, room, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    ):
        click.echo(line)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(" " * _GAP + f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


# ``weft trace``.

CELL_SHOWN_MAX = 80
"""Characters of a cell of a row in a line for people."""


def print_traces(traces: Sequence[Trace], looked: Looked, *, more: bool) -> None:
    """Print rows, and below each what it was made of.

    Args:
        more: there are rows that were not traced.
    """
    for trace in traces:
        if trace.row:
            click.echo(f"row {_table_row(trace.row)}")
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


def _table_row(row: Mapping[str, Any]) -> str:
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
            yield f"{indent}    unknown source: the record does not name its inputs"


def _verdict(step: LineageStep) -> str:
    used, found = step.used, counted(len(step.records), "record")
    by = f", narrowed by {', '.join(map(shown, step.narrowed_by))}" if step.narrowed_by else ""
    if step.is_exact:
        return found + by
    if step.more:
        return f"the first {found} of {used.count} used{by}; --records N shows more"
    if len(step.records) > used.count:
        return f"{found}{by}, of which {used.count} were used: the row does not record which"
    return f"{found}{by}; {used.count} were used: the others are not in the log or table"


def _record(record: TracedRecord) -> str:
    payload = base64.b64decode(record.payload_base64) if record.payload_base64 else (record.payload or "").encode()
    parts = [record.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), str(record.seq), shown(record.key), shown_payload(payload)]
    if record.origin is not None:
        parts.append(f"<{shown(record.origin)}>")
    return " ".join(parts)
