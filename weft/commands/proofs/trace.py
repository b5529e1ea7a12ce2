"""``weft trace``: from a row of a table back to the records of devices."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.commands.common import json_option, open_hub_store, store_trouble
from weft.config.units import parse_duration
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, print_json
from weft.text.traces import print_forward, print_traces

if TYPE_CHECKING:
    from weft.proofs.trace.finding import Looked
    from weft.proofs.trace.forward import Forward
    from weft.proofs.trace.steps import Trace

T = TypeVar("T")
ROWS_MAX = 1000
RECORDS_MAX = 1_000_000


@click.command("trace")
@click.option("--store", "uri", required=True, metavar="URI", help="The hub's store: a folder, or a bucket's URI.")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the streams.")
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
    "--forward",
    is_flag=True,
    help="Show the records that edge functions made of --record, instead of its inputs.",
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
    from weft.proofs.trace.forward import forward
    from weft.proofs.trace.steps import Tracer
    from weft.proofs.trace.used import parse_record
    from weft.storage.cluster import open_cluster

    store = open_hub_store(uri)
    tracer = Tracer(store, await open_cluster(store, None), tenant, options["streams"], options["records"])
    return await forward(tracer, parse_record(options["record"]), within)


def _read(reading: Coroutine[Any, Any, T], uri: str) -> T:
    """Return the result of reading a store; ``Failed`` or ``Refused`` reports why it cannot be read."""
    from weft.proofs.trace.errors import TraceError
    from weft.protocols.errors import CodecError
    from weft.storage.cluster import ClusterUnusable
    from weft.storage.object_store import StoreError
    from weft.storage.table.errors import TableError

    try:
        return asyncio.run(reading)
    except TraceError as error:
        raise Failed(str(error)) from None
    except (ClusterUnusable, TableError, CodecError) as error:
        raise Failed(f"--store {uri}: {error}") from None
    except StoreError as error:
        raise Failed(f"--store {uri}: {store_trouble(uri, error)}") from None


async def _trace(uri: str, tenant: str, options: dict[str, Any]) -> tuple[list[Trace], Looked, bool]:
    from weft.proofs.trace.silver import rows_where
    from weft.proofs.trace.steps import Tracer
    from weft.proofs.trace.used import parse_record, parse_used, used_by
    from weft.storage.cluster import open_cluster

    store = open_hub_store(uri)
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
