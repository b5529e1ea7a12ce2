"""``weft log``, ``weft edge tail``, ``query`` and ``import``: the log of an edge node, whether or not the node runs."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import msgspec

from weft.commands.acts import ordering
from weft.commands.common import ExistingPath, config_argument, confirm, json_option, load_edge, yes_option
from weft.commands.node_log import NodeLog, parse_since, readable, target_argument
from weft.config.units import parse_duration
from weft.edge_node.control.client import ControlFailed
from weft.edge_node.inspect.query import (
    FILE_BYTES_MAX,
    HEAP_BYTES_MAX,
    NoSuchTable,
    Query,
    QueryRefused,
    QuerySettings,
    QueryStopped,
)
from weft.edge_node.inspect.tail import Item, Start, newest_records, sleep
from weft.edge_node.inspect.tail import follow as follow_log
from weft.edge_node.inspect.view import Choice
from weft.free_resources import within_free_memory, within_free_space
from weft.output import (
    FAILURE_EXIT_CODE,
    STOPPED_EXIT_CODE,
    Failed,
    Refused,
    counted,
    harmless,
    print_error,
    print_error_json,
    print_json,
    print_json_line,
)
from weft.protocols import batch, segment
from weft.protocols.batch import BatchHeader, Record
from weft.protocols.errors import CodecError
from weft.protocols.lane import Origin, by_number, format_log_id, origin_text
from weft.protocols.segment import SegmentHeader
from weft.protocols.topics import InvalidTopic, check_filter
from weft.storage.segment_log import LogError
from weft.storage.segment_log.scan import Inspected, inspect_segment
from weft.storage.segment_log.settings import DAMAGED
from weft.text.record import entry_line, facts, line, record_facts, record_line_below

if TYPE_CHECKING:
    from weft.config.models import EdgeConfig


# ``weft log``: inspect an edge node's log, and drop a backlog, whether or not the node runs.

Facts = dict[str, Any]


@click.command()
@click.argument("path", metavar="CONFIG|DIR|FILE", type=ExistingPath())
@click.option("--records", is_flag=True, help="Show every record, not only the batches.")
@json_option
def dump(path: str, records: bool, as_json: bool) -> int:
    """Print the log of a node, named by its CONFIG or its data_dir, or one segment FILE.

    Each entry is one line, in log order, with its position in the log. Every checksum is checked. Invalid bytes get a
    line of their own, and the entries behind them are shown. Exit status 1 means damage. Bad bytes at the end of the
    newest file are not damage: the last line reports them as torn. A power cut left them, or the node is writing them.
    They were never acknowledged.

    \b
    weft log dump edge.yaml                        every batch, notice and index
    weft log dump /var/lib/weft --records --json   and every record, for programs
    weft log dump 00000000000067108864.seg.damaged
    """
    is_config = path.endswith((".yaml", ".yml"))
    target = NodeLog.of(path) if is_config or os.path.isdir(path) else NodeLog(os.path.dirname(path) or ".", None)
    is_good = True
    with readable(target):
        files = _segment_files(target.directory) if is_config or os.path.isdir(path) else [path]
        for file in files:
            for facts in _segment(file, records):
                is_good = is_good and not facts.pop("is_damage", False)
                record: Record | None = facts.pop("record", None)
                if as_json:
                    print_json_line(facts if record is None else {"kind": "record", **record_facts(record)})
                else:
                    click.echo(entry_line(facts) if record is None else record_line_below(record))
    return 0 if is_good else FAILURE_EXIT_CODE


@click.command()
@target_argument
@click.argument("stream")
@click.option(
    "--below", type=click.IntRange(min=1), metavar="SEQ", help="Drop the records with sequence numbers below SEQ."
)
@click.option("--all", "everything", is_flag=True, help="Drop all records of the stream.")
@yes_option
@json_option
def drop(target: str, stream: str, *, below: int | None, everything: bool, yes: bool, as_json: bool) -> None:
    """Drop the backlog of STREAM on a node, named by its CONFIG or its data_dir. The node may run or not.

    Use it for a hub that will never come back, or for old values that only delay newer ones. The records are deleted
    for good and their space is freed. A gap notice with the reason `operator` replaces them and reaches the hubs when
    their links connect again. Hubs keep their records. Only whole batches are dropped, so some records just below SEQ
    may stay. A running node gets the order through DATA_DIR/control.sock, from its own user or root. Records that it
    accepts after the question are kept.

    \b
    weft log drop /var/lib/weft telemetry --below 1200000
    weft log drop edge.yaml telemetry --all --yes
    """
    from weft.edge_node.inspect.maintenance import NotTheOwner, UnknownStream, opened_log

    if (below is not None) == everything:
        raise Refused("give either --below SEQ or --all")
    found = NodeLog.of(target)
    try:
        with readable(found), opened_log(found.directory) as log:
            backlog = log.backlog(stream, below)
            count = backlog.numbers.count()
            if count and not yes:
                confirm(
                    f"drop {counted(count, 'record')} of {stream}, received from {_time(backlog.first_time)} to "
                    f"{_time(backlog.last_time)}? Records that no hub has are lost for good",
                    "nothing was dropped",
                )
            # Up to a number, never "all": records that a running node received since the question stay.
            dropped = backlog.numbers
            if count:
                with ordering(found.directory, f"{counted(count, 'record')} of stream {stream}"):
                    dropped = log.drop_backlog(stream, backlog.numbers.end)
    except UnknownStream as error:
        raise Refused(str(error)) from None
    except (LogError, NotTheOwner, ControlFailed, OSError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"stream": stream, "records": dropped.count(), "ranges": dropped.to_wire()})
    elif dropped:
        gone = counted(dropped.count(), "record")
        click.echo(f"dropped {gone} of {stream}; the hubs get a gap notice when their links connect")
    elif count:
        click.echo(f"nothing was dropped: hubs have these records of {stream}, or they were dropped before")
    else:
        click.echo(f"{stream} has no such records: nothing was changed")


def _time(nanoseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(nanoseconds / 1e9))


def _segment_files(directory: str) -> list[str]:
    names = _segment_names(directory) if os.path.isdir(directory) else []
    if not names:
        raise Failed(
            f"{directory} holds no log: expected the data_dir of a node that has run, or one of its .seg files"
        )
    return [os.path.join(directory, name) for name in names]


def _segment_names(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if segment.parse_file_name(name) is not None)


def _may_end_torn(path: str) -> bool:
    """Return whether the folder has no later segment of the log."""
    folder, name = os.path.split(path)
    if segment.parse_file_name(name) is None:
        return not name.endswith(DAMAGED)
    # The node may have deleted segments since they were listed.
    return not any(os.path.exists(os.path.join(folder, each)) for each in _segment_names(folder or ".") if each > name)


def _segment(path: str, with_records: bool) -> Iterator[Facts]:
    """Yield the contents of a file. ``is_damage`` marks the line that proves an error; ``record`` is alone in its
    line."""
    names: dict[int, str] = {}
    origins: dict[int, Origin] = {}
    try:
        size = os.path.getsize(path)
        for found in inspect_segment(path, is_newest=_may_end_torn(path)):
            if isinstance(found.value, dict):
                names |= {number: stream.name for number, stream in found.value.items()}
            elif isinstance(found.value, list):
                origins |= by_number(found.value)
            if found.problem is not None:
                yield from _problem(path, found)
            elif isinstance(found.value, SegmentHeader):
                yield {
                    "file": path,
                    "log_id": format_log_id(found.value.log_id),
                    "created": found.value.created,
                    "bytes": size,
                }
            elif found.kind is not None:
                place = {"position": found.position, "kind": found.kind.name.lower()}
                yield from _entry(place, found, _Meanings(names, origins), with_records)
    except FileNotFoundError:
        yield {"file": path, "deleted": "since the files were listed"}


def _problem(path: str, found: Inspected) -> Iterator[Facts]:
    place = {"file": path, "offset": found.offset}
    yield place | {"error": found.problem} | ({} if found.is_torn else {"is_damage": True})
    if found.is_torn:
        yield place | {"torn": "nothing after this point was acknowledged"}


class _Meanings(NamedTuple):
    """Names of the numbers in a segment, as far as it has been read."""

    names: Mapping[int, str]
    origins: Mapping[int, Origin]


def _entry(place: Facts, found: Inspected, known: _Meanings, with_records: bool) -> Iterator[Facts]:
    if not isinstance(found.value, BatchHeader):
        yield place | {"value": _plain(found.value)}
        return
    try:
        header = batch.verify(found.data)
        origin = origin_text(header.origin, known.origins)
        named = {"stream": header.stream, "name": known.names.get(header.stream)}
        yield place | named | _batch(header, len(found.data)) | ({} if origin is None else {"origin": origin})
        yield from ({"record": record} for record in batch.records(found.data)) if with_records else ()
    except CodecError as error:
        yield {"file": found.segment, "offset": found.offset} | place | {"error": str(error), "is_damage": True}


def _plain(value: Any) -> Any:
    """Return a struct with its field names, which are not stored on disk."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _batch(header: BatchHeader, length: int) -> Facts:
    return {
        "first": header.base_seq,
        "end": header.end_seq,
        "first_time": header.first_time,
        "last_time": header.last_time,
        "clock": header.clock.name.lower(),
        "codec": header.codec.name.lower(),
        "bytes": length,
        "raw_bytes": header.raw_length,
    }


# ``weft edge tail``: the records of a node's log as they become durable.

LAST_DEFAULT = 10


@click.command("tail")
@target_argument
@click.argument("streams", metavar="[STREAM]...", nargs=-1)
@click.option("--last", type=click.IntRange(0, 1_000_000), help="Start with the newest N records.  [default: 10]")
@click.option("--from", "since", metavar="TIME", help="Start at a time: -10m (ago), or 2026-11-20T07:00 (UTC).")
@click.option("--seq", type=click.IntRange(0), help="Start at a sequence number of a single STREAM.")
@click.option("--filter", "topic_filter", metavar="FILTER", help="Only topics that match an MQTT filter: plant/+/m1/#.")
@click.option("-f", "--follow", is_flag=True, help="Show new records until Ctrl-C, also across restarts of the node.")
@json_option
def edge_tail(
    target: str,
    streams: tuple[str, ...],
    last: int | None,
    since: str | None,
    seq: int | None,
    *,
    topic_filter: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the records of a node's log, one per line: time, stream, sequence number, topic, payload, headers.
    Records that a function of the node made end with <NAME@VERSION#HASH> of it.

    Name the node by its CONFIG, or by its data_dir. The node may run or not: its files are only read, without locks,
    and it is not slowed down. Records are shown once they are durable. With CONFIG, the status page of a running node
    reports the newest durable record. With DIR, records are shown one second later.

    Payloads that are not text are shown as hex:..., in JSON as payload_base64. Lines with -- report records that can
    never come (gap notices), damaged files, and records that were deleted before they were shown.

    \b
    weft edge tail edge.yaml                          the newest 10 records of all streams
    weft edge tail edge.yaml telemetry -f             and new records
    weft edge tail edge.yaml --from -10m --filter 'plant/press/#'
    weft edge tail /var/lib/weft telemetry --seq 0 --json
    """
    if sum(option is not None for option in (last, since, seq)) > 1:
        raise Refused("--last, --from and --seq exclude each other: choose one")
    try:
        check_filter(topic_filter) if topic_filter is not None else None
    except InvalidTopic as error:
        raise Refused(f"--filter: {error}") from None
    found = NodeLog.of(target)
    with readable(found):
        wants = found.wanted(streams)
        if seq is not None and len(streams) != 1:
            raise Refused("--seq needs exactly one STREAM")
        choice = Choice(topic_filter, None if since is None else parse_since("--from", since, time.time_ns()), seq or 0)
        is_counted = since is None and seq is None
        start = Start(choice, (LAST_DEFAULT if last is None else last) if is_counted else None)

        def wait(seconds: float) -> bool:
            sys.stdout.flush()
            return sleep(seconds)

        def text(item: Item) -> str:
            return harmless(msgspec.json.encode(facts(item)).decode() if as_json else line(item))

        _print_clock(found)
        is_empty = True
        try:
            for item in (follow_log if follow else newest_records)(found.log(), wants, start, found.durability(), wait):
                is_empty = False
                sys.stdout.write(text(item) + "\n")
        except KeyboardInterrupt:
            if not follow:
                raise
            sys.stdout.flush()
            raise SystemExit(STOPPED_EXIT_CODE) from None  # Ctrl-C is its only end
        sys.stdout.flush()
    if is_empty and not as_json:
        click.echo("(no records)", err=True)


def _print_clock(node: NodeLog) -> None:
    if differs := node.clock_trouble():
        click.echo(f"-- the clock of this node is {differs}: record times are the node's own", err=True)


# ``weft edge query``: SQL over a node's log.

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
        file_bytes_max=within_free_space(FILE_BYTES_MAX),
        heap_bytes_max=within_free_memory(HEAP_BYTES_MAX),
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


# ``weft edge import``: bring the records of an earlier disk to the hubs.


@click.command("import")
@config_argument
@click.argument("directory", metavar="[DIR]", type=ExistingPath(), required=False)
@click.option("--delete-done", is_flag=True, help="Delete the imported logs that the hubs have completely.")
@click.option(
    "--as-new",
    is_flag=True,
    help="Send the records that only DIR has, under new numbers: for a log that hubs refuse as an old copy.",
)
@json_option
def edge_import(config_file: str, directory: str | None, *, delete_done: bool, as_new: bool, as_json: bool) -> None:
    """Send the records in DIR, the earlier data_dir of the node of CONFIG, to the hubs.

    Use it when a node's disk is back after the node began an empty log on another one. The records reach the hubs under
    their former log and sequence numbers, so a hub does not store a record twice. DIR is moved into the node's
    data_dir, or copied when it is on another file system. The node may run; it delivers the log beside its own, and
    `weft edge status` shows the progress. --delete-done deletes a delivered folder.

    With --as-new, DIR is a data_dir that was restored from an older copy and that hubs refuse: they have other records
    under its numbers. The command copies the records received since then into a new log, each with the header
    weft.forked-from. They reach the hubs once, even if the command is repeated. DIR is not changed.

    \b
    weft edge import edge.yaml /mnt/old-disk/weft
    weft edge status edge.yaml
    weft edge import edge.yaml --delete-done
    """
    config = load_edge(config_file)
    if (directory is None) is not delete_done:
        raise Refused("give either DIR, the folder to import, or --delete-done")
    if as_new and delete_done:
        raise Refused("give either --as-new or --delete-done")
    if directory is None:
        _delete(config, as_json=as_json)
    else:
        _import(config, directory, as_new=as_new, as_json=as_json)


def _import(config: EdgeConfig, directory: str, *, as_new: bool, as_json: bool) -> None:
    from weft.edge_node.inspect.importing import NotImportable, import_fork, import_log
    from weft.edge_node.inspect.maintenance import NotTheOwner

    try:
        with readable(NodeLog(directory, None)), ordering(config.data_dir, f"the log in {directory}"):
            found = import_fork(config, directory) if as_new else import_log(config, directory)
    except (NotImportable, NotTheOwner, LogError, OSError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json(found._asdict())
        return
    streams = ", ".join(f"{name} ({counted(count, 'record')})" for name, count in found.records.items())
    click.echo(f"log {found.log_id}: {streams or 'no records'}")
    if found.left_out:
        click.echo(f"skipped, because newer records of them were sent to hubs: {', '.join(found.left_out)}")
    click.echo(f"{'copied' if found.is_copy else 'moved'} to {found.directory}")
    click.echo("the node sends the hubs the records that they lack; `weft edge status` shows the progress")


def _delete(config: EdgeConfig, *, as_json: bool) -> None:
    from weft.edge_node.inspect.importing import delete_done
    from weft.edge_node.inspect.maintenance import NotTheOwner

    try:
        with ordering(config.data_dir, "imported logs that are done"):
            deleted = delete_done(config)
    except (NotTheOwner, OSError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"deleted": deleted})
    else:
        click.echo(
            f"deleted {', '.join(deleted)}"
            if deleted
            else "no imported log is complete at the hubs: nothing was deleted"
        )
