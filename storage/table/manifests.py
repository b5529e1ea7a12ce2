"""Manifests and manifest lists of Iceberg (Apache Iceberg, "Manifests"), and the schema of a Delta table in its types.

pyiceberg writes and reads them, in memory. All of it blocks: an entry takes some 70 us to write and 30 us to read.
"""

from __future__ import annotations

import io
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyiceberg.io
from pyiceberg import types
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.typedef import Record

from weft.storage.table.actions import AddedFile, TableError
from weft.storage.table.iceberg import FORMAT_VERSION
from weft.storage.table.parquet import FIELD_IDS, MAP_IDS, digest_id

# The schema: columns by the numbers that they have in the Parquet files.

NAME_MAPPING = "schema.name-mapping.default"
"""Table property by which readers find columns in files without numbers, as other engines write them to a table."""
_PRIMITIVES = {
    "string": types.StringType(),
    "long": types.LongType(),
    "integer": types.IntegerType(),
    "short": types.IntegerType(),
    "byte": types.IntegerType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "boolean": types.BooleanType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestamptzType(),
    "timestamp_ntz": types.TimestampType(),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def iceberg_schema(fields: Iterable[Mapping[str, Any]], number: int = 0) -> Schema:
    """Return the schema of a Delta table.

    Args:
        fields: its columns.
        number: the schema's number.

    Raises:
        TableError: a type is not known, or two columns have one number.
    """
    taken: dict[int, str] = {}

    def numbered(path: str, known: int | None = None) -> int:
        found = digest_id(path) if known is None else known
        # Files written before and after the second column came might have different numbers for the first.
        if (other := taken.setdefault(found, path)) != path:
            raise TableError(f"the columns {other} and {path} have one number in Parquet files: rename one of them")
        return found

    def inner(path: str, kind: Any) -> Any:
        if isinstance(kind, str):
            if (found := _PRIMITIVES.get(kind)) is not None:
                return found
            if (digits := _DECIMAL.fullmatch(kind)) is not None:
                return types.DecimalType(int(digits[1]), int(digits[2]))
        elif kind.get("type") == "array":
            element = numbered(f"{path}.element")
            return types.ListType(element, inner(f"{path}.element", kind["elementType"]), element_required=False)
        elif kind.get("type") == "map":
            key, value = MAP_IDS.get(path, (None, None))
            return types.MapType(
                numbered(f"{path}.key", key),
                inner(f"{path}.key", kind["keyType"]),
                numbered(f"{path}.value", value),
                inner(f"{path}.value", kind["valueType"]),
                value_required=False,
            )
        elif kind.get("type") == "struct":
            return types.StructType(*(field(f"{path}.{each['name']}", each) for each in kind["fields"]))
        raise TableError(f"column {path} has the type {kind}, which Iceberg does not have")

    def field(path: str, each: Mapping[str, Any], known: int | None = None) -> types.NestedField:
        comment = (each.get("metadata") or {}).get("comment")
        own = numbered(path, known)
        return types.NestedField(own, each["name"], inner(path, each["type"]), required=False, doc=comment)

    columns = [field(each["name"], each, FIELD_IDS.get(each["name"])) for each in fields]
    return Schema(*columns, schema_id=number)


def name_mapping(schema: Schema) -> str:
    """Return the value of ``NAME_MAPPING``."""
    return str(create_mapping_from_schema(schema).model_dump_json())


# Files: what the Delta log says of them, in the form of a manifest's entry.


class _Statistics(msgspec.Struct):
    numRecords: int | None = None  # noqa: N815  (Delta's names)
    minValues: dict[str, Any] = {}  # noqa: N815
    maxValues: dict[str, Any] = {}  # noqa: N815
    nullCount: dict[str, Any] = {}  # noqa: N815


_STATISTICS = msgspec.json.Decoder(_Statistics)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND, _MILLISECOND_US = timedelta(microseconds=1), 1000
_YEARS = range(2, 9999)
"""Years of bounds that are believed: those beyond stand for any time that text cannot express."""


class Columns(NamedTuple):
    """The columns of a table that may have bounds, and the place of its files."""

    location: str
    """URI of the table's folder."""
    numbers: dict[str, tuple[int, types.PrimitiveType]]

    @classmethod
    def of(cls, location: str, schema: Schema) -> Columns:
        """Return those of a schema."""
        plain = {each.name: (each.field_id, each.field_type) for each in schema.fields if each.field_type.is_primitive}
        return cls(location, plain)

    def entry(self, added: AddedFile) -> ManifestEntry:
        """Return the entry of a new file.

        Raises:
            TableError: its rows are not exactly those of the table, or not counted.
        """
        if added.deletionVector is not None:
            raise TableError(f"{added.path} has a deletion vector: write the file again with the engine that made it")
        try:
            known = _STATISTICS.decode(added.stats or "{}")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            known = _Statistics()
        if known.numRecords is None:
            raise TableError(f"{added.path} has no number of rows in the table's log: write the file again")
        nulls, low, high = dict[int, int](), dict[int, bytes](), dict[int, bytes]()
        for name, (number, kind) in self.numbers.items():
            if isinstance(count := known.nullCount.get(name), int):
                nulls[number] = count
            for found, values, is_upper in ((low, known.minValues, False), (high, known.maxValues, True)):
                if (bound := _bound(kind, values.get(name), is_upper)) is not None:
                    found[number] = bound
        path = added.path if "://" in added.path else f"{self.location}/{added.path}"
        file = _data_file(path, known.numRecords, added.size, _Bounds(nulls, low, high))
        return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file)


class _Bounds(NamedTuple):
    nulls: dict[int, int]
    low: dict[int, bytes]
    high: dict[int, bytes]


def _data_file(path: str, rows: int, size: int, known: _Bounds) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size,
        value_counts=dict.fromkeys(known.nulls, rows) or None,
        null_value_counts=known.nulls or None,
        lower_bounds=known.low or None,
        upper_bounds=known.high or None,
    )


def _bound(kind: types.PrimitiveType, value: Any, is_upper: bool) -> bytes | None:
    """Return a bound in Iceberg's form; None where the Delta log's proves nothing."""
    match kind, value:
        case types.IntegerType() | types.LongType(), int():
            pass
        case types.StringType(), str():
            pass
        case types.DoubleType(), float() | int() if not isinstance(value, bool):
            # JSON has no infinity: the largest numbers stand for it.
            value = float(value)
            value = value if abs(value) < sys.float_info.max else float("inf") if value > 0 else float("-inf")
        case types.DateType(), str():
            value = _moment(value, date.fromisoformat)
            value = None if value is None else (value - _EPOCH.date()).days
        case types.TimestamptzType() | types.TimestampType(), str():
            value = _moment(value, datetime.fromisoformat)
            if value is not None:
                value = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
                # Delta's bounds of times are cut to milliseconds.
                value = (value - _EPOCH) // _MICROSECOND + (_MILLISECOND_US if is_upper else 0)
        case _:
            return None
    return None if value is None else bytes(to_bytes(kind, value))


def _moment(text: str, parse: Callable[[str], Any]) -> Any:
    try:
        found = parse(text)
    except ValueError:
        return None
    return found if found.year in _YEARS else None


def added(entry: ManifestEntry) -> ManifestEntry:
    """Return the entry of a new file, of one in a manifest that no snapshot names."""
    return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=entry.data_file)


def forgotten(entry: ManifestEntry) -> ManifestEntry:
    """Return the entry of a removed file, without its bounds: they are values of rows that may have been erased."""
    file = entry.data_file
    plain = _data_file(file.file_path, file.record_count, file.file_size_in_bytes, _Bounds({}, {}, {}))
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.DELETED,
        snapshot_id=None,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=plain,
    )


# Manifests and lists of them.


class _Input(pyiceberg.io.InputFile):  # type: ignore[misc]
    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002
        return io.BytesIO(self._data)


class _Buffer(io.BytesIO):
    data = b""

    def close(self) -> None:
        self.data = self.getvalue()
        super().close()


class _Output(pyiceberg.io.OutputFile):  # type: ignore[misc]
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.buffer = _Buffer()

    def __len__(self) -> int:
        return len(self.buffer.data)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> _Input:
        return _Input(self.location, self.buffer.data)

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002
        return self.buffer


class _Files(pyiceberg.io.FileIO):  # type: ignore[misc]
    """The one file that is in memory."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data

    def new_input(self, location: str) -> _Input:
        return _Input(location, self._data)

    def new_output(self, location: str) -> Any:
        raise NotImplementedError

    def delete(self, location: Any) -> None:
        raise NotImplementedError


Digests = np.ndarray[Any, np.dtype[np.uint64]]


class Manifest(NamedTuple):
    """A manifest of a snapshot, and what it costs to know which files it names."""

    file: ManifestFile
    paths: Digests | None
    """Sorted digests of the paths of its live files; None before it was read."""

    @property
    def live(self) -> int:
        """Return the number of its files that the table has."""
        return int(self.file.added_files_count or 0) + int(self.file.existing_files_count or 0)

    def may_have(self, digests: Digests) -> bool:
        """Return whether it may name one of some files."""
        return self.paths is None or bool(np.isin(digests, self.paths).any())


class Written(NamedTuple):
    """A manifest that was made, and its bytes."""

    manifest: Manifest
    data: bytes


PATHS = "weft.paths"
"""Key in the header of a manifest: the digests of the paths of its live files, in base64. No reader needs it."""
HEADER_BYTES = 64 << 10
"""Bytes from the beginning of a manifest that have the digests of 4,096 paths."""
_PATHS_MARK = re.compile(rb"%b([\x80-\xff]{0,3}[\x00-\x7f])" % PATHS.encode())
"""The key, and the length of its value (Apache Avro, "Binary encoding": a variable-length zig-zag number)."""


class _Writer(ManifestWriterV2):  # type: ignore[misc]
    """A writer of manifests that begin with the digests of their paths."""

    def __init__(self, schema: Schema, output: _Output, snapshot: int, paths: Digests) -> None:
        super().__init__(UNPARTITIONED_PARTITION_SPEC, schema, output, snapshot, "null")
        self._paths = paths

    @property
    def _meta(self) -> dict[str, str]:
        return {PATHS: b64encode(self._paths.tobytes()).decode(), **super()._meta}


def named_in(header: bytes) -> Digests | None:
    """Return the sorted digests of the paths that a manifest names, by its first bytes; None if it does not begin with
    them, as those of other writers and of earlier releases."""
    if (mark := _PATHS_MARK.search(header)) is None:
        return None
    size = sum((byte & 0x7F) << (7 * at) for at, byte in enumerate(mark[1])) >> 1
    text = header[mark.end() : mark.end() + size]
    try:
        return np.frombuffer(b64decode(text, validate=True), "<u8") if len(text) == size else None
    except ValueError:
        return None


def digests_of(paths: Iterable[str]) -> Digests:
    """Return sorted digests of paths."""
    found = [int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little") for path in paths]
    return np.sort(np.array(found, "<u8"))


def write(schema: Schema, snapshot: int, location: str, entries: Sequence[ManifestEntry]) -> Written:
    """Return a manifest.

    Args:
        location: its URI.
        entries: at least one. Those with the status of existing files come with their sequence numbers.
    """
    live = digests_of(each.data_file.file_path for each in entries if each.status != ManifestEntryStatus.DELETED)
    output = _Output(location)
    with _Writer(schema, output, snapshot, live) as writer:
        for entry in entries:
            if entry.status == ManifestEntryStatus.DELETED:
                writer.delete(entry)
            elif entry.status == ManifestEntryStatus.ADDED and entry.sequence_number is None:
                writer.add(entry)
            else:
                writer.existing(entry)
    return Written(Manifest(writer.to_manifest_file(), live), output.buffer.data)


def read(manifest: ManifestFile, data: bytes) -> list[ManifestEntry]:
    """Return the entries of the live files of a manifest, with their sequence numbers."""
    return list(manifest.fetch_manifest_entry(_Files(data)))


def write_list(
    location: str, snapshot: int, parent: int | None, sequence: int, manifests: Sequence[Manifest]
) -> tuple[list[Manifest], bytes]:
    """Return the list of a snapshot's manifests: these with the snapshot's sequence number where they are new, and the
    list's bytes."""
    output = _Output(location)
    with write_manifest_list(FORMAT_VERSION, output, snapshot, parent, sequence, "null") as writer:
        made = [writer.prepare_manifest(each.file) for each in manifests]
        writer.add_manifests(made)
    return [Manifest(file, each.paths) for file, each in zip(made, manifests, strict=True)], output.buffer.data


def read_list(data: bytes) -> Iterator[ManifestFile]:
    """Yield the manifests of a list."""
    yield from read_manifest_list(_Input("", data))
