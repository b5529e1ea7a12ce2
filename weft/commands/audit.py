"""``weft audit``: is the data all there?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from weft.commands.common import json_option, open_hub_store
from weft.output import FAILURE_EXIT_CODE, print_json, print_table

if TYPE_CHECKING:
    from cloud_hub.audit_report import AuditReport


@click.command("audit")
@click.argument("stream")
@click.option("--store", "uri", required=True, metavar="URI", help="The hub's store: a folder, or s3://bucket/prefix.")
@click.option("--tenant", default="default", show_default=True, help="Who the stream belongs to.")
@json_option
def command(stream: str, uri: str, tenant: str, as_json: bool) -> int:
    """Compare lanes, log and table of STREAM, record by record.

    Exit status 1 when they disagree, or when there is no such stream. Reads the whole log of the stream and the columns
    of the table that name records. Nothing is changed, and the hub may go on meanwhile.
    """
    from cloud_hub.audit import audit

    store = open_hub_store(uri)
    report = asyncio.run(audit(store, tenant, stream))
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report.agrees and report.lanes else FAILURE_EXIT_CODE


def _show(report: AuditReport) -> None:
    print_table(
        (
            "edge",
            "log id",
            "in the log",
            "in the table",
            "waiting",
            "doubled",
            "missing",
            "gaps",
            "holes",
            "sent again",
        ),
        [
            (
                lane.edge,
                lane.log_id,
                lane.records,
                lane.table_records,
                lane.waiting,
                lane.log_doubled + lane.table_doubled + sum(lane.named_twice.values()),
                lane.missing,
                ", ".join(f"{count} {reason}" for reason, count in lane.gaps.items()) or 0,
                lane.holes,
                lane.resent,
            )
            for lane in report.lanes
        ],
        title=f"{report.tenant}/{report.stream}",
    )
    for problem in report.problems:
        click.echo(f"PROBLEM: {problem}")
    holes = report.total("holes")
    if holes:
        click.echo(f"{holes} records are still to come over a link, or nobody has explained them yet")
    if not report.lanes:
        click.echo(f"the hub knows no stream {report.tenant}/{report.stream}")
    elif report.agrees:
        click.echo(f"good: every record is in the log once, {report.total('table_records')} of them are table rows")
