"""``weft log``: look into an edge node's log, also while the node runs. Nothing is changed or locked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from protocols import batch, segment
from protocols.batch import BatchHeader
from protocols.errors import CodecError
from protocols.lane import format_log_id
from protocols.segment import SegmentHeader
from storage.segment_log.inspect import Inspected, inspect_segment
from weft.commands.common import json_option
from weft.output import FAILURE_EXIT_CODE, Failed, print_json_line

Facts = dict[str, Any]


@click.group("log")
def command() -> None:
    """Look into an edge node's log, also while the node runs."""


@command.command()
@click.argument("path", type=click.Path(exists=True))
@click.option("--records", is_flag=True, help="Show every record, not only the batches.")
@json_option
def dump(path: str, records: bool, as_json: bool) -> int:
    """Print what is in PATH: a node's data_dir, or one segment file.

    One line per entry, in log order, each with its position in the log; every checksum is checked. Bytes that are no
    entry get a line that says so, and the exit status is 1; what follows them is shown. At the end of the newest file
    that is normal after a power cut, and while the node is writing.
    """
    is_good = True
    for file in _segment_files(path):
        for facts in _segment(file, records):
            is_good = is_good and "error" not in facts
            if as_json:
                print_json_line(facts)
            else:
                click.echo(_line(facts))
    return 0 if is_good else FAILURE_EXIT_CODE


def _segment_files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if segment.parse_file_name(name) is not None)
    if not names:
        raise Failed(f"{path} holds no log: expected a node's data_dir, or one of its .seg files")
    return [os.path.join(path, name) for name in names]


def _segment(path: str, with_records: bool) -> Iterator[Facts]:
    for found in inspect_segment(path):
        if found.problem is not None:
            yield {"file": path, "offset": found.offset, "error": found.problem}
        elif isinstance(found.value, SegmentHeader):
            size = os.path.getsize(path)
            yield {
                "file": path, "log_id": format_log_id(found.value.log_id), "created": found.value.created, "bytes": size
            }  # fmt: skip
        elif found.kind is not None:
            place = {"position": found.position, "kind": found.kind.name.lower()}
            yield from _entry(place, found, with_records)


def _entry(place: Facts, found: Inspected, with_records: bool) -> Iterator[Facts]:
    if not isinstance(found.value, BatchHeader):
        yield place | {"value": _plain(found.value)}
        return
    try:
        yield place | _batch(batch.verify(found.data), len(found.data))
        yield from _records(found.data) if with_records else ()
    except CodecError as error:
        yield place | {"error": str(error)}


def _plain(value: Any) -> Any:
    """Structs with their field names, which they go without on disk."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _batch(header: BatchHeader, length: int) -> Facts:
    return {
        "stream": header.stream,
        "first": header.base_seq,
        "end": header.end_seq,
        "first_time": header.first_time,
        "last_time": header.last_time,
        "clock": header.clock.name.lower(),
        "codec": header.codec.name.lower(),
        "bytes": length,
        "raw_bytes": header.raw_length,
    }


def _records(body: bytes) -> Iterator[Facts]:
    for record in batch.records(body):
        yield {
            "kind": "record",
            "seq": record.seq,
            "time": record.time,
            "key": record.key.decode(errors="backslashreplace"),
            "payload": bytes(record.payload).decode(errors="backslashreplace"),
            "flags": int(record.flags),
        }


def _line(facts: Facts) -> str:
    """Facts for people: the kind, then names and values."""
    facts = dict(facts)
    head = f"{facts.pop('position'):>12} " if "position" in facts else ""
    indent = " " * 15 if facts.get("kind") == "record" else ""
    kind = facts.pop("kind", "")
    return f"{head}{indent}{kind:<7} " + " ".join(f"{name}={value!r}" for name, value in facts.items())
