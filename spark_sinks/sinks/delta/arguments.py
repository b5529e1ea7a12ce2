"""Arguments of ``DeltaSink``, checked."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from spark_sinks.errors import ReadError, SinkError
from spark_sinks.replaced import Replaced
from spark_sinks.sinks.delta.columns import type_name
from spark_sinks.sinks.delta.place import Place
from spark_sinks.sinks.delta.positions import OFFSET, SHARD, STREAM
from spark_sinks.source.options import STORE_PREFIX, ReadOptions, parse_options

STREAMS_MAX = 64
TABLES = "tables"
"""Folder of a hub's store for the tables of streams."""
_NUMBERS = ("tinyint", "smallint", "int", "bigint")


def names_of(option: str, given: str | Collection[str] | None) -> tuple[str, ...]:
    """Return names of columns, from a list or a text.

    Raises:
        SinkError: one is empty, or given twice.
    """
    if given is None:
        return ()
    names = tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else tuple(given)
    if len(set(names)) < len(names) or not all(names):
        raise SinkError(f"{option}: expected names of columns, each once; got {given!r}")
    return names


def source_of(
    store: str | os.PathLike[str] | None,
    stream: str | Sequence[str] | None,
    tenant: str,
    store_options: Mapping[str, str] | None,
) -> tuple[ReadOptions, tuple[str, ...]] | None:
    """Return the source of the rows: the options of the hub's store, and the streams; None when neither is given.

    Raises:
        SinkError: one is missing or not valid.
    """
    if store is None and stream is None:
        return None
    streams = (stream,) if isinstance(stream, str) else tuple(stream or ())
    if store is None or not streams:
        raise SinkError("store and stream go together: give both, or none of them")
    if len(streams) > STREAMS_MAX or len(set(streams)) < len(streams):
        raise SinkError(f"stream: expected at most {STREAMS_MAX} streams, each once; got {', '.join(streams)}")
    named = {f"{STORE_PREFIX}{option}": value for option, value in (store_options or {}).items()}
    try:
        found = [
            parse_options({"store": os.fspath(store), "stream": each, "tenant": tenant, **named}) for each in streams
        ]
    except ReadError as error:
        raise SinkError(str(error)) from None
    return found[0], streams


def check_same_partitions(table: str, held: Sequence[str], given: Sequence[str]) -> None:
    """Check that a table is partitioned by the sink's columns.

    Raises:
        SinkError: it is not.
    """
    if tuple(held) != tuple(given):
        raise SinkError(
            f"table {table} is partitioned by {', '.join(held) or 'nothing'}, not by {', '.join(given) or 'nothing'}; "
            "give partition_by as the table has it"
        )


def check_outside(place: Place, store: str) -> None:
    """Check that a table is not one of the hub's own, which only the hub writes.

    Args:
        store: root of the hub's store.

    Raises:
        SinkError: it is.
    """
    root = store.rstrip("/")
    root = root if "://" in root else os.path.abspath(root)
    if f"{place.uri}/".startswith(f"{root.removeprefix('file://')}/{TABLES}/"):
        raise SinkError(
            f"table {place.uri} is in the store of the hub, which alone writes its tables; name another place"
        )


def check_positions(rows: pa.Schema, streams: Sequence[str]) -> None:
    """Check that rows have the positions of their records.

    Raises:
        SinkError: they do not.
    """
    wanted = {SHARD: _NUMBERS, OFFSET: _NUMBERS} | ({STREAM: ("string",)} if len(streams) > 1 else {})
    for name, kinds in wanted.items():
        if name not in rows.names:
            raise SinkError(
                f"the rows have no column {name}, by which the table knows what it has: keep {', '.join(wanted)} of "
                "the record that caused a row. Results of aggregates have none: give the sink keys and order_by "
                "instead of store and stream"
            )
        if (kind := type_name(rows.field(name).type)) not in kinds:
            raise SinkError(f"column {name} is a {kind}; leave it as the source has it")


def check_replaced(rows: pa.Schema, keys: Sequence[str], replaced: Replaced) -> None:
    """Check that rows can replace ranges of times as a whole.

    Raises:
        SinkError: the sink has other keys, or a column is missing or of another type.
    """
    if replaced.column not in keys:
        raise SinkError(
            f"keys: whole ranges of {replaced.column} are replaced, so it must be among the keys. Give the sink keys="
            f"[{replaced.column!r}, ...] and order_by={replaced.newest_by!r}, without store, stream or partitions to "
            "replace"
        )
    for name, kinds in ((replaced.column, ("timestamp",)), (replaced.newest_by, _NUMBERS)):
        if name not in rows.names:
            raise SinkError(f"the rows have no column {name}; they have {', '.join(rows.names)}")
        if (kind := type_name(rows.field(name).type)) not in kinds:
            raise SinkError(f"column {name} is a {kind}; expected {' or '.join(kinds)}")
