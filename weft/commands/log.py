"""``weft log``: inspect an edge node's log, and drop a backlog, whether or not the node runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click
import msgspec

from weft.commands.acts.file_acts import ordering
from weft.commands.common import ExistingPath, confirm, json_option, yes_option
from weft.commands.node_log import NodeLog, readable, target_argument
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, counted, print_json, print_json_line
from weft.protocols import batch, segment
from weft.protocols.batch import BatchHeader, Record
from weft.protocols.errors import CodecError
from weft.protocols.lane import format_log_id
from weft.protocols.origin import Origin, by_number, origin_text
from weft.protocols.segment import SegmentHeader
from weft.storage.segment_log import LogError
from weft.storage.segment_log.names import DAMAGED
from weft.storage.segment_log.walk.entries import Inspected, inspect_segment
from weft.text.dump import entry_line, record_line_below
from weft.text.record import record_facts

Facts = dict[str, Any]


@click.group("log")
def log_group() -> None:
    """Inspect an edge node's log, or drop a backlog from it."""


@log_group.command()
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


@log_group.command()
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
    from weft.edge_node.control.client import ControlFailed
    from weft.edge_node.inspect.drop import UnknownStream, opened_log
    from weft.edge_node.inspect.exclusive_log import NotTheOwner

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
                    "file": path, "log_id": format_log_id(found.value.log_id), "created": found.value.created,
                    "bytes": size,
                }  # fmt: skip
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
