"""Buckets of a latest table: keys, their newest rows, and the files of each range of hashes of keys."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weft.cloud_hub.facts.streams import wrong_part
from weft.protocols.batch import Buffer
from weft.storage.table.actions import AddedFile, DataFile, DeltaState, TableError
from weft.storage.table.files import FileFollower
from weft.storage.table.rows import TOMBSTONE_COLUMN
from weft.storage.table_writer.parquet_file import ParquetFile

# Files of a latest table. Each has the rows of a range of hashes of keys, a bucket, which the name of the file tells.
#
# A bucket of depth d has the keys whose hashes begin with the same d bits. A bucket that grows too large is divided;
# the ranges of two files of a version never overlap.

HIDDEN_FOLDER = "_weft"
HIDDEN = "latest/hidden"
"""End of the transaction whose version is the number of the file with hidden rows; 0 for none."""
BITS = 32
"""Bits of a hash."""
_NAME = re.compile(r"bucket-(\d{2})-([0-9a-f]{8})-[0-9a-f]+\.parquet")
Hashes = np.ndarray[Any, np.dtype[np.uint32]]


class Bucket(NamedTuple):
    """A range of hashes."""

    first: int
    depth: int

    @property
    def end(self) -> int:
        """Return the hash after the last one."""
        return self.first + (1 << (BITS - self.depth))

    def path(self, nonce: str) -> str:
        """Return the name of a file with its rows."""
        return f"bucket-{self.depth:02d}-{self.first:08x}-{nonce}.parquet"

    def halves(self) -> tuple[Bucket, Bucket]:
        """Return the two buckets of the next depth."""
        size = 1 << (BITS - self.depth - 1)
        return Bucket(self.first, self.depth + 1), Bucket(self.first + size, self.depth + 1)

    def overlaps(self, other: Bucket) -> bool:
        """Return whether both have some hash."""
        return self.first < other.end and other.first < self.end


class BucketFiles(FileFollower[DataFile]):
    """The files of a latest table, followed from version to version.

    Raises:
        TableError: from ``take`` and ``read_checkpoint``, for a file that the hub did not write.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        super().__init__()

    def clear(self) -> None:
        """Forget the table."""
        super().clear()
        self.buckets: dict[Bucket, DataFile] = {}

    def remove(self, path: str) -> None:
        """Remove a file that the version does not have."""
        super().remove(path)
        bucket = _named(path)
        # An entry names removals and additions in any order: the bucket's file may be the new one already.
        if bucket in self.buckets and self.buckets[bucket].path == path:
            del self.buckets[bucket]

    def kept(self, added: AddedFile) -> DataFile:
        """Return the file of a bucket."""
        bucket = _named(added.path)
        if bucket is None or added.deletionVector is not None:
            raise TableError(
                f"{self._key} has {added.path}, which is none of the hub's files: another program has written to it. "
                "Move it away, and the hub makes it again"
            )
        file = self.buckets[bucket] = DataFile(added.path, added.size, 0, 0, 0, 0, 0, added.stats or "")
        return file

    def of(self, hashes: Hashes) -> dict[Bucket, np.ndarray[Any, np.dtype[np.int64]]]:
        """Return the buckets of hashes, each with the numbers of its hashes; new ones where no file has them."""
        order = np.argsort(hashes, kind="stable")
        ordered, at = hashes[order].astype(np.int64), 0
        known = sorted(self.buckets)
        found: dict[Bucket, np.ndarray[Any, np.dtype[np.int64]]] = {}
        while at < len(ordered):
            bucket = _bucket_of(int(ordered[at]), known)
            end = int(np.searchsorted(ordered, bucket.end, "left"))
            found[bucket] = order[at:end]
            at = end
        return found


def _named(path: str) -> Bucket | None:
    """Return the bucket that the name of a file tells; None for a file of others."""
    found = _NAME.fullmatch(path)
    return Bucket(int(found[2], 16), int(found[1])) if found and int(found[1]) <= BITS else None


def _bucket_of(value: int, known: list[Bucket]) -> Bucket:
    """Return the bucket of a hash: a known one, or the largest one that overlaps none of these."""
    at = bisect_right(known, value, key=attrgetter("first"))
    if at and value < known[at - 1].end:
        return known[at - 1]
    for depth in range(BITS + 1):
        size = 1 << (BITS - depth)
        bucket = Bucket(value - value % size, depth)
        inside = [each for each in known if each.overlaps(bucket)]
        if not inside:
            return bucket
        known = inside
    raise AssertionError("no known bucket has the hash")


def hidden_key(table: str, applications: str, state: DeltaState) -> str:
    """Return the key of the file with hidden rows that a version of a latest table names; none is there without some.

    Args:
        table: key of the table's folder.
        applications: as of ``app_ids``.
    """
    return hidden_file(table, state.transactions.get(f"{applications}{HIDDEN}", 0))


def hidden_file(table: str, number: int) -> str:
    """Return the key of a file with hidden rows, by its number."""
    # Of the folders of a table, vacuums leave those alone that begin with "_".
    return f"{table}/{HIDDEN_FOLDER}/hidden-{number:016x}.parquet"


# Keys of latest tables: the columns, or fields of payloads, whose values a row is the newest of.

KEY_PROPERTY = "weft.latest.key"
"""Property of a latest table: the parts of its key, as a list in JSON."""
_PAYLOAD = "payload."
_DECODER = msgspec.json.Decoder()


class Key:
    """The key of a latest table.

    Args:
        parts: ``_key``, ``_edge``, ``_log``, names of topic levels, and ``payload.`` with a path, as ``wrong_part``
            allows.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        if (wrong := wrong_part(parts)) is not None:
            raise ValueError(wrong)
        self.text = msgspec.json.encode(list(parts)).decode()
        """The parts as the table's property has them."""
        self._paths = {
            f"_by_{part.removeprefix(_PAYLOAD).replace('.', '_')}": part.split(".")[1:]
            for part in parts
            if part.startswith(_PAYLOAD)
        }
        made = iter(self._paths)
        self.columns = [next(made) if part.startswith(_PAYLOAD) else part for part in parts]
        """Columns of the table with the key's values."""

    @property
    def made(self) -> list[str]:
        """Return the columns that the table has for fields of payloads."""
        return list(self._paths)

    def check(self, columns: Collection[str], table: str) -> None:
        """Check that a table has the columns of the key.

        Raises:
            TableError: it lacks one, as before an edge has declared a topic level.
        """
        if lacking := [name for name in self.columns if name not in columns]:
            raise TableError(
                f"{table} is to have the newest rows by {', '.join(lacking)}, and no edge names such a topic level. "
                "Streams of edges declare topic levels, as in `plant/{machine}/telemetry`"
            )

    def filled(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns that are made of payloads."""
        if not self._paths:
            return rows
        payloads = rows.column("payload").to_pylist()
        values = [*zip(*(self._values(each) for each in payloads), strict=True)] or [()] * len(self._paths)
        for name, column in zip(self._paths, values, strict=True):
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(column, pa.string()))
        return rows

    def _values(self, payload: str | bytes | None) -> list[str | None]:
        value = json_value(payload)
        return [field_text(value, path) for path in self._paths.values()]

    def is_complete(self, rows: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each row whether it has all values of the key."""
        found = np.ones(rows.num_rows, np.bool_)
        for name in self.columns:
            found &= pc.is_valid(rows.column(name)).to_numpy()
        return found


def json_value(payload: str | bytes | None) -> Any:
    """Return the value of a payload in JSON; None if it is none."""
    try:
        return None if payload is None else _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def field_text(value: Any, path: Sequence[str]) -> str | None:
    """Return a field of a payload as text: strings as they are, numbers and truth values as JSON has them."""
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, bool | int | float) else None


# The newest row of each key, as a pure function of rows.
#
# Of a lane's rows of a key, the one with the highest sequence number counts, in whatever order the rows came. Of the
# lanes of a key, the one whose row the hub received last wins: by time, then shard, then offset. If that row is a
# tombstone, the key has no row. The state is what counts of each lane. So rows may be taken in any portions, in any
# order and more than once, and the result is the same.

LANES_PER_KEY_MAX = 8
"""Maximum number of lanes of a key beside the winner whose rows are kept, the last received ones."""
HIDDEN_US = 7 * 86_400_000_000
"""Time, by the hub's clock in the log, for which tombstones and rows of a key's other lanes are kept."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Newest(NamedTuple):
    """Numbers of rows; those of neither kind are older than another one of their lane, or beyond a bound."""

    visible: Numbers
    """The row of each key that has one."""
    hidden: Numbers
    """Tombstones, and the rows of a key's other lanes."""


def newest(rows: pa.Table, keys: Sequence[str], now_us: int) -> Newest:
    """Return the rows that count. Rows without a value in one of the columns of the key do not.

    Args:
        keys: columns of the key.
        now_us: microseconds since 1970: hidden rows are as old as both this clock and the hub's in the log say, since
            either may be ahead.
    """
    if not rows.num_rows:
        return Newest(np.empty(0, np.int64), np.empty(0, np.int64))
    key = codes(rows, keys)
    lane, received = codes(rows, ("_edge", "_log")), _numbers(rows, "_received")
    shard, offset = _numbers(rows, "_shard"), _numbers(rows, "_offset")
    order = np.lexsort((_numbers(rows, "_seq"), lane, key))
    found = order[_lasts(key[order], lane[order]) & (key[order] >= 0)]
    found = found[np.lexsort((offset[found], shard[found], received[found], key[found]))]
    is_winner = _lasts(key[found])
    is_tombstone = rows.column(TOMBSTONE_COLUMN).to_numpy()[found]
    is_young = received[found] > min(int(received.max()), now_us) - HIDDEN_US
    is_kept = ~is_winner & _near_end(key[found])
    hidden = (is_kept | (is_winner & is_tombstone)) & is_young
    return Newest(found[is_winner & ~is_tombstone], found[hidden])


def codes(rows: pa.Table, columns: Sequence[str]) -> Numbers:
    """Return a number for each row, equal for rows with equal values of the columns; -1 where one is null."""
    total = np.zeros(rows.num_rows, np.int64)
    is_null = np.zeros(rows.num_rows, np.bool_)
    for name in columns:
        encoded = rows.column(name).combine_chunks().dictionary_encode()
        found = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
        is_null |= found < 0
        total = total * (len(encoded.dictionary) + 1) + found
        if len(columns) > 2:  # the product of many columns would not fit into 64 bits
            total = np.unique(total, return_inverse=True)[1].astype(np.int64)
    total[is_null] = -1
    return total


def hashes(rows: pa.Table, keys: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return a number of 32 bits for the key of each row, the same in every process. Null counts as an empty text."""
    total = np.zeros(rows.num_rows, np.uint64)
    for name in keys:
        encoded = rows.column(name).cast(pa.string()).fill_null("").combine_chunks().dictionary_encode()
        values = np.fromiter(map(_hash, encoded.dictionary.to_pylist()), np.uint64, len(encoded.dictionary))
        # The multiplication spreads what CRCs of similar names have in common over the upper half.
        total = (total ^ values[encoded.indices.to_numpy()]) * _MIX
    return (total >> np.uint64(32)).astype(np.uint32)


def _hash(value: str) -> int:
    return crc32(value.encode())


def of_keys(rows: pa.Table, wanted: pa.Table, keys: Sequence[str]) -> Mask:
    """Return for each row whether ``wanted`` has a row with its key."""
    if len(keys) == 1:
        values = wanted.column(keys[0]).combine_chunks()
        found: Mask = pc.is_in(rows.column(keys[0]).combine_chunks(), value_set=values).to_numpy(zero_copy_only=False)
        return found
    both = codes(pa.concat_tables([rows.select(keys), wanted.select(keys)]), keys)
    return np.isin(both[: rows.num_rows], both[rows.num_rows :])


def young(hidden: pa.Table, rows: pa.Table, now_us: int) -> pa.Table:
    """Return the hidden rows that are kept when the hub has received ``rows``; ``now_us`` as of ``newest``."""
    if not (hidden.num_rows and rows.num_rows):
        return hidden
    last_us = min(int(_numbers(rows, "_received").max()), now_us)
    is_young: Mask = _numbers(hidden, "_received") > last_us - HIDDEN_US
    return hidden.filter(pa.array(is_young))


def _numbers(rows: pa.Table, name: str) -> Numbers:
    column = rows.column(name)
    found: Numbers = (column.cast(pa.int64()) if column.type != pa.int64() else column).to_numpy()
    return found


def _lasts(*ordered: Numbers) -> Mask:
    """Return whether each element is the last of a run of equal ones."""
    ends = np.ones(len(ordered[0]), np.bool_)
    if len(ends) > 1:
        ends[:-1] = np.logical_or.reduce([each[1:] != each[:-1] for each in ordered])
    return ends


def _near_end(ordered: Numbers) -> Mask:
    """Return whether each element is among the last ones of a run of equal ones."""
    ends = np.flatnonzero(_lasts(ordered))
    end_of = ends[np.searchsorted(ends, np.arange(len(ordered)))]
    return end_of - np.arange(len(ordered)) <= LANES_PER_KEY_MAX


# Rows of a bucket with newer ones, and rows as files. All of it blocks.

CHANGE_COLUMN = "_change_type"
"""Column of a change feed."""


class Keyed(NamedTuple):
    """Rows that may count, and the number of records without a key among those that they were chosen from."""

    rows: pa.Table
    unkeyed: int


class Merged(NamedTuple):
    """Rows of a bucket after a change."""

    visible: pa.Table
    hidden: pa.Table
    """Hidden rows of the keys that the change was about."""
    is_changed: bool
    """True if the visible rows are others than before."""
    removed: pa.Table
    """Visible rows that are no more."""
    added: pa.Table
    """Visible rows that are new."""


def with_tombstones(schema: pa.Schema) -> pa.Schema:
    """Return the schema of rows in memory: that of a table, and the column of tombstones."""
    return schema.append(pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False))


def reduced(rows: pa.Table, key: Key, now_us: int) -> Keyed:
    """Return the rows that may count among others, with the columns of the key; ``now_us`` as of ``newest``."""
    rows = key.filled(rows)
    has_key = key.is_complete(rows)
    found = newest(rows, key.columns, now_us)
    return Keyed(rows.take(np.concatenate([found.visible, found.hidden])), int(rows.num_rows - has_key.sum()))


def merged(there: pa.Table, rows: pa.Table, keys: Sequence[str], now_us: int) -> Merged:
    """Return a bucket's rows with others.

    Args:
        there: rows of the bucket's file.
        rows: others of the bucket, with the hidden rows of their keys.
        now_us: as of ``newest``.
    """
    is_concerned = of_keys(there, rows, keys)
    before = there.filter(pa.array(is_concerned))
    both = pa.concat_tables([before, rows]).combine_chunks()
    found = newest(both, keys, now_us)
    is_same = len(found.visible) == before.num_rows and bool((found.visible < before.num_rows).all())
    if is_same:
        nothing = there.slice(0, 0)
        return Merged(there, both.take(found.hidden), is_changed=False, removed=nothing, added=nothing)
    gone = np.setdiff1d(np.arange(before.num_rows), found.visible)
    came = found.visible[found.visible >= before.num_rows]
    visible = pa.concat_tables([there.filter(pa.array(~is_concerned)), both.take(found.visible)])
    hidden, removed, added = both.take(found.hidden), before.take(gone), both.take(came)
    return Merged(visible.combine_chunks(), hidden, is_changed=True, removed=removed, added=added)


def changes(parts: Sequence[Merged], keys: Sequence[str]) -> pa.Table:
    """Return the changes of buckets as the rows of a change feed (Delta protocol, "Change Data Files")."""
    removed, added = (pa.concat_tables([getattr(each, name) for each in parts]) for name in ("removed", "added"))
    replaced, replacing = of_keys(removed, added, keys), of_keys(added, removed, keys)
    return pa.concat_tables(
        [
            _typed(removed.filter(pa.array(~replaced)), "delete"),
            _typed(removed.filter(pa.array(replaced)), "update_preimage"),
            _typed(added.filter(pa.array(replacing)), "update_postimage"),
            _typed(added.filter(pa.array(~replacing)), "insert"),
        ]
    )


def _typed(rows: pa.Table, change: str) -> pa.Table:
    rows = rows.drop_columns([TOMBSTONE_COLUMN])
    return rows.append_column(CHANGE_COLUMN, pa.array([change] * rows.num_rows, pa.string()))


def bucket_file(rows: pa.Table) -> tuple[Buffer, ParquetFile]:
    """Return the bytes of a file with rows, and what it says of itself."""
    rows = rows.drop_columns([TOMBSTONE_COLUMN])
    out = ParquetFile(rows.schema)
    out.add(rows.to_batches())
    return out.groups.finish(), out


def plain_file(rows: pa.Table) -> Buffer:
    """Return the bytes of a file with hidden rows, or with changes."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return memoryview(sink.getvalue())


def read_file(data: Buffer, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file in a later schema: columns that it lacks are null, and none of its rows is a tombstone
    unless it says so."""
    found = pq.read_table(pa.BufferReader(data), use_threads=False)
    return in_schema(found, schema)


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; those that they lack are null, and false for tombstones."""
    columns = []
    for field in schema:
        if field.name in rows.schema.names:
            columns.append(rows.column(field.name).cast(field.type))
        elif field.name == TOMBSTONE_COLUMN:
            columns.append(pa.array(np.zeros(rows.num_rows, np.bool_)))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)
