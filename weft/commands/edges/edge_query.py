"""``weft edge query``: SQL over a node's log."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

from weft.commands.common import json_option
from weft.commands.node_log import NodeLog, parse_since, readable, target_argument
from weft.output import (
    FAILURE_EXIT_CODE,
    STOPPED_EXIT_CODE,
    Failed,
    Refused,
    print_error,
    print_error_json,
)

if TYPE_CHECKING:
    from weft.edge_node.inspect.query import Query, QuerySettings

LOOK_INTERVAL_S = 0.1
GRACE_S = 0.5
"""Time after Ctrl-C in which the query ends by itself."""
SIGINT_BYTE = signal.SIGINT.to_bytes(1, "big")


@click.command("query")
@target_argument
@click.argument("sql", metavar="SQL")
@click.option("--since", metavar="TIME", help="Only records since a time: -10m (ago), or 2026-11-20T07:00 (UTC).")
@click.option(
    "--rows-max",
    type=click.IntRange(1),
    default=10_000_000,
    show_default=True,
    help="Maximum number of records to read.",
)
@click.option("--timeout", metavar="DURATION", default="60s", show_default=True, help="Maximum run time.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
def edge_query(
    target: str, sql: str, since: str | None, rows_max: int, timeout: str, *, as_csv: bool, as_json: bool
) -> None:
    """Run a SELECT over the records of a node's log. Every stream is a table.

    Name the node by its CONFIG, or by its data_dir; with a data_dir there are no columns for topic levels. The node may
    run or not; its files are only read. The tables that the SQL names are loaded into a temporary SQLite database. The
    SQL cannot change, attach or load anything. With a lower bound on time, the command reads less of the log.

    \b
    time      text in UTC: 2026-11-20 07:51:26.123456789
    time_ns   the same, in ns since 1970
    seq       sequence number in the stream
    key       topic
    <level>   one column for each named level of the stream's `from`: line, machine
    payload   text, or a blob if it is not UTF-8; payload ->> '$.temperature' reads JSON
    headers   MQTT 5 properties as JSON: [["name", "value"], ...]
    qos, retained, resent   as published; resent: the device sent it again
    _origin                 the function that made it; null for a device's record

    \b
    now('-10m')    a time, to compare with time
    level(key, 2)  a level of the topic
    weft_streams   a table of the streams: records, first_seq, next_seq, first_time, last_time, gaps, ...
    weft_gaps      a table of the gap notices: stream, first, end, records, reason, time

    \b
    weft edge query edge.yaml "SELECT count(*) FROM telemetry WHERE time > now('-10m')"
    weft edge query edge.yaml "SELECT machine, avg(payload ->> '$.temperature') AS mean
                               FROM telemetry GROUP BY machine" --since -1h
    weft edge query /var/lib/weft "SELECT * FROM weft_gaps" --json
    """
    from weft.config.units import parse_duration
    from weft.edge_node.inspect.query import FILE_BYTES_MAX, HEAP_BYTES_MAX, QuerySettings
    from weft.spare import spare_memory, spare_space

    if as_csv and as_json:
        raise Refused("--csv and --json exclude each other: choose one")
    now_ns = time.time_ns()
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise Refused(f"--timeout: {error}") from None
    settings = QuerySettings(
        rows_max=rows_max,
        timeout_s=timeout_s,
        since_ns=None if since is None else parse_since("--since", since, now_ns),
        file_bytes_max=spare_space(FILE_BYTES_MAX),
        heap_bytes_max=spare_memory(HEAP_BYTES_MAX),
    )
    _run(NodeLog.of(target), sql, settings, now_ns, "csv" if as_csv else "json" if as_json else "table")


@contextmanager
def _ended_in_time(query: Query, *, as_json: bool) -> Iterator[None]:
    """End the process when SQLite does not end the query after the deadline or after Ctrl-C.

    A watching thread does this, because the main thread is inside SQLite and runs no Python. On SIGINT, Python writes a
    byte to the pipe at once, although it raises ``KeyboardInterrupt`` only when SQLite returns. If the exception is
    raised in a function that SQLite called, SQLite reports it as an error of that function. An error after Ctrl-C is
    therefore treated as Ctrl-C.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    former = signal.set_wakeup_fd(writer)
    done, interrupted = threading.Event(), threading.Event()

    def interrupt(*_signal: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    ends_by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ends_by_default:
        signal.signal(signal.SIGINT, interrupt)

    def look() -> None:
        asked_at = None
        while not done.is_set():
            if select.select([reader], [], [], LOOK_INTERVAL_S)[0] and SIGINT_BYTE in os.read(reader, 64):
                asked_at = time.monotonic()
            if not query.is_in_sqlite:
                asked_at = None
            why = query.why_stuck()
            if why is not None:
                (print_error_json(why, FAILURE_EXIT_CODE) if as_json else print_error(why))
                os._exit(FAILURE_EXIT_CODE)
            if asked_at is not None and time.monotonic() - asked_at > GRACE_S:
                os._exit(STOPPED_EXIT_CODE)

    thread = threading.Thread(target=look, name="deadline", daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        done.set()
        thread.join()
        if ends_by_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(former)
        os.close(reader)
        os.close(writer)


def _run(
    target: NodeLog, sql: str, settings: QuerySettings, now_ns: int, style: Literal["csv", "json", "table"]
) -> None:
    """Print the rows, and the damaged places of the log on standard error."""
    from weft.edge_node.inspect.query import NoSuchTable, Query, QueryRefused, QueryStopped
    from weft.text.rows import print_rows

    with readable(target):
        log, durability = target.log(), target.durability()
        for thorough in (False, True):
            query = Query(log, target.patterns(thorough=thorough), durability, settings, now_ns=now_ns)
            try:
                with _ended_in_time(query, as_json=style == "json"):
                    print_rows(*query.run(sql), style)
                break
            except NoSuchTable as error:
                if thorough:
                    raise Refused(str(error)) from None
            except QueryRefused as error:
                raise Refused(str(error)) from None
            except QueryStopped as error:
                raise Failed(str(error)) from None
            finally:
                query.close()
    for damage in query.damage:
        place = f"{damage.file} is damaged from byte {damage.offset} to {damage.end}"
        click.echo(f"weft: {place}: the records there are missing from the result", err=True)
