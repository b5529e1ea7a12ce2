"""``weft audit`` and ``weft trace``: lanes, log and table of a stream compared, and a row traced back to its
devices."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.commands.common import existing_store, json_option, open_hub_store, store_trouble, tenant_option
from weft.commands.spark import spark_log_option, spark_session
from weft.config.units import parse_duration
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, print_json
from weft.proofs.audit.report import compare_regions
from weft.protocols.errors import CodecError
from weft.storage.cluster import ClusterUnusable, open_cluster
from weft.storage.object_store import StoreError
from weft.storage.table.actions import TableError
from weft.text.proofs import print_forward, print_traces, show_audit, show_regions

if TYPE_CHECKING:
    from weft.proofs.audit.report import AuditReport
    from weft.proofs.trace import Forward, Looked, Trace


# ``weft audit``: compare lanes, log and table of a stream.


@click.command("audit")
@click.argument("stream")
@click.option("--store", "uri", metavar="URI", help="The hub's store: a folder, or a bucket's URI.")
@click.option(
    "--regions",
    "regions",
    nargs=2,
    metavar="URI URI",
    help="Compare the logs of the hubs of two regions instead, by their stores.",
)
@tenant_option("Tenant of the stream.")
@click.option("--payloads", is_flag=True, help="Compare the payloads, too, by checksum. Reads the whole table.")
@click.option(
    "--master",
    metavar="URL",
    help="Count on the executors of this Spark master, such as local[*] or spark://host:7077. Unset: in this process.",
)
@spark_log_option
@json_option
def audit_command(  # noqa: PLR0917
    stream: str,
    uri: str | None,
    regions: tuple[str, str] | None,
    tenant: str,
    payloads: bool,
    master: str | None,
    spark_log: str | None,
    as_json: bool,
) -> int:
    """Compare lanes, log and table of STREAM, record by record.

    Exit status 1 if they disagree or if there is no such stream. The command reads the whole log of the stream, and the
    columns of the table that name records and their times. It changes nothing, and the hub may run meanwhile. With
    --master, Spark's executors read the store; the report is the same.

    With --regions, each record that only one of two hubs has is counted, by their lanes. Exit status 1 if there is one.
    Numbers that an operator's act removed from one of them do not count. Neither log nor table is read, so audit
    each region beside it, and a record's `_time` is not compared.
    """
    if (uri is None) == (regions is None):
        raise Refused("give --store URI, or --regions URI URI")
    if regions is not None:
        return _compare(regions, tenant, stream, as_json=as_json)
    assert uri is not None
    existing_store(uri)
    report = (
        _in_this_process(uri, tenant, stream, payloads)
        if master is None
        else _on_spark(master, spark_log, uri, tenant, stream, payloads)
    )
    if as_json:
        print_json(report)
    else:
        show_audit(report)
    return 0 if report.agrees and report.lanes else FAILURE_EXIT_CODE


def _in_this_process(uri: str, tenant: str, stream: str, payloads: bool) -> AuditReport:
    from weft.proofs.audit.audit import audit

    try:
        return asyncio.run(audit(open_hub_store(uri), tenant, stream, payloads=payloads))
    except (ClusterUnusable, TableError) as error:
        raise Failed(f"--store {uri}: {error}") from None
    except StoreError as error:
        raise Failed(f"--store {uri}: {store_trouble(uri, error)}") from None


def _compare(uris: tuple[str, str], tenant: str, stream: str, *, as_json: bool) -> int:
    first, second = map(open_hub_store, uris)
    try:
        report = asyncio.run(compare_regions((first, second), tenant, stream))
    except ClusterUnusable as error:
        raise Failed(f"--regions: {error}") from None
    except StoreError as error:
        raise Failed(f"--regions: {store_trouble(' '.join(uris), error)}") from None
    if as_json:
        print_json(report)
    else:
        show_regions(report)
    return 0 if report.agree and report.lanes else FAILURE_EXIT_CODE


def _on_spark(  # noqa: PLR0917
    master: str, spark_log: str | None, uri: str, tenant: str, stream: str, payloads: bool
) -> AuditReport:
    from spark_sinks.audit import audit, check
    from spark_sinks.errors import ReadError

    try:
        # A session takes seconds to start, on a cluster minutes: find mistakes before that.
        check(stream, store=uri, tenant=tenant)
        with spark_session(master, (), spark_log) as spark:
            return audit(spark, stream, store=uri, tenant=tenant, payloads=payloads)
    except ReadError as error:
        raise Failed(str(error)) from None


# ``weft trace``: from a row of a table back to the records of devices.

T = TypeVar("T")
ROWS_MAX = 1000
RECORDS_MAX = 1_000_000


@click.command("trace")
@click.option("--store", "uri", required=True, metavar="URI", help="The hub's store: a folder, or a bucket's URI.")
@tenant_option("Tenant of the streams.")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="NAME",
    help="Input stream of the row. May be repeated. Unset: the stream that has the row's lanes.",
)
@click.option("--table", metavar="URI", help="Delta table with a column _from: a folder, or a bucket's URI.")
@click.option("--where", metavar="SQL", help="Rows of --table to trace, such as \"machine = 'm1'\".")
@click.option("--from", "lineage", metavar="JSON", help="Value of a column _from, instead of a table's row.")
@click.option("--record", metavar="EDGE/LOG/SEQ", help="One record, or EDGE/LOG/FIRST-LAST, instead of a table's row.")
@click.option(
    "--forward", is_flag=True, help="Show the records that edge functions made of --record, instead of its inputs."
)
@click.option(
    "--within",
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="Largest difference between the times of --record and of its results, with --forward.",
)
@click.option("--rows", type=click.IntRange(1, ROWS_MAX), default=10, show_default=True, help="Maximum number of rows.")
@click.option(
    "--records",
    type=click.IntRange(1, RECORDS_MAX),
    default=1000,
    show_default=True,
    help="Maximum number of records of all rows together.",
)
@json_option
def trace_command(uri: str, tenant: str, as_json: bool, **options: Any) -> int:
    """Show the records of devices that went into a row.

    The row's column _from names ranges of records; every shipped pipeline writes it. For records that a pipeline wrote,
    the command follows their own inputs. Exit status 1 if nothing was found. The command changes nothing, and the hub
    may run meanwhile.
    """
    given = [name for name in ("table", "lineage", "record") if options[name] is not None]
    if len(given) != 1:
        raise Refused("name what to trace: either --table with --where, or --from, or --record")
    if (options["where"] is not None) != (given == ["table"]):
        raise Refused("--table and --where belong together: --where names the rows, such as \"machine = 'm1'\"")
    if options["forward"]:
        return _forward(uri, tenant, options, as_json=as_json)
    traces, looked, more = _read(_trace(uri, tenant, options), uri)
    if as_json:
        print_json({"rows": traces, "more_rows": more, "looked_at": looked})
    else:
        print_traces(traces, looked, more=more)
    return 0 if any(step.records for trace in traces for step in trace.made_of) else FAILURE_EXIT_CODE


def _forward(uri: str, tenant: str, options: dict[str, Any], *, as_json: bool) -> int:
    if options["record"] is None:
        raise Refused("--forward goes with --record: the message whose results to show")
    try:
        within = timedelta(seconds=parse_duration(options["within"]))
    except ValueError as error:
        raise Refused(f"--within: {error}") from None
    found = _read(_found(uri, tenant, options, within), uri)
    if as_json:
        print_json(found)
    else:
        print_forward(found)
    return 0 if found.made else FAILURE_EXIT_CODE


async def _found(uri: str, tenant: str, options: dict[str, Any], within: timedelta) -> Forward:
    from weft.proofs.trace import Tracer, forward, parse_record

    store = existing_store(uri)
    tracer = Tracer(store, await open_cluster(store, None), tenant, options["streams"], options["records"])
    return await forward(tracer, parse_record(options["record"]), within)


def _read(reading: Coroutine[Any, Any, T], uri: str) -> T:
    """Return the result of reading a store; ``Failed`` or ``Refused`` reports why it cannot be read."""
    from weft.proofs.trace import TraceError

    try:
        return asyncio.run(reading)
    except TraceError as error:
        raise Failed(str(error)) from None
    except (ClusterUnusable, TableError, CodecError) as error:
        raise Failed(f"--store {uri}: {error}") from None
    except StoreError as error:
        raise Failed(f"--store {uri}: {store_trouble(uri, error)}") from None


async def _trace(uri: str, tenant: str, options: dict[str, Any]) -> tuple[list[Trace], Looked, bool]:
    from weft.proofs.trace import Tracer, parse_record, parse_used, rows_where, used_by

    store = existing_store(uri)
    cluster = await open_cluster(store, None)
    if options["table"] is not None:
        rows = await asyncio.to_thread(rows_where, options["table"], options["where"], options["rows"])
        wanted = [(row, used_by(row)) for row in rows]
    elif options["lineage"] is not None:
        wanted = [({}, parse_used(options["lineage"]))]
    else:
        wanted = [({}, [parse_record(options["record"])])]
    tracer = Tracer(store, cluster, tenant, options["streams"], options["records"])
    traces = [await tracer.trace(row, used) for row, used in wanted[: options["rows"]]]
    return traces, tracer.looked, len(wanted) > options["rows"]
